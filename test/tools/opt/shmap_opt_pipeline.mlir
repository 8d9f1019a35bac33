// One flag stands for the passes that lower shard_map, here and in a textual pipeline.
// RUN: shmap-opt %s --shmap-pipeline='partitioner=shardy groups=ids' | FileCheck %s --check-prefix=SHARDY
// RUN: shmap-opt %s --pass-pipeline='builtin.module(shmap-pipeline{partitioner=shardy groups=ids},cse)' | FileCheck %s --check-prefix=SHARDY
// RUN: shmap-opt %s --shmap-pipeline | FileCheck %s --check-prefix=GSPMD
// RUN: not shmap-opt %s --shmap-pipeline=groups=both 2>&1 | FileCheck %s --check-prefix=VALUE
// RUN: not shmap-opt %s --shmap-pipeline=unit=1 2>&1 | FileCheck %s --check-prefix=OPTION

// SHARDY: sdy.manual_computation
// SHARDY: replica_groups = dense<{{\[\[}}0, 1]]>
// GSPMD: custom_call @SPMDFullToShardShape
// GSPMD: replica_group_mesh_axes
// VALUE: error: shmap-legalize-collectives: option groups=both is not one of axes, one-axis, ids
// OPTION: error: shmap-pipeline has no option 'unit'; its options: partitioner, groups
module {
  sdy.mesh @mesh = <["i"=2]>
  func.func public @main(
      %x: tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"i"}]>})
      -> (tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}]>})
      attributes {sdy.manual_axes = #sdy<manual_axes{"i"}>} {
    %0 = "stablehlo.all_reduce"(%x) <{replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>}> ({
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %1 = stablehlo.add %a, %b : tensor<f32>
      stablehlo.return %1 : tensor<f32>
    }) : (tensor<4xf32>) -> tensor<4xf32>
    return %0 : tensor<4xf32>
  }
}
