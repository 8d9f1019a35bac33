// RUN: shmap-opt %s --shmap-legalize-collectives | FileCheck %s --check-prefixes=CHECK,AXES
// RUN: shmap-opt %s --shmap-legalize-collectives=groups=one-axis | FileCheck %s --check-prefixes=CHECK,AXES,SEVERAL
// RUN: shmap-opt %s --shmap-legalize-collectives=groups=ids | FileCheck %s --check-prefixes=CHECK,IDS,SEVERAL
// RUN: shmap-opt %s --shmap-legalize-collectives=partitioner=shardy | FileCheck %s --check-prefix=SHARDY

module {
  sdy.mesh @mesh = <["i"=2, "j"=1, "k"=4]>
  func.func public @main() attributes {sdy.manual_axes = #sdy<manual_axes{"i", "j", "k"}>} {
    return
  }

  // CHECK-LABEL: func.func private @a_reduction_gets_a_channel_and_global_ids
  func.func private @a_reduction_gets_a_channel_and_global_ids(%x: tensor<4xf32>) -> tensor<4xf32> {
    // CHECK: "stablehlo.all_reduce"(%arg0) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>,
    // AXES-SAME: replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "k">]>
    // IDS-SAME{LITERAL}: replica_groups = dense<[[0, 1, 2, 3], [4, 5, 6, 7]]> : tensor<2x4xi64>
    // CHECK-SAME: use_global_device_ids
    %0 = "stablehlo.all_reduce"(%x) <{replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "k">]>}> ({
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %s = stablehlo.add %a, %b : tensor<f32>
      stablehlo.return %s : tensor<f32>
    }) : (tensor<4xf32>) -> tensor<4xf32>
    return %0 : tensor<4xf32>
  }

  // CHECK-LABEL: func.func private @a_gather_over_axes_out_of_order
  func.func private @a_gather_over_axes_out_of_order(%x: tensor<4xf32>) -> tensor<32xf32> {
    // CHECK: "stablehlo.all_gather"
    // CHECK-SAME: channel_handle
    // SEVERAL-SAME{LITERAL}: dense<[[0, 4, 1, 5, 2, 6, 3, 7]]> : tensor<1x8xi64>
    // CHECK-SAME: use_global_device_ids
    %0 = "stablehlo.all_gather"(%x) <{all_gather_dim = 0 : i64, replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "k">, #stablehlo.axis_ref<name = "i">]>}> : (tensor<4xf32>) -> tensor<32xf32>
    return %0 : tensor<32xf32>
  }

  // CHECK-LABEL: func.func private @a_permutation_gets_only_a_channel
  func.func private @a_permutation_gets_only_a_channel(%x: tensor<4xf32>) -> tensor<4xf32> {
    // CHECK: "stablehlo.collective_permute"
    // CHECK-SAME: channel_handle
    // CHECK-NOT: use_global_device_ids
    // CHECK: return
    %0 = "stablehlo.collective_permute"(%x) <{source_target_pairs = dense<[[0, 1], [1, 0]]> : tensor<2x2xi64>}> : (tensor<4xf32>) -> tensor<4xf32>
    return %0 : tensor<4xf32>
  }

  // CHECK-LABEL: func.func private @an_all_to_all_gets_only_a_channel
  func.func private @an_all_to_all_gets_only_a_channel(%x: tensor<4xf32>) -> tensor<4xf32> {
    // CHECK: "stablehlo.all_to_all"
    // CHECK-SAME: channel_handle
    // CHECK-NOT: use_global_device_ids
    // CHECK: return
    %0 = "stablehlo.all_to_all"(%x) <{split_dimension = 0 : i64, concat_dimension = 0 : i64, split_count = 4 : i64, replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "k">]>}> : (tensor<4xf32>) -> tensor<4xf32>
    return %0 : tensor<4xf32>
  }

  // CHECK-LABEL: func.func private @device_ids_stay
  func.func private @device_ids_stay(%x: tensor<4xf32>) -> tensor<4xf32> {
    // CHECK{LITERAL}: replica_groups = dense<[[7, 0, 1, 2, 3, 4, 5, 6]]> : tensor<1x8xi64>
    %0 = "stablehlo.collective_broadcast"(%x) <{replica_groups = dense<[[7, 0, 1, 2, 3, 4, 5, 6]]> : tensor<1x8xi64>}> : (tensor<4xf32>) -> tensor<4xf32>
    return %0 : tensor<4xf32>
  }

  // CHECK-LABEL: func.func private @the_index_along_the_major_axis_is_a_quotient
  func.func private @the_index_along_the_major_axis_is_a_quotient() -> tensor<i32> {
    // CHECK-NEXT: %[[ID:.*]] = stablehlo.partition_id {mhlo.sharding = "{manual}"} : tensor<ui32>
    // CHECK-NEXT: %[[FOUR:.*]] = stablehlo.constant dense<4> : tensor<ui32>
    // CHECK-NEXT: %[[QUOTIENT:.*]] = stablehlo.divide %[[ID]], %[[FOUR]]
    // CHECK-NEXT: %[[INDEX:.*]] = stablehlo.convert %[[QUOTIENT]] : (tensor<ui32>) -> tensor<i32>
    // CHECK-NEXT: return %[[INDEX]]
    %0 = stablehlo.custom_call @shmap.axis_index() {api_version = 4 : i32, backend_config = {axes = ["i"]}} : () -> tensor<i32>
    return %0 : tensor<i32>
  }

  // CHECK-LABEL: func.func private @the_index_along_the_minor_axis_is_a_remainder
  // SHARDY-LABEL: func.func private @the_index_along_the_minor_axis_is_a_remainder
  func.func private @the_index_along_the_minor_axis_is_a_remainder() -> tensor<i32> {
    // SHARDY-NEXT: stablehlo.partition_id : tensor<ui32>
    // CHECK-NEXT: %[[ID:.*]] = stablehlo.partition_id
    // CHECK-NEXT: %[[FOUR:.*]] = stablehlo.constant dense<4> : tensor<ui32>
    // CHECK-NEXT: %[[REST:.*]] = stablehlo.remainder %[[ID]], %[[FOUR]]
    // CHECK-NEXT: stablehlo.convert %[[REST]]
    %0 = stablehlo.custom_call @shmap.axis_index() {api_version = 4 : i32, backend_config = {axes = ["k"]}} : () -> tensor<i32>
    return %0 : tensor<i32>
  }

  // CHECK-LABEL: func.func private @the_index_along_all_axes_is_the_partition_id
  func.func private @the_index_along_all_axes_is_the_partition_id() -> tensor<i32> {
    // CHECK-NEXT: %[[ID:.*]] = stablehlo.partition_id
    // CHECK-NEXT: stablehlo.convert %[[ID]]
    %0 = stablehlo.custom_call @shmap.axis_index() {api_version = 4 : i32, backend_config = {axes = ["i", "j", "k"]}} : () -> tensor<i32>
    return %0 : tensor<i32>
  }

  // CHECK-LABEL: func.func private @the_index_along_axes_out_of_order_has_two_digits
  func.func private @the_index_along_axes_out_of_order_has_two_digits() -> tensor<i32> {
    // CHECK-NEXT: %[[ID:.*]] = stablehlo.partition_id
    // CHECK: %[[K:.*]] = stablehlo.remainder %[[ID]]
    // CHECK: %[[TWO:.*]] = stablehlo.constant dense<2> : tensor<ui32>
    // CHECK-NEXT: %[[MAJOR:.*]] = stablehlo.multiply %[[K]], %[[TWO]]
    // CHECK: %[[I:.*]] = stablehlo.divide %[[ID]]
    // CHECK-NEXT: stablehlo.add %[[MAJOR]], %[[I]]
    %0 = stablehlo.custom_call @shmap.axis_index() {api_version = 4 : i32, backend_config = {axes = ["k", "i"]}} : () -> tensor<i32>
    return %0 : tensor<i32>
  }

  // CHECK-LABEL: func.func private @the_index_along_an_axis_of_size_one_is_zero
  func.func private @the_index_along_an_axis_of_size_one_is_zero() -> tensor<i32> {
    // CHECK-NEXT: %[[ZERO:.*]] = stablehlo.constant dense<0> : tensor<i32>
    // CHECK-NEXT: return %[[ZERO]]
    %0 = stablehlo.custom_call @shmap.axis_index() {api_version = 4 : i32, backend_config = {axes = ["j"]}} : () -> tensor<i32>
    return %0 : tensor<i32>
  }
}
