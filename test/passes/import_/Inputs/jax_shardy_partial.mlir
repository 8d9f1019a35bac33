// As JAX writes a region that is manual along one axis for Shardy, with a constraint along the other.
module @jit_partial attributes {mhlo.num_partitions = 8 : i32, mhlo.num_replicas = 1 : i32} {
  sdy.mesh @mesh = <["i"=4, "j"=2]>
  func.func public @main(%arg0: tensor<8x4xf32>) -> (tensor<8x4xf32> {jax.result_info = "result"}) {
    %0 = sdy.manual_computation(%arg0) in_shardings=[<@mesh, [{"i", ?}, {?}]>] out_shardings=[<@mesh, [{"i", ?}, {?}]>] manual_axes={"i"} (%arg1: tensor<2x4xf32>) {
      %1 = stablehlo.sine %arg1 : tensor<2x4xf32>
      %2 = sdy.sharding_constraint %1 <@mesh, [{}, {"j"}]> : tensor<2x4xf32>
      %3 = "stablehlo.all_gather"(%2) <{all_gather_dim = 0 : i64, channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, replica_groups = dense<[[0, 2, 4, 6], [1, 3, 5, 7]]> : tensor<2x4xi64>, use_global_device_ids}> : (tensor<2x4xf32>) -> tensor<8x4xf32>
      %4 = "stablehlo.reduce_scatter"(%3) <{channel_handle = #stablehlo.channel_handle<handle = 2, type = 1>, replica_groups = dense<[[0, 2, 4, 6], [1, 3, 5, 7]]> : tensor<2x4xi64>, scatter_dimension = 0 : i64, use_global_device_ids}> ({
      ^bb0(%l: tensor<f32>, %r: tensor<f32>):
        %5 = stablehlo.add %l, %r : tensor<f32>
        stablehlo.return %5 : tensor<f32>
      }) : (tensor<8x4xf32>) -> tensor<2x4xf32>
      sdy.return %4 : tensor<2x4xf32>
    } : (tensor<8x4xf32>) -> tensor<8x4xf32>
    return %0 : tensor<8x4xf32>
  }
}
