// RUN: shmap-opt %s --shmap-overlap-all-to-all | FileCheck %s

// CHECK-LABEL: module @all_axes_are_manual
module @all_axes_are_manual {
  sdy.mesh @mesh = <["i"=4, "j"=2]>
  func.func public @main() attributes {sdy.manual_axes = #sdy<manual_axes{"i", "j"}>} {
    return
  }

  // CHECK-LABEL: func.func private @tokens_in_two_chunks
  func.func private @tokens_in_two_chunks(%x: tensor<4x6x8xf32>, %w: tensor<1x8x8xf32>) -> tensor<4x6x8xf32> {
    // CHECK: %[[X0:.*]] = stablehlo.slice %arg0 [0:4, 0:3, 0:8]
    // CHECK: %[[Y0:.*]] = call @shmap_chunk(%[[X0]], %arg1)
    // CHECK: %[[X1:.*]] = stablehlo.slice %arg0 [0:4, 3:6, 0:8]
    // CHECK: %[[Y1:.*]] = call @shmap_chunk(%[[X1]], %arg1)
    // CHECK: stablehlo.dynamic_update_slice %{{.*}}, %[[Y0]]
    // CHECK: stablehlo.dynamic_update_slice %{{.*}}, %[[Y1]]
    // CHECK: func.func private @shmap_chunk(
    // CHECK: "stablehlo.all_to_all"(%arg0)
    // CHECK: stablehlo.dot_general %{{.*}}, %arg1, {{.*}} : (tensor<1x12x8xf32>, tensor<1x8x8xf32>)
    // CHECK: stablehlo.tanh
    // CHECK: %[[Y:.*]] = "stablehlo.all_to_all"
    // CHECK: return %[[Y]]
    %a = "stablehlo.all_to_all"(%x) <{concat_dimension = 1 : i64, replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>, split_count = 4 : i64, split_dimension = 0 : i64}> {shmap.overlap = {name = "chunks", parts = 2 : i64, barriers = false}} : (tensor<4x6x8xf32>) -> tensor<1x24x8xf32>
    %b = stablehlo.dot_general %a, %w, batching_dims = [0] x [0], contracting_dims = [2] x [1] : (tensor<1x24x8xf32>, tensor<1x8x8xf32>) -> tensor<1x24x8xf32>
    %c = stablehlo.tanh %b : tensor<1x24x8xf32>
    %y = "stablehlo.all_to_all"(%c) <{concat_dimension = 0 : i64, replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>, split_count = 4 : i64, split_dimension = 1 : i64}> : (tensor<1x24x8xf32>) -> tensor<4x6x8xf32>
    return %y : tensor<4x6x8xf32>
  }

  // CHECK-LABEL: func.func private @each_chunk_with_its_part_of_a_mask
  func.func private @each_chunk_with_its_part_of_a_mask(%x: tensor<4x6x8xf32>, %w: tensor<1x8x8xf32>, %m: tensor<1x24x8xf32>) -> tensor<4x6x8xf32> {
    // CHECK: %[[A0:.*]] = stablehlo.slice {{.*}} [0:1, 0:4, 0:3, 0:8] : (tensor<1x4x6x8xf32>)
    // CHECK: %[[M0:.*]] = stablehlo.reshape %[[A0]]
    // CHECK: call @shmap_chunk_0({{.*}}, %[[M0]])
    // CHECK: %[[A1:.*]] = stablehlo.slice {{.*}} [0:1, 0:4, 3:6, 0:8] : (tensor<1x4x6x8xf32>)
    // CHECK: %[[M1:.*]] = stablehlo.reshape %[[A1]]
    // CHECK: call @shmap_chunk_0({{.*}}, %[[M1]])
    // CHECK: func.func private @shmap_chunk_0(
    // CHECK: stablehlo.multiply %{{.*}}, %arg2 : tensor<1x12x8xf32>
    %a = "stablehlo.all_to_all"(%x) <{concat_dimension = 1 : i64, replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>, split_count = 4 : i64, split_dimension = 0 : i64}> {shmap.overlap = {name = "chunks", parts = 2 : i64, barriers = false}} : (tensor<4x6x8xf32>) -> tensor<1x24x8xf32>
    %b = stablehlo.dot_general %a, %w, batching_dims = [0] x [0], contracting_dims = [2] x [1] : (tensor<1x24x8xf32>, tensor<1x8x8xf32>) -> tensor<1x24x8xf32>
    %c = stablehlo.multiply %b, %m : tensor<1x24x8xf32>
    %y = "stablehlo.all_to_all"(%c) <{concat_dimension = 0 : i64, replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>, split_count = 4 : i64, split_dimension = 1 : i64}> : (tensor<1x24x8xf32>) -> tensor<4x6x8xf32>
    return %y : tensor<4x6x8xf32>
  }

  // CHECK-LABEL: func.func private @along_one_dimension_with_reshapes
  func.func private @along_one_dimension_with_reshapes(%x: tensor<4x6x8xf32>, %w: tensor<8x8xf32>) -> tensor<4x6x8xf32> {
    // CHECK: all_to_all{{.*}} : (tensor<4x3x8xf32>) -> tensor<4x3x8xf32>
    // CHECK: stablehlo.reshape %{{.*}} : (tensor<4x3x8xf32>) -> tensor<12x8xf32>
    %a = "stablehlo.all_to_all"(%x) <{concat_dimension = 0 : i64, replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>, split_count = 4 : i64, split_dimension = 0 : i64}> {shmap.overlap = {name = "chunks", parts = 2 : i64, barriers = false}} : (tensor<4x6x8xf32>) -> tensor<4x6x8xf32>
    %r = stablehlo.reshape %a : (tensor<4x6x8xf32>) -> tensor<24x8xf32>
    %b = stablehlo.dot_general %r, %w, contracting_dims = [1] x [0] : (tensor<24x8xf32>, tensor<8x8xf32>) -> tensor<24x8xf32>
    %q = stablehlo.reshape %b : (tensor<24x8xf32>) -> tensor<4x6x8xf32>
    %y = "stablehlo.all_to_all"(%q) <{concat_dimension = 0 : i64, replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>, split_count = 4 : i64, split_dimension = 0 : i64}> : (tensor<4x6x8xf32>) -> tensor<4x6x8xf32>
    return %y : tensor<4x6x8xf32>
  }

  // CHECK-LABEL: func.func private @what_was_received_is_used_again
  func.func private @what_was_received_is_used_again(%x: tensor<4x6x8xf32>, %w: tensor<1x8x8xf32>) -> (tensor<4x6x8xf32>, tensor<1x24x8xf32>) {
    // CHECK-NEXT: "stablehlo.all_to_all"(%arg0)
    %a = "stablehlo.all_to_all"(%x) <{concat_dimension = 1 : i64, replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>, split_count = 4 : i64, split_dimension = 0 : i64}> {shmap.overlap = {name = "chunks", parts = 2 : i64, barriers = false}} : (tensor<4x6x8xf32>) -> tensor<1x24x8xf32>
    %b = stablehlo.dot_general %a, %w, batching_dims = [0] x [0], contracting_dims = [2] x [1] : (tensor<1x24x8xf32>, tensor<1x8x8xf32>) -> tensor<1x24x8xf32>
    %y = "stablehlo.all_to_all"(%b) <{concat_dimension = 0 : i64, replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>, split_count = 4 : i64, split_dimension = 1 : i64}> : (tensor<1x24x8xf32>) -> tensor<4x6x8xf32>
    return %y, %a : tensor<4x6x8xf32>, tensor<1x24x8xf32>
  }

  // CHECK-LABEL: func.func private @tokens_are_summed_up
  func.func private @tokens_are_summed_up(%x: tensor<4x6x8xf32>, %w: tensor<1x24x24xf32>) -> tensor<4x6x8xf32> {
    // CHECK-NEXT: "stablehlo.all_to_all"(%arg0){{.*}} : (tensor<4x6x8xf32>)
    %a = "stablehlo.all_to_all"(%x) <{concat_dimension = 1 : i64, replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>, split_count = 4 : i64, split_dimension = 0 : i64}> {shmap.overlap = {name = "chunks", parts = 2 : i64, barriers = false}} : (tensor<4x6x8xf32>) -> tensor<1x24x8xf32>
    %b = stablehlo.dot_general %w, %a, batching_dims = [0] x [0], contracting_dims = [2] x [1] : (tensor<1x24x24xf32>, tensor<1x24x8xf32>) -> tensor<1x24x8xf32>
    %z = stablehlo.dot_general %b, %b, batching_dims = [0] x [0], contracting_dims = [2] x [2] : (tensor<1x24x8xf32>, tensor<1x24x8xf32>) -> tensor<1x24x24xf32>
    %v = stablehlo.slice %z [0:1, 0:24, 0:8] : (tensor<1x24x24xf32>) -> tensor<1x24x8xf32>
    %y = "stablehlo.all_to_all"(%v) <{concat_dimension = 0 : i64, replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>, split_count = 4 : i64, split_dimension = 1 : i64}> : (tensor<1x24x8xf32>) -> tensor<4x6x8xf32>
    return %y : tensor<4x6x8xf32>
  }
}
