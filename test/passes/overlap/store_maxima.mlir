// RUN: shmap-opt %s --shmap-store-maxima | FileCheck %s
// RUN: shmap-opt %s --shmap-store-maxima=form=stored-maximum | FileCheck %s --check-prefix=ALL

// CHECK-LABEL: module @all_axes_are_manual
module @all_axes_are_manual {
  sdy.mesh @mesh = <["i"=4, "j"=2]>
  func.func public @main() attributes {sdy.manual_axes = #sdy<manual_axes{"i", "j"}>} {
    return
  }

  // CHECK-LABEL: func.func private @softmax
  func.func private @softmax(%x: tensor<4x8xf32>) -> tensor<4x8xf32> {
    // CHECK: %[[M:.*]] = stablehlo.reduce(%arg0 init: %{{.*}}) applies stablehlo.maximum across dimensions = [1]
    // CHECK-NOT: shmap.overlap
    // CHECK-NEXT: %[[S:.*]] = stablehlo.optimization_barrier %[[M]]
    // CHECK: %[[L:.*]] = stablehlo.maximum %{{.*}}, %[[S]]
    // CHECK-NEXT: %[[B:.*]] = stablehlo.broadcast_in_dim %[[L]]
    // CHECK-NEXT: stablehlo.subtract %arg0, %[[B]]
    %lowest = stablehlo.constant dense<0xFF800000> : tensor<f32>
    %zero = stablehlo.constant dense<0.0> : tensor<f32>
    %m = stablehlo.reduce(%x init: %lowest) applies stablehlo.maximum across dimensions = [1] {shmap.overlap = {name = "stored-maximum"}} : (tensor<4x8xf32>, tensor<f32>) -> tensor<4xf32>
    %least = stablehlo.broadcast_in_dim %lowest, dims = [] : (tensor<f32>) -> tensor<4xf32>
    %l = stablehlo.maximum %least, %m : tensor<4xf32>
    %b = stablehlo.broadcast_in_dim %l, dims = [0] : (tensor<4xf32>) -> tensor<4x8xf32>
    %d = stablehlo.subtract %x, %b : tensor<4x8xf32>
    %e = stablehlo.exponential %d : tensor<4x8xf32>
    %s = stablehlo.reduce(%e init: %zero) applies stablehlo.add across dimensions = [1] : (tensor<4x8xf32>, tensor<f32>) -> tensor<4xf32>
    %t = stablehlo.broadcast_in_dim %s, dims = [0] : (tensor<4xf32>) -> tensor<4x8xf32>
    %p = stablehlo.divide %e, %t : tensor<4x8xf32>
    return %p : tensor<4x8xf32>
  }

  // CHECK-LABEL: func.func private @everything_that_reads_it_reads_what_is_stored
  func.func private @everything_that_reads_it_reads_what_is_stored(%x: tensor<4x8xf32>) -> (tensor<4xf32>, tensor<4x8xf32>) {
    // CHECK: %[[S:.*]] = stablehlo.optimization_barrier
    // CHECK: return %[[S]]
    %lowest = stablehlo.constant dense<0xFF800000> : tensor<f32>
    %m = stablehlo.reduce(%x init: %lowest) applies stablehlo.maximum across dimensions = [1] {shmap.overlap = {name = "stored-maximum"}} : (tensor<4x8xf32>, tensor<f32>) -> tensor<4xf32>
    %b = stablehlo.broadcast_in_dim %m, dims = [0] : (tensor<4xf32>) -> tensor<4x8xf32>
    %d = stablehlo.subtract %x, %b : tensor<4x8xf32>
    %e = stablehlo.exponential %d : tensor<4x8xf32>
    return %m, %e : tensor<4xf32>, tensor<4x8xf32>
  }

  // CHECK-LABEL: func.func private @leaves_a_maximum_without_the_form
  // ALL-LABEL: func.func private @leaves_a_maximum_without_the_form
  func.func private @leaves_a_maximum_without_the_form(%x: tensor<4x8xf32>) -> tensor<4x8xf32> {
    // CHECK-NOT: stablehlo.optimization_barrier
    // ALL: stablehlo.optimization_barrier
    %lowest = stablehlo.constant dense<0xFF800000> : tensor<f32>
    %m = stablehlo.reduce(%x init: %lowest) applies stablehlo.maximum across dimensions = [1] : (tensor<4x8xf32>, tensor<f32>) -> tensor<4xf32>
    %b = stablehlo.broadcast_in_dim %m, dims = [0] : (tensor<4xf32>) -> tensor<4x8xf32>
    %d = stablehlo.subtract %x, %b : tensor<4x8xf32>
    %e = stablehlo.exponential %d : tensor<4x8xf32>
    return %e : tensor<4x8xf32>
  }

  // CHECK-LABEL: func.func private @leaves_a_maximum_of_other_numbers
  // ALL-LABEL: func.func private @leaves_a_maximum_of_other_numbers
  func.func private @leaves_a_maximum_of_other_numbers(%x: tensor<4x8xf32>, %y: tensor<4x8xf32>) -> tensor<4x8xf32> {
    // CHECK-NOT: shmap.overlap
    // CHECK-NOT: stablehlo.optimization_barrier
    // ALL-NOT: stablehlo.optimization_barrier
    %lowest = stablehlo.constant dense<0xFF800000> : tensor<f32>
    %m = stablehlo.reduce(%x init: %lowest) applies stablehlo.maximum across dimensions = [1] {shmap.overlap = {name = "stored-maximum"}} : (tensor<4x8xf32>, tensor<f32>) -> tensor<4xf32>
    %b = stablehlo.broadcast_in_dim %m, dims = [0] : (tensor<4xf32>) -> tensor<4x8xf32>
    %d = stablehlo.subtract %y, %b : tensor<4x8xf32>
    %e = stablehlo.exponential %d : tensor<4x8xf32>
    return %e : tensor<4x8xf32>
  }

  // CHECK-LABEL: func.func private @leaves_a_difference_without_exponential
  // ALL-LABEL: func.func private @leaves_a_difference_without_exponential
  func.func private @leaves_a_difference_without_exponential(%x: tensor<4x8xf32>) -> tensor<4x8xf32> {
    // CHECK-NOT: stablehlo.optimization_barrier
    // ALL-NOT: stablehlo.optimization_barrier
    %lowest = stablehlo.constant dense<0xFF800000> : tensor<f32>
    %m = stablehlo.reduce(%x init: %lowest) applies stablehlo.maximum across dimensions = [1] {shmap.overlap = {name = "stored-maximum"}} : (tensor<4x8xf32>, tensor<f32>) -> tensor<4xf32>
    %b = stablehlo.broadcast_in_dim %m, dims = [0] : (tensor<4xf32>) -> tensor<4x8xf32>
    %d = stablehlo.subtract %x, %b : tensor<4x8xf32>
    %e = stablehlo.tanh %d : tensor<4x8xf32>
    return %e : tensor<4x8xf32>
  }

  // CHECK-LABEL: func.func private @leaves_a_sum
  // ALL-LABEL: func.func private @leaves_a_sum
  func.func private @leaves_a_sum(%x: tensor<4x8xf32>) -> tensor<4x8xf32> {
    // CHECK-NOT: stablehlo.optimization_barrier
    // ALL-NOT: stablehlo.optimization_barrier
    %zero = stablehlo.constant dense<0.0> : tensor<f32>
    %m = stablehlo.reduce(%x init: %zero) applies stablehlo.add across dimensions = [1] {shmap.overlap = {name = "stored-maximum"}} : (tensor<4x8xf32>, tensor<f32>) -> tensor<4xf32>
    %b = stablehlo.broadcast_in_dim %m, dims = [0] : (tensor<4xf32>) -> tensor<4x8xf32>
    %d = stablehlo.subtract %x, %b : tensor<4x8xf32>
    %e = stablehlo.exponential %d : tensor<4x8xf32>
    return %e : tensor<4x8xf32>
  }

  // CHECK-LABEL: func.func private @leaves_what_is_stored
  // ALL-LABEL: func.func private @leaves_what_is_stored
  func.func private @leaves_what_is_stored(%x: tensor<4x8xf32>) -> tensor<4x8xf32> {
    // CHECK-COUNT-1: stablehlo.optimization_barrier
    // CHECK-NOT: stablehlo.optimization_barrier
    // ALL-COUNT-1: stablehlo.optimization_barrier
    // ALL-NOT: stablehlo.optimization_barrier
    %lowest = stablehlo.constant dense<0xFF800000> : tensor<f32>
    %m = stablehlo.reduce(%x init: %lowest) applies stablehlo.maximum across dimensions = [1] {shmap.overlap = {name = "stored-maximum"}} : (tensor<4x8xf32>, tensor<f32>) -> tensor<4xf32>
    %s = stablehlo.optimization_barrier %m : tensor<4xf32>
    %b = stablehlo.broadcast_in_dim %s, dims = [0] : (tensor<4xf32>) -> tensor<4x8xf32>
    %d = stablehlo.subtract %x, %b : tensor<4x8xf32>
    %e = stablehlo.exponential %d : tensor<4x8xf32>
    return %e : tensor<4x8xf32>
  }
}
