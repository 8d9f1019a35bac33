// As XLA writes the regions of Shardy where the dialect is not known, and jax.export of JAX in 2025.
module @jit_func attributes {mhlo.frontend_attributes = {xla.sdy.meshes = "{mesh = #sdy.mesh<[\22a\22=2, \22b\22=2]>}"}, mhlo.num_partitions = 4 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main(%arg0: tensor<4x4xf32> {mhlo.frontend_attributes = {xla.sdy.sharding = "#sdy.sharding<@mesh, [{\22a\22}, {}]>"}, mhlo.sharding = "{devices=[2,1,2]<=[4] last_tile_dim_replicate}"}, %arg1: tensor<4xf32>) -> (tensor<4x4xf32> {jax.result_info = "result"}, tensor<4xf32>) {
    %0 = stablehlo.custom_call @Sharding(%arg1) {mhlo.frontend_attributes = {xla.sdy.sharding = "#sdy.sharding_per_value<[<@mesh, [{\22a\22}]>]>"}, mhlo.sharding = "{devices=[2,2]<=[4] last_tile_dim_replicate}"} : (tensor<4xf32>) -> tensor<4xf32>
    %1:2 = stablehlo.custom_call @xla.sdy.GlobalToLocalShape(%arg0, %0) {has_side_effect = true, mhlo.frontend_attributes = {xla.sdy.in_shardings = "#sdy.sharding_per_value<[<@mesh, [{\22a\22}, {\22b\22}]>, <@mesh, [{\22a\22}], replicated={\22b\22}>]>", xla.sdy.manual_axes = "#sdy<manual_axes{\22a\22, \22b\22}>"}} : (tensor<4x4xf32>, tensor<4xf32>) -> (tensor<2x2xf32>, tensor<2xf32>)
    %2:2 = call @xla.sdy.inlinable_manual_computation_body(%1#0, %1#1) : (tensor<2x2xf32>, tensor<2xf32>) -> (tensor<2x2xf32>, tensor<2xf32>)
    %3:2 = stablehlo.custom_call @xla.sdy.LocalToGlobalShape(%2#0, %2#1) {mhlo.frontend_attributes = {xla.sdy.manual_axes = "#sdy<manual_axes{\22a\22, \22b\22}>", xla.sdy.out_shardings = "#sdy.sharding_per_value<[<@mesh, [{\22a\22}, {\22b\22}]>, <@mesh, [{\22a\22}]>]>"}} : (tensor<2x2xf32>, tensor<2xf32>) -> (tensor<4x4xf32>, tensor<4xf32>)
    %4 = stablehlo.custom_call @xla.sdy.FuncResultSharding(%3#0) {has_side_effect = true, mhlo.frontend_attributes = {xla.sdy.sharding = "#sdy.sharding_per_value<[<@mesh, [{\22a\22}, {}]>]>"}} : (tensor<4x4xf32>) -> tensor<4x4xf32>
    return %4, %3#1 : tensor<4x4xf32>, tensor<4xf32>
  }
  func.func private @xla.sdy.inlinable_manual_computation_body(%arg0: tensor<2x2xf32>, %arg1: tensor<2xf32>) -> (tensor<2x2xf32>, tensor<2xf32>) {
    %0 = "stablehlo.collective_permute"(%arg0) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 0>, source_target_pairs = dense<[[0, 2], [2, 0], [1, 3], [3, 1]]> : tensor<4x2xi64>}> : (tensor<2x2xf32>) -> tensor<2x2xf32>
    %1 = call @double(%arg1) : (tensor<2xf32>) -> tensor<2xf32>
    return %0, %1 : tensor<2x2xf32>, tensor<2xf32>
  }
  func.func private @double(%arg0: tensor<2xf32>) -> tensor<2xf32> {
    %0 = stablehlo.add %arg0, %arg0 : tensor<2xf32>
    return %0 : tensor<2xf32>
  }
}
