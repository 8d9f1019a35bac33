// RUN: shmap-opt %s --shmap-normalize-all-to-all --split-input-file | FileCheck %s

// CHECK-LABEL: module @all_axes_are_manual
module @all_axes_are_manual {
  sdy.mesh @mesh = <["i"=4, "j"=2]>
  func.func public @main() attributes {sdy.manual_axes = #sdy<manual_axes{"i", "j"}>} {
    return
  }

  // CHECK-LABEL: func.func private @each_device_gets_one_index
  func.func private @each_device_gets_one_index(%x: tensor<4x2x3xf32>) -> tensor<1x8x3xf32> {
    // CHECK: %[[E:.*]] = "stablehlo.all_to_all"(%arg0) <{concat_dimension = 0 : i64,{{.*}}split_dimension = 0 : i64}> : (tensor<4x2x3xf32>) -> tensor<4x2x3xf32>
    // CHECK-NEXT: stablehlo.reshape %[[E]] : (tensor<4x2x3xf32>) -> tensor<1x8x3xf32>
    %y = "stablehlo.all_to_all"(%x) <{concat_dimension = 1 : i64, replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>, split_count = 4 : i64, split_dimension = 0 : i64}> : (tensor<4x2x3xf32>) -> tensor<1x8x3xf32>
    return %y : tensor<1x8x3xf32>
  }

  // CHECK-LABEL: func.func private @each_device_gives_one_index
  func.func private @each_device_gives_one_index(%x: tensor<1x8x3xf32>) -> tensor<4x2x3xf32> {
    // CHECK: %[[E:.*]] = stablehlo.reshape %arg0 : (tensor<1x8x3xf32>) -> tensor<4x2x3xf32>
    // CHECK-NEXT: "stablehlo.all_to_all"(%[[E]]) <{concat_dimension = 0 : i64,{{.*}}split_dimension = 0 : i64}>
    %y = "stablehlo.all_to_all"(%x) <{concat_dimension = 0 : i64, replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>, split_count = 4 : i64, split_dimension = 1 : i64}> : (tensor<1x8x3xf32>) -> tensor<4x2x3xf32>
    return %y : tensor<4x2x3xf32>
  }

  // CHECK-LABEL: func.func private @dimensions_of_size_one_are_between
  func.func private @dimensions_of_size_one_are_between(%x: tensor<4x1x2xf32>) -> tensor<1x1x8xf32> {
    // CHECK: all_to_all{{.*}} -> tensor<4x1x2xf32>
    %y = "stablehlo.all_to_all"(%x) <{concat_dimension = 2 : i64, replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>, split_count = 4 : i64, split_dimension = 0 : i64}> : (tensor<4x1x2xf32>) -> tensor<1x1x8xf32>
    return %y : tensor<1x1x8xf32>
  }

  // CHECK-LABEL: func.func private @each_device_gets_two_indices
  func.func private @each_device_gets_two_indices(%x: tensor<8x2x3xf32>) -> tensor<2x8x3xf32> {
    // CHECK-NEXT: "stablehlo.all_to_all"(%arg0) <{concat_dimension = 1 : i64
    // CHECK-NOT: reshape
    %y = "stablehlo.all_to_all"(%x) <{concat_dimension = 1 : i64, replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>, split_count = 4 : i64, split_dimension = 0 : i64}> : (tensor<8x2x3xf32>) -> tensor<2x8x3xf32>
    return %y : tensor<2x8x3xf32>
  }

  // CHECK-LABEL: func.func private @another_dimension_is_between
  func.func private @another_dimension_is_between(%x: tensor<4x2x3xf32>) -> tensor<1x2x12xf32> {
    // CHECK-NEXT: "stablehlo.all_to_all"(%arg0) <{concat_dimension = 2 : i64
    // CHECK-NOT: reshape
    %y = "stablehlo.all_to_all"(%x) <{concat_dimension = 2 : i64, replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>, split_count = 4 : i64, split_dimension = 0 : i64}> : (tensor<4x2x3xf32>) -> tensor<1x2x12xf32>
    return %y : tensor<1x2x12xf32>
  }

  // CHECK-LABEL: func.func private @parts_of_rows_are_concatenated
  func.func private @parts_of_rows_are_concatenated(%x: tensor<3x64x5xf32>) -> tensor<12x16x5xf32> {
    // CHECK: %[[P:.*]] = stablehlo.reshape %arg0 : (tensor<3x64x5xf32>) -> tensor<3x4x16x5xf32>
    // CHECK-NEXT: %[[T:.*]] = stablehlo.transpose %[[P]], dims = [1, 0, 2, 3] : (tensor<3x4x16x5xf32>) -> tensor<4x3x16x5xf32>
    // CHECK-NEXT: %[[R:.*]] = stablehlo.reshape %[[T]] : (tensor<4x3x16x5xf32>) -> tensor<12x16x5xf32>
    // CHECK-NEXT: "stablehlo.all_to_all"(%[[R]]) <{concat_dimension = 0 : i64,{{.*}}split_dimension = 0 : i64}> : (tensor<12x16x5xf32>) -> tensor<12x16x5xf32>
    %y = "stablehlo.all_to_all"(%x) <{concat_dimension = 0 : i64, replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>, split_count = 4 : i64, split_dimension = 1 : i64}> : (tensor<3x64x5xf32>) -> tensor<12x16x5xf32>
    return %y : tensor<12x16x5xf32>
  }

  // CHECK-LABEL: func.func private @parts_of_few_rows_of_blocks
  func.func private @parts_of_few_rows_of_blocks(%x: tensor<1x3x8x5x2xf32>) -> tensor<1x12x2x5x2xf32> {
    // CHECK: stablehlo.transpose {{.*}}, dims = [0, 2, 1, 3, 4, 5]
    // CHECK: "stablehlo.all_to_all"({{.*}}) <{concat_dimension = 1 : i64,{{.*}}split_dimension = 1 : i64}>
    %y = "stablehlo.all_to_all"(%x) <{concat_dimension = 1 : i64, replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>, split_count = 4 : i64, split_dimension = 2 : i64}> : (tensor<1x3x8x5x2xf32>) -> tensor<1x12x2x5x2xf32>
    return %y : tensor<1x12x2x5x2xf32>
  }

  // CHECK-LABEL: func.func private @other_dimensions_come_first
  func.func private @other_dimensions_come_first(%x: tensor<2x3x64x5xf32>) -> tensor<2x12x16x5xf32> {
    // CHECK-NEXT: "stablehlo.all_to_all"(%arg0) <{concat_dimension = 1 : i64,{{.*}}split_dimension = 2 : i64
    // CHECK-NOT: reshape
    %y = "stablehlo.all_to_all"(%x) <{concat_dimension = 1 : i64, replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>, split_count = 4 : i64, split_dimension = 2 : i64}> : (tensor<2x3x64x5xf32>) -> tensor<2x12x16x5xf32>
    return %y : tensor<2x12x16x5xf32>
  }

  // CHECK-LABEL: func.func private @other_dimensions_are_between
  func.func private @other_dimensions_are_between(%x: tensor<3x2x64x5xf32>) -> tensor<12x2x16x5xf32> {
    // CHECK-NEXT: "stablehlo.all_to_all"(%arg0) <{concat_dimension = 0 : i64,{{.*}}split_dimension = 2 : i64
    // CHECK-NOT: reshape
    %y = "stablehlo.all_to_all"(%x) <{concat_dimension = 0 : i64, replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>, split_count = 4 : i64, split_dimension = 2 : i64}> : (tensor<3x2x64x5xf32>) -> tensor<12x2x16x5xf32>
    return %y : tensor<12x2x16x5xf32>
  }

  // CHECK-LABEL: func.func private @the_last_dimension_is_split
  func.func private @the_last_dimension_is_split(%x: tensor<3x64xf32>) -> tensor<12x16xf32> {
    // CHECK-NEXT: "stablehlo.all_to_all"(%arg0) <{concat_dimension = 0 : i64,{{.*}}split_dimension = 1 : i64
    // CHECK-NOT: reshape
    %y = "stablehlo.all_to_all"(%x) <{concat_dimension = 0 : i64, replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>, split_count = 4 : i64, split_dimension = 1 : i64}> : (tensor<3x64xf32>) -> tensor<12x16xf32>
    return %y : tensor<12x16xf32>
  }

  // CHECK-LABEL: func.func private @parts_would_be_padded
  func.func private @parts_would_be_padded(%x: tensor<2x4x3xf32>) -> tensor<8x1x3xf32> {
    // CHECK-NEXT: "stablehlo.all_to_all"(%arg0) <{concat_dimension = 0 : i64,{{.*}}split_dimension = 1 : i64
    // CHECK-NOT: reshape
    %y = "stablehlo.all_to_all"(%x) <{concat_dimension = 0 : i64, replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>, split_count = 4 : i64, split_dimension = 1 : i64}> : (tensor<2x4x3xf32>) -> tensor<8x1x3xf32>
    return %y : tensor<8x1x3xf32>
  }

  // CHECK-LABEL: func.func private @one_dimension
  func.func private @one_dimension(%x: tensor<4x2xf32>) -> tensor<4x2xf32> {
    // CHECK-NEXT: "stablehlo.all_to_all"(%arg0)
    // CHECK-NEXT: return
    %y = "stablehlo.all_to_all"(%x) <{concat_dimension = 0 : i64, replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>, split_count = 4 : i64, split_dimension = 0 : i64}> : (tensor<4x2xf32>) -> tensor<4x2xf32>
    return %y : tensor<4x2xf32>
  }
}

// -----

// CHECK-LABEL: module @some_axes_are_automatic
module @some_axes_are_automatic {
  sdy.mesh @mesh = <["i"=4, "j"=2]>
  func.func public @main() attributes {sdy.manual_axes = #sdy<manual_axes{"i"}>} {
    return
  }

  // CHECK-LABEL: func.func private @an_exchange
  func.func private @an_exchange(%x: tensor<4x2x3xf32>) -> tensor<1x8x3xf32> {
    // CHECK-NEXT: "stablehlo.all_to_all"(%arg0) <{concat_dimension = 1 : i64
    // CHECK-NOT: reshape
    %y = "stablehlo.all_to_all"(%x) <{concat_dimension = 1 : i64, replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>, split_count = 4 : i64, split_dimension = 0 : i64}> : (tensor<4x2x3xf32>) -> tensor<1x8x3xf32>
    return %y : tensor<1x8x3xf32>
  }
}
