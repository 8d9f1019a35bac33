// RUN: shmap-opt %s --shmap-inline-meshes | FileCheck %s

// CHECK-NOT: sdy.mesh
// CHECK-NOT: @mesh
module {
  sdy.mesh @mesh = <["i"=2, "j"=2]>
  sdy.mesh @other = <["k"=4]>
  sdy.mesh @moved = <["k"=4], device_ids=[1, 0, 3, 2]>

  // CHECK-LABEL: func.func private @shardings_of_arguments_and_results
  // CHECK-SAME: sdy.sharding = #sdy.sharding<mesh<["i"=2, "j"=2]>, [{"i", ?}], replicated={"j"}>
  // CHECK-SAME: sdy.sharding = #sdy.sharding<mesh<["k"=4]>, [{"k"}]>, some.note
  func.func private @shardings_of_arguments_and_results(
      %x: tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"i", ?}], replicated={"j"}>})
      -> (tensor<4xf32> {sdy.sharding = #sdy.sharding<@other, [{"k"}]>, some.note = "kept"}) {
    return %x : tensor<4xf32>
  }

  // CHECK-LABEL: func.func private @groups_named_by_axes
  func.func private @groups_named_by_axes(%x: tensor<4xf32>) -> tensor<4xf32> {
    // CHECK{LITERAL}: replica_group_mesh_axes<mesh = #stablehlo.mesh<axes=[<name = "i", size = 2>, <name = "j", size = 2>]>, axes = [#stablehlo.axis_ref<name = "j">]>
    %0 = "stablehlo.collective_broadcast"(%x) <{replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "j">]>}> : (tensor<4xf32>) -> tensor<4xf32>
    return %0 : tensor<4xf32>
  }

  // CHECK-LABEL: func.func private @groups_that_list_device_ids
  func.func private @groups_that_list_device_ids(%x: tensor<4xf32>) -> tensor<4xf32> {
    // CHECK{LITERAL}: replica_groups = dense<[[0, 1, 2, 3]]>
    %0 = "stablehlo.collective_broadcast"(%x) <{replica_groups = dense<[[0, 1, 2, 3]]> : tensor<1x4xi64>}> : (tensor<4xf32>) -> tensor<4xf32>
    return %0 : tensor<4xf32>
  }

  // CHECK-LABEL: func.func private @groups_on_a_mesh_with_device_ids
  func.func private @groups_on_a_mesh_with_device_ids(%x: tensor<4xf32>) -> tensor<4xf32> {
    // CHECK{LITERAL}: mesh = #stablehlo.mesh<axes=[<name = "k", size = 4>], device_ids=dense<[1, 0, 3, 2]>
    %0 = "stablehlo.collective_broadcast"(%x) <{replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @moved, axes = [#stablehlo.axis_ref<name = "k">]>}> : (tensor<4xf32>) -> tensor<4xf32>
    return %0 : tensor<4xf32>
  }

  // CHECK-LABEL: func.func private @shardings_on_operations
  func.func private @shardings_on_operations(%x: tensor<4xf32>) -> tensor<4xf32> {
    // CHECK: stablehlo.negate
    // CHECK-SAME{LITERAL}: sdy.sharding = #sdy.sharding_per_value<[<mesh<["i"=2, "j"=2]>, [{"i"}]>]>
    %0 = stablehlo.negate %x {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"i"}]>]>} : tensor<4xf32>
    // CHECK: sdy.sharding_constraint
    // CHECK-SAME{LITERAL}: <mesh<["i"=2, "j"=2]>, [{"j"}]>
    %1 = sdy.sharding_constraint %0 <@mesh, [{"j"}]> : tensor<4xf32>
    return %1 : tensor<4xf32>
  }

  // CHECK-LABEL: func.func private @a_manual_computation
  func.func private @a_manual_computation(%x: tensor<4xf32>) -> tensor<4xf32> {
    // CHECK{LITERAL}: in_shardings=[<mesh<["i"=2, "j"=2]>, [{"i"}]>] out_shardings=[<mesh<["i"=2, "j"=2]>, [{"i"}]>] manual_axes={"i"}
    %0 = sdy.manual_computation(%x) in_shardings=[<@mesh, [{"i"}]>] out_shardings=[<@mesh, [{"i"}]>] manual_axes={"i"} (%b: tensor<2xf32>) {
      sdy.return %b : tensor<2xf32>
    } : (tensor<4xf32>) -> tensor<4xf32>
    return %0 : tensor<4xf32>
  }
}
