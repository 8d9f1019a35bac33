// RUN: shmap-opt %s --shmap-order-gathered-products | FileCheck %s
// RUN: shmap-opt %s --shmap-order-gathered-products=form=together | FileCheck %s --check-prefix=ALL

// CHECK-LABEL: module @all_axes_are_manual
module @all_axes_are_manual {
  sdy.mesh @mesh = <["i"=4, "j"=2]>
  func.func public @main() attributes {sdy.manual_axes = #sdy<manual_axes{"i", "j"}>} {
    return
  }

  // CHECK-LABEL: func.func private @what_reads_a_product_waits_for_both
  func.func private @what_reads_a_product_waits_for_both(%d: tensor<4x8xf32>, %w: tensor<6x8xf32>, %x: tensor<16x6xf32>) -> (tensor<16x6xf32>, tensor<6x8xf32>) {
    // CHECK: %[[G:.*]] = "stablehlo.all_gather"(%arg0) <{
    // CHECK-NOT: shmap.overlap
    // CHECK: %[[P:.*]] = stablehlo.dot_general %[[G]], %arg1
    // CHECK-NEXT: %[[Q:.*]] = stablehlo.dot_general %arg2, %[[G]]
    // CHECK-NEXT: %[[B:.*]]:2 = stablehlo.optimization_barrier %[[P]], %[[Q]]
    // CHECK-NEXT: %[[T:.*]] = stablehlo.tanh %[[B]]#0
    // CHECK-NEXT: return %[[T]], %[[B]]#1
    %g = "stablehlo.all_gather"(%d) <{all_gather_dim = 0 : i64, replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>}> {shmap.overlap = {name = "together"}} : (tensor<4x8xf32>) -> tensor<16x8xf32>
    %p = stablehlo.dot_general %g, %w, contracting_dims = [1] x [1] : (tensor<16x8xf32>, tensor<6x8xf32>) -> tensor<16x6xf32>
    %t = stablehlo.tanh %p : tensor<16x6xf32>
    %q = stablehlo.dot_general %x, %g, contracting_dims = [0] x [0] : (tensor<16x6xf32>, tensor<16x8xf32>) -> tensor<6x8xf32>
    return %t, %q : tensor<16x6xf32>, tensor<6x8xf32>
  }

  // CHECK-LABEL: func.func private @three_products_and_one_that_reads_it_twice
  func.func private @three_products_and_one_that_reads_it_twice(%d: tensor<4x8xf32>, %w: tensor<6x8xf32>, %x: tensor<16x6xf32>) -> (tensor<16x6xf32>, tensor<6x8xf32>, tensor<8x8xf32>) {
    // CHECK: %[[G:.*]] = "stablehlo.all_gather"(%arg0) <{
    // CHECK-COUNT-3: stablehlo.dot_general
    // CHECK-NEXT: %[[B:.*]]:3 = stablehlo.optimization_barrier
    // CHECK-NEXT: %[[T:.*]] = stablehlo.tanh %[[B]]#1
    // CHECK-NEXT: %[[N:.*]] = stablehlo.negate %[[B]]#0
    // CHECK-NEXT: return %[[T]], %[[B]]#2, %[[N]]
    %g = "stablehlo.all_gather"(%d) <{all_gather_dim = 0 : i64, replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>}> {shmap.overlap = {name = "together"}} : (tensor<4x8xf32>) -> tensor<16x8xf32>
    %s = stablehlo.dot_general %g, %g, contracting_dims = [0] x [0] : (tensor<16x8xf32>, tensor<16x8xf32>) -> tensor<8x8xf32>
    %p = stablehlo.dot_general %g, %w, contracting_dims = [1] x [1] : (tensor<16x8xf32>, tensor<6x8xf32>) -> tensor<16x6xf32>
    %t = stablehlo.tanh %p : tensor<16x6xf32>
    %n = stablehlo.negate %s : tensor<8x8xf32>
    %q = stablehlo.dot_general %x, %g, contracting_dims = [0] x [0] : (tensor<16x6xf32>, tensor<16x8xf32>) -> tensor<6x8xf32>
    return %t, %q, %n : tensor<16x6xf32>, tensor<6x8xf32>, tensor<8x8xf32>
  }

  // CHECK-LABEL: func.func private @leaves_a_gather_without_the_form
  // ALL-LABEL: func.func private @leaves_a_gather_without_the_form
  func.func private @leaves_a_gather_without_the_form(%d: tensor<4x8xf32>, %w: tensor<6x8xf32>, %x: tensor<16x6xf32>) -> (tensor<16x6xf32>, tensor<6x8xf32>) {
    // CHECK-NOT: stablehlo.optimization_barrier
    // ALL: stablehlo.optimization_barrier
    %g = "stablehlo.all_gather"(%d) <{all_gather_dim = 0 : i64, replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>}> : (tensor<4x8xf32>) -> tensor<16x8xf32>
    %p = stablehlo.dot_general %g, %w, contracting_dims = [1] x [1] : (tensor<16x8xf32>, tensor<6x8xf32>) -> tensor<16x6xf32>
    %q = stablehlo.dot_general %x, %g, contracting_dims = [0] x [0] : (tensor<16x6xf32>, tensor<16x8xf32>) -> tensor<6x8xf32>
    return %p, %q : tensor<16x6xf32>, tensor<6x8xf32>
  }

  // CHECK-LABEL: func.func private @leaves_what_others_read
  // ALL-LABEL: func.func private @leaves_what_others_read
  func.func private @leaves_what_others_read(%d: tensor<4x8xf32>, %w: tensor<6x8xf32>, %x: tensor<16x6xf32>) -> (tensor<16x6xf32>, tensor<6x8xf32>, tensor<16x8xf32>) {
    // CHECK-NOT: shmap.overlap
    // CHECK-NOT: stablehlo.optimization_barrier
    // ALL-NOT: stablehlo.optimization_barrier
    %g = "stablehlo.all_gather"(%d) <{all_gather_dim = 0 : i64, replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>}> {shmap.overlap = {name = "together"}} : (tensor<4x8xf32>) -> tensor<16x8xf32>
    %p = stablehlo.dot_general %g, %w, contracting_dims = [1] x [1] : (tensor<16x8xf32>, tensor<6x8xf32>) -> tensor<16x6xf32>
    %q = stablehlo.dot_general %x, %g, contracting_dims = [0] x [0] : (tensor<16x6xf32>, tensor<16x8xf32>) -> tensor<6x8xf32>
    %n = stablehlo.negate %g : tensor<16x8xf32>
    return %p, %q, %n : tensor<16x6xf32>, tensor<6x8xf32>, tensor<16x8xf32>
  }

  // CHECK-LABEL: func.func private @leaves_a_product_that_needs_another
  // ALL-LABEL: func.func private @leaves_a_product_that_needs_another
  func.func private @leaves_a_product_that_needs_another(%d: tensor<4x8xf32>, %w: tensor<6x8xf32>) -> tensor<6x8xf32> {
    // CHECK-NOT: stablehlo.optimization_barrier
    // ALL-NOT: stablehlo.optimization_barrier
    %g = "stablehlo.all_gather"(%d) <{all_gather_dim = 0 : i64, replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>}> {shmap.overlap = {name = "together"}} : (tensor<4x8xf32>) -> tensor<16x8xf32>
    %p = stablehlo.dot_general %g, %w, contracting_dims = [1] x [1] : (tensor<16x8xf32>, tensor<6x8xf32>) -> tensor<16x6xf32>
    %q = stablehlo.dot_general %p, %g, contracting_dims = [0] x [0] : (tensor<16x6xf32>, tensor<16x8xf32>) -> tensor<6x8xf32>
    return %q : tensor<6x8xf32>
  }

  // CHECK-LABEL: func.func private @leaves_a_single_product
  // ALL-LABEL: func.func private @leaves_a_single_product
  func.func private @leaves_a_single_product(%d: tensor<4x8xf32>) -> tensor<8x8xf32> {
    // CHECK-NOT: stablehlo.optimization_barrier
    // ALL-NOT: stablehlo.optimization_barrier
    %g = "stablehlo.all_gather"(%d) <{all_gather_dim = 0 : i64, replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>}> {shmap.overlap = {name = "together"}} : (tensor<4x8xf32>) -> tensor<16x8xf32>
    %p = stablehlo.dot_general %g, %g, contracting_dims = [0] x [0] : (tensor<16x8xf32>, tensor<16x8xf32>) -> tensor<8x8xf32>
    return %p : tensor<8x8xf32>
  }

  // CHECK-LABEL: func.func private @leaves_readers_in_a_branch
  // ALL-LABEL: func.func private @leaves_readers_in_a_branch
  func.func private @leaves_readers_in_a_branch(%c: tensor<i1>, %d: tensor<4x8xf32>, %w: tensor<6x8xf32>, %v: tensor<6x8xf32>) -> (tensor<16x6xf32>, tensor<16x6xf32>) {
    // CHECK-NOT: stablehlo.optimization_barrier
    // ALL-NOT: stablehlo.optimization_barrier
    %g = "stablehlo.all_gather"(%d) <{all_gather_dim = 0 : i64, replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>}> {shmap.overlap = {name = "together"}} : (tensor<4x8xf32>) -> tensor<16x8xf32>
    %p = stablehlo.dot_general %g, %w, contracting_dims = [1] x [1] : (tensor<16x8xf32>, tensor<6x8xf32>) -> tensor<16x6xf32>
    %r = "stablehlo.if"(%c) ({
      %q = stablehlo.dot_general %g, %v, contracting_dims = [1] x [1] : (tensor<16x8xf32>, tensor<6x8xf32>) -> tensor<16x6xf32>
      stablehlo.return %q : tensor<16x6xf32>
    }, {
      stablehlo.return %p : tensor<16x6xf32>
    }) : (tensor<i1>) -> tensor<16x6xf32>
    return %p, %r : tensor<16x6xf32>, tensor<16x6xf32>
  }
}
