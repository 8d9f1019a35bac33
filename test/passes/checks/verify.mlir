// RUN: shmap-opt %s --shmap-verify --mlir-print-ir-after-all --split-input-file 2>&1 | FileCheck %s

// A module that fits comes out as it was.
// CHECK: IR Dump After shmap-verify
// CHECK-LABEL: module @every_collective_that_fits
module @every_collective_that_fits {
  sdy.mesh @mesh = <["i"=2, "j"=2, "k"=2]>
  // CHECK: sdy.manual_axes = #sdy<manual_axes{"i", "j"}>, shmap.outer_manual_axes = ["k"]
  func.func public @main(
      %token: !stablehlo.token,
      %x: tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"j", "i"}]>},
      %scalar: tensor<f32> {sdy.sharding = #sdy.sharding<@mesh, []>})
      -> (!stablehlo.token, tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}]>})
      attributes {sdy.manual_axes = #sdy<manual_axes{"i", "j"}>,
                  shmap.outer_manual_axes = ["k"]} {
    return %token, %x : !stablehlo.token, tensor<4xf32>
  }

  // CHECK: func.func private @groups_over_axes_of_this_region_and_of_the_one_around_it
  func.func private @groups_over_axes_of_this_region_and_of_the_one_around_it(%x: tensor<4xf32>) -> tensor<32xf32> {
    %0 = "stablehlo.all_gather"(%x) <{all_gather_dim = 0 : i64, replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "k">, #stablehlo.axis_ref<name = "i">, #stablehlo.axis_ref<name = "j">]>}> : (tensor<4xf32>) -> tensor<32xf32>
    return %0 : tensor<32xf32>
  }

  // CHECK: func.func private @groups_of_device_ids
  func.func private @groups_of_device_ids(%x: tensor<4xf32>) -> tensor<4xf32> {
    %0 = "stablehlo.all_to_all"(%x) <{split_dimension = 0 : i64, concat_dimension = 0 : i64, split_count = 4 : i64, replica_groups = dense<[[0, 1, 2, 3], [4, 5, 6, 7]]> : tensor<2x4xi64>}> : (tensor<4xf32>) -> tensor<4xf32>
    return %0 : tensor<4xf32>
  }

  // CHECK: func.func private @a_reduction_over_groups_of_unequal_sizes
  func.func private @a_reduction_over_groups_of_unequal_sizes(%x: tensor<4xf32>) -> tensor<4xf32> {
    %0 = "stablehlo.all_reduce"(%x) <{replica_groups = dense<[[0, 1, 2, 3, -1], [4, 5, 6, -1, -1], [7, -1, -1, -1, -1]]> : tensor<3x5xi64>}> ({
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %s = stablehlo.add %a, %b : tensor<f32>
      stablehlo.return %s : tensor<f32>
    }) : (tensor<4xf32>) -> tensor<4xf32>
    return %0 : tensor<4xf32>
  }

  // CHECK: func.func private @a_permutation_of_some_devices
  func.func private @a_permutation_of_some_devices(%x: tensor<4xf32>) -> tensor<4xf32> {
    %0 = "stablehlo.collective_permute"(%x) <{source_target_pairs = dense<[[0, 7], [7, 0]]> : tensor<2x2xi64>}> : (tensor<4xf32>) -> tensor<4xf32>
    return %0 : tensor<4xf32>
  }

  // A nested region has been through its own verification, with its own axes.
  // CHECK: func.func private @a_collective_of_a_nested_region
  func.func private @a_collective_of_a_nested_region(%x: tensor<4xf32>) -> tensor<8xf32> {
    %0 = "stablehlo.all_gather"(%x) <{all_gather_dim = 0 : i64, channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>, use_global_device_ids}> : (tensor<4xf32>) -> tensor<8xf32>
    return %0 : tensor<8xf32>
  }
}
