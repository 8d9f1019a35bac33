// RUN: shmap-opt %s --shmap-elide-trivial-collectives | FileCheck %s

module {
  sdy.mesh @mesh = <["i"=2, "one"=1, "uno"=1]>
  func.func public @main() attributes {sdy.manual_axes = #sdy<manual_axes{"i", "one", "uno"}>} {
    return
  }

  // CHECK-LABEL: func.func private @a_reduction_over_an_axis_of_size_one
  func.func private @a_reduction_over_an_axis_of_size_one(%x: tensor<4xf32>) -> tensor<4xf32> {
    // CHECK-NEXT: return %arg0 : tensor<4xf32>
    %0 = "stablehlo.all_reduce"(%x) <{replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "one">]>}> ({
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %s = stablehlo.add %a, %b : tensor<f32>
      stablehlo.return %s : tensor<f32>
    }) : (tensor<4xf32>) -> tensor<4xf32>
    return %0 : tensor<4xf32>
  }

  // CHECK-LABEL: func.func private @a_gather_over_several_axes_of_size_one
  func.func private @a_gather_over_several_axes_of_size_one(%x: tensor<4xf32>) -> tensor<4xf32> {
    // CHECK-NEXT: return %arg0 : tensor<4xf32>
    %0 = "stablehlo.all_gather"(%x) <{all_gather_dim = 0 : i64, replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "one">, #stablehlo.axis_ref<name = "uno">]>}> : (tensor<4xf32>) -> tensor<4xf32>
    return %0 : tensor<4xf32>
  }

  // CHECK-LABEL: func.func private @a_scattered_sum_over_an_axis_of_size_one
  func.func private @a_scattered_sum_over_an_axis_of_size_one(%x: tensor<4xf32>) -> tensor<4xf32> {
    // CHECK-NEXT: return %arg0 : tensor<4xf32>
    %0 = "stablehlo.reduce_scatter"(%x) <{scatter_dimension = 0 : i64, replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "one">]>}> ({
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %s = stablehlo.add %a, %b : tensor<f32>
      stablehlo.return %s : tensor<f32>
    }) : (tensor<4xf32>) -> tensor<4xf32>
    return %0 : tensor<4xf32>
  }

  // CHECK-LABEL: func.func private @an_exchange_over_an_axis_of_size_one
  func.func private @an_exchange_over_an_axis_of_size_one(%x: tensor<4xf32>) -> tensor<4xf32> {
    // CHECK-NEXT: return %arg0 : tensor<4xf32>
    %0 = "stablehlo.all_to_all"(%x) <{split_dimension = 0 : i64, concat_dimension = 0 : i64, split_count = 1 : i64, replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "one">]>}> : (tensor<4xf32>) -> tensor<4xf32>
    return %0 : tensor<4xf32>
  }

  // CHECK-LABEL: func.func private @a_broadcast_over_an_axis_of_size_one
  func.func private @a_broadcast_over_an_axis_of_size_one(%x: tensor<4xf32>) -> tensor<4xf32> {
    // CHECK-NEXT: return %arg0 : tensor<4xf32>
    %0 = "stablehlo.collective_broadcast"(%x) <{replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "one">]>}> : (tensor<4xf32>) -> tensor<4xf32>
    return %0 : tensor<4xf32>
  }

  // CHECK-LABEL: func.func private @groups_of_one_device
  func.func private @groups_of_one_device(%x: tensor<4xf32>) -> tensor<4xf32> {
    // CHECK-NEXT: return %arg0 : tensor<4xf32>
    %0 = "stablehlo.all_reduce"(%x) <{replica_groups = dense<[[0], [1]]> : tensor<2x1xi64>}> ({
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %s = stablehlo.add %a, %b : tensor<f32>
      stablehlo.return %s : tensor<f32>
    }) : (tensor<4xf32>) -> tensor<4xf32>
    return %0 : tensor<4xf32>
  }

  // CHECK-LABEL: func.func private @a_permutation_of_every_device_to_itself
  func.func private @a_permutation_of_every_device_to_itself(%x: tensor<4xf32>) -> tensor<4xf32> {
    // CHECK-NEXT: return %arg0 : tensor<4xf32>
    %0 = "stablehlo.collective_permute"(%x) <{source_target_pairs = dense<[[1, 1], [0, 0]]> : tensor<2x2xi64>}> : (tensor<4xf32>) -> tensor<4xf32>
    return %0 : tensor<4xf32>
  }

  // CHECK-LABEL: func.func private @a_permutation_that_leaves_a_device_without_data_stays
  func.func private @a_permutation_that_leaves_a_device_without_data_stays(%x: tensor<4xf32>) -> tensor<4xf32> {
    // CHECK-NEXT: "stablehlo.collective_permute"
    %0 = "stablehlo.collective_permute"(%x) <{source_target_pairs = dense<[[1, 1]]> : tensor<1x2xi64>}> : (tensor<4xf32>) -> tensor<4xf32>
    return %0 : tensor<4xf32>
  }

  // CHECK-LABEL: func.func private @a_permutation_that_moves_something_stays
  func.func private @a_permutation_that_moves_something_stays(%x: tensor<4xf32>) -> tensor<4xf32> {
    // CHECK-NEXT: "stablehlo.collective_permute"
    %0 = "stablehlo.collective_permute"(%x) <{source_target_pairs = dense<[[1, 0], [0, 1]]> : tensor<2x2xi64>}> : (tensor<4xf32>) -> tensor<4xf32>
    return %0 : tensor<4xf32>
  }

  // CHECK-LABEL: func.func private @one_larger_axis_is_enough_to_stay
  func.func private @one_larger_axis_is_enough_to_stay(%x: tensor<4xf32>) -> tensor<4xf32> {
    // CHECK-NEXT: "stablehlo.all_reduce"
    %0 = "stablehlo.all_reduce"(%x) <{replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "one">, #stablehlo.axis_ref<name = "i">]>}> ({
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %s = stablehlo.add %a, %b : tensor<f32>
      stablehlo.return %s : tensor<f32>
    }) : (tensor<4xf32>) -> tensor<4xf32>
    return %0 : tensor<4xf32>
  }

  // CHECK-LABEL: func.func private @a_collective_of_a_nested_region_stays
  func.func private @a_collective_of_a_nested_region_stays(%x: tensor<4xf32>) -> tensor<4xf32> {
    // CHECK-NEXT: "stablehlo.all_gather"
    %0 = "stablehlo.all_gather"(%x) <{all_gather_dim = 0 : i64, channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, replica_groups = dense<[[0], [1]]> : tensor<2x1xi64>, use_global_device_ids}> : (tensor<4xf32>) -> tensor<4xf32>
    return %0 : tensor<4xf32>
  }

  // CHECK-LABEL: func.func private @a_sum_that_promotes_its_elements_stays
  func.func private @a_sum_that_promotes_its_elements_stays(%x: tensor<4xbf16>) -> tensor<4xf32> {
    // CHECK-NEXT: "stablehlo.all_reduce"
    %0 = "stablehlo.all_reduce"(%x) <{replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "one">]>}> ({
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %s = stablehlo.add %a, %b : tensor<f32>
      stablehlo.return %s : tensor<f32>
    }) : (tensor<4xbf16>) -> tensor<4xf32>
    return %0 : tensor<4xf32>
  }
}
