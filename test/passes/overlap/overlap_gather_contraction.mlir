// RUN: shmap-opt %s --shmap-overlap-gather-contraction | FileCheck %s

// CHECK-LABEL: module @all_axes_are_manual
module @all_axes_are_manual {
  sdy.mesh @mesh = <["i"=4, "j"=2]>
  func.func public @main() attributes {sdy.manual_axes = #sdy<manual_axes{"i", "j"}>} {
    return
  }

  // CHECK-LABEL: func.func private @columns_in_two_chunks
  func.func private @columns_in_two_chunks(%x: tensor<6x16xf32>, %w: tensor<4x8xf32>) -> tensor<6x8xf32> {
    // CHECK: stablehlo.slice %arg1 [0:4, 0:4]
    // CHECK: all_gather{{.*}} : (tensor<4x4xf32>) -> tensor<16x4xf32>
    // CHECK: stablehlo.slice %arg1 [0:4, 4:8]
    // CHECK: all_gather{{.*}} : (tensor<4x4xf32>) -> tensor<16x4xf32>
    // CHECK-NOT: optimization_barrier
    // CHECK-COUNT-2: stablehlo.dynamic_update_slice
    // CHECK-NOT: all_gather
    %g = "stablehlo.all_gather"(%w) <{all_gather_dim = 0 : i64, replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>}> {shmap.overlap = {name = "columns", parts = 2 : i64, barriers = false}} : (tensor<4x8xf32>) -> tensor<16x8xf32>
    %y = stablehlo.dot_general %x, %g, contracting_dims = [1] x [0] : (tensor<6x16xf32>, tensor<16x8xf32>) -> tensor<6x8xf32>
    return %y : tensor<6x8xf32>
  }

  // CHECK-LABEL: func.func private @in_the_place_of_a_product
  func.func private @in_the_place_of_a_product(%x: tensor<6x16xf32>, %w: tensor<4x8xf32>, %v: tensor<16x8xf32>) -> tensor<6x8xf32> {
    // CHECK: [[Y:%.*]] = stablehlo.dot_general %arg0, %arg2
    // CHECK: stablehlo.slice [[Y]] [0:6, 0:4]
    // CHECK: [[FIRST:%.*]] = stablehlo.dynamic_update_slice [[Y]],
    // CHECK: stablehlo.slice [[FIRST]] [0:6, 4:8]
    // CHECK: stablehlo.dynamic_update_slice [[FIRST]],
    %g = "stablehlo.all_gather"(%w) <{all_gather_dim = 0 : i64, replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>}> {shmap.overlap = {name = "columns", parts = 2 : i64, barriers = false}} : (tensor<4x8xf32>) -> tensor<16x8xf32>
    %y = stablehlo.dot_general %x, %v, contracting_dims = [1] x [0] : (tensor<6x16xf32>, tensor<16x8xf32>) -> tensor<6x8xf32>
    %z = stablehlo.dot_general %x, %g, contracting_dims = [1] x [0] : (tensor<6x16xf32>, tensor<16x8xf32>) -> tensor<6x8xf32>
    %h = stablehlo.multiply %z, %y : tensor<6x8xf32>
    return %h : tensor<6x8xf32>
  }

  // CHECK-LABEL: func.func private @not_in_the_place_of_an_argument
  func.func private @not_in_the_place_of_an_argument(%x: tensor<6x16xf32>, %w: tensor<4x8xf32>, %y: tensor<6x8xf32>) -> tensor<6x8xf32> {
    // CHECK-NOT: stablehlo.dynamic_update_slice %arg2
    // CHECK-COUNT-2: stablehlo.slice %arg2
    // CHECK-NOT: stablehlo.dynamic_update_slice %arg2
    %g = "stablehlo.all_gather"(%w) <{all_gather_dim = 0 : i64, replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>}> {shmap.overlap = {name = "columns", parts = 2 : i64, barriers = false}} : (tensor<4x8xf32>) -> tensor<16x8xf32>
    %z = stablehlo.dot_general %x, %g, contracting_dims = [1] x [0] : (tensor<6x16xf32>, tensor<16x8xf32>) -> tensor<6x8xf32>
    %h = stablehlo.multiply %z, %y : tensor<6x8xf32>
    return %h : tensor<6x8xf32>
  }

  // CHECK-LABEL: func.func private @kept_apart_by_barriers
  func.func private @kept_apart_by_barriers(%x: tensor<6x16xf32>, %w: tensor<4x8xf32>) -> tensor<6x8xf32> {
    // CHECK: optimization_barrier
    // CHECK: stablehlo.dot_general
    // CHECK: optimization_barrier
    // CHECK: stablehlo.dot_general
    // CHECK: stablehlo.concatenate %{{.*}}, dim = 1 : (tensor<6x4xf32>, tensor<6x4xf32>)
    %g = "stablehlo.all_gather"(%w) <{all_gather_dim = 0 : i64, replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>}> {shmap.overlap = {name = "columns", parts = 2 : i64, in_place = false}} : (tensor<4x8xf32>) -> tensor<16x8xf32>
    %y = stablehlo.dot_general %x, %g, contracting_dims = [1] x [0] : (tensor<6x16xf32>, tensor<16x8xf32>) -> tensor<6x8xf32>
    return %y : tensor<6x8xf32>
  }

  // CHECK-LABEL: func.func private @as_the_left_operand_and_transposed
  func.func private @as_the_left_operand_and_transposed(%x: tensor<16x6xf32>, %w: tensor<4x8xf32>) -> tensor<8x6xf32> {
    // CHECK: all_gather{{.*}} : (tensor<4x4xf32>) -> tensor<16x4xf32>
    // CHECK: stablehlo.transpose %{{.*}} : (tensor<16x4xf32>) -> tensor<4x16xf32>
    // CHECK: stablehlo.dot_general %{{.*}}, %arg0
    %g = "stablehlo.all_gather"(%w) <{all_gather_dim = 0 : i64, replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>}> {shmap.overlap = {name = "columns", parts = 2 : i64, barriers = false}} : (tensor<4x8xf32>) -> tensor<16x8xf32>
    %t = stablehlo.transpose %g, dims = [1, 0] : (tensor<16x8xf32>) -> tensor<8x16xf32>
    %y = stablehlo.dot_general %t, %x, contracting_dims = [1] x [0] : (tensor<8x16xf32>, tensor<16x6xf32>) -> tensor<8x6xf32>
    return %y : tensor<8x6xf32>
  }

  // CHECK-LABEL: func.func private @scaled_after_the_gather
  func.func private @scaled_after_the_gather(%x: tensor<6x16xf32>, %w: tensor<4x8xi8>, %s: tensor<8xf32>) -> tensor<6x8xf32> {
    // CHECK: all_gather{{.*}} : (tensor<4x4xi8>) -> tensor<16x4xi8>
    // CHECK: %[[SCALES:.*]] = stablehlo.slice %{{.*}} [0:16, 0:4] : (tensor<16x8xf32>) -> tensor<16x4xf32>
    // CHECK: %[[SCALED:.*]] = stablehlo.multiply %{{.*}}, %[[SCALES]] : tensor<16x4xf32>
    // CHECK: stablehlo.dot_general %arg0, %[[SCALED]]
    %g = "stablehlo.all_gather"(%w) <{all_gather_dim = 0 : i64, replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>}> {shmap.overlap = {name = "columns", parts = 2 : i64, barriers = false}} : (tensor<4x8xi8>) -> tensor<16x8xi8>
    %f = stablehlo.convert %g : (tensor<16x8xi8>) -> tensor<16x8xf32>
    %b = stablehlo.broadcast_in_dim %s, dims = [1] : (tensor<8xf32>) -> tensor<16x8xf32>
    %v = stablehlo.multiply %f, %b : tensor<16x8xf32>
    %y = stablehlo.dot_general %x, %v, contracting_dims = [1] x [0] : (tensor<6x16xf32>, tensor<16x8xf32>) -> tensor<6x8xf32>
    return %y : tensor<6x8xf32>
  }

  // CHECK-LABEL: func.func private @columns_are_not_that_many_chunks
  func.func private @columns_are_not_that_many_chunks(%x: tensor<6x16xf32>, %w: tensor<4x7xf32>) -> tensor<6x7xf32> {
    // CHECK-NEXT: "stablehlo.all_gather"(%arg1){{.*}}>]>}> : (tensor<4x7xf32>)
    // CHECK-NEXT: stablehlo.dot_general
    %g = "stablehlo.all_gather"(%w) <{all_gather_dim = 0 : i64, replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>}> {shmap.overlap = {name = "columns", parts = 2 : i64, barriers = false}} : (tensor<4x7xf32>) -> tensor<16x7xf32>
    %y = stablehlo.dot_general %x, %g, contracting_dims = [1] x [0] : (tensor<6x16xf32>, tensor<16x7xf32>) -> tensor<6x7xf32>
    return %y : tensor<6x7xf32>
  }

  // CHECK-LABEL: func.func private @a_vector_has_no_columns
  func.func private @a_vector_has_no_columns(%x: tensor<6x16xf32>, %w: tensor<4xf32>) -> tensor<6xf32> {
    // CHECK-NEXT: "stablehlo.all_gather"(%arg1)
    // CHECK-NEXT: stablehlo.dot_general
    %g = "stablehlo.all_gather"(%w) <{all_gather_dim = 0 : i64, replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>}> {shmap.overlap = {name = "columns", parts = 2 : i64, barriers = false}} : (tensor<4xf32>) -> tensor<16xf32>
    %y = stablehlo.dot_general %x, %g, contracting_dims = [1] x [0] : (tensor<6x16xf32>, tensor<16xf32>) -> tensor<6xf32>
    return %y : tensor<6xf32>
  }
}
