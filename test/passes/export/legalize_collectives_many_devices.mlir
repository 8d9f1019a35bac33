// RUN: shmap-opt %s --shmap-legalize-collectives=groups=one-axis | FileCheck %s

module {
  sdy.mesh @mesh = <["i"=2048, "j"=1024]>
  func.func public @main() attributes {sdy.manual_axes = #sdy<manual_axes{"i", "j"}>} {
    return
  }

  // CHECK-LABEL: func.func private @groups_of_too_many_devices_to_list_keep_their_axes
  func.func private @groups_of_too_many_devices_to_list_keep_their_axes(%x: tensor<4xf32>) -> tensor<8388608xf32> {
    // CHECK: channel_handle
    // CHECK-SAME: replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "j">, #stablehlo.axis_ref<name = "i">]>
    %0 = "stablehlo.all_gather"(%x) <{all_gather_dim = 0 : i64, replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "j">, #stablehlo.axis_ref<name = "i">]>}> : (tensor<4xf32>) -> tensor<8388608xf32>
    return %0 : tensor<8388608xf32>
  }
}
