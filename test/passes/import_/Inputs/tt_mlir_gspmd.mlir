// As tt-mlir's tests write GSPMD: bfloat16, a body in a function, V2 shardings, all kinds of groups.
module @jit_tensor_parallel attributes {mhlo.num_partitions = 8 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main(%arg0: tensor<8x16xbf16>, %arg1: tensor<16x8xbf16>) -> (tensor<8x8xbf16> {jax.result_info = ""}) {
    %0 = stablehlo.custom_call @Sharding(%arg0) {mhlo.sharding = "{devices=[2,4]<=[8]}"} : (tensor<8x16xbf16>) -> tensor<8x16xbf16>
    %1 = stablehlo.custom_call @SPMDFullToShardShape(%0) {mhlo.sharding = "{manual}"} : (tensor<8x16xbf16>) -> tensor<4x4xbf16>
    %2 = stablehlo.custom_call @Sharding(%arg1) {mhlo.sharding = "{devices=[4,1,2]<=[2,4]T(1,0) last_tile_dim_replicate}"} : (tensor<16x8xbf16>) -> tensor<16x8xbf16>
    %3 = stablehlo.custom_call @SPMDFullToShardShape(%2) {mhlo.sharding = "{manual}"} : (tensor<16x8xbf16>) -> tensor<4x8xbf16>
    %4 = call @shmap_body(%1, %3) : (tensor<4x4xbf16>, tensor<4x8xbf16>) -> tensor<4x8xbf16>
    %5 = stablehlo.custom_call @Sharding(%4) {mhlo.sharding = "{manual}"} : (tensor<4x8xbf16>) -> tensor<4x8xbf16>
    %6 = stablehlo.custom_call @SPMDShardToFullShape(%5) {mhlo.sharding = "{devices=[2,1,4]<=[8] last_tile_dim_replicate}"} : (tensor<4x8xbf16>) -> tensor<8x8xbf16>
    return %6 : tensor<8x8xbf16>
  }
  func.func private @shmap_body(%arg0: tensor<4x4xbf16>, %arg1: tensor<4x8xbf16>) -> (tensor<4x8xbf16> {jax.result_info = "[('x',), None]"}) {
    %0 = stablehlo.dot_general %arg0, %arg1, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] : (tensor<4x4xbf16>, tensor<4x8xbf16>) -> tensor<4x8xbf16>
    %1 = "stablehlo.reduce_scatter"(%0) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, replica_groups = dense<[[0, 1, 2, 3], [4, 5, 6, 7]]> : tensor<2x4xi64>, scatter_dimension = 1 : i64, use_global_device_ids}> ({
    ^bb0(%arg2: tensor<bf16>, %arg3: tensor<bf16>):
      %3 = stablehlo.add %arg2, %arg3 : tensor<bf16>
      stablehlo.return %3 : tensor<bf16>
    }) : (tensor<4x8xbf16>) -> tensor<4x2xbf16>
    %2 = "stablehlo.all_gather"(%1) <{all_gather_dim = 1 : i64, channel_handle = #stablehlo.channel_handle<handle = 2, type = 1>, replica_groups = dense<[[0, 1, 2, 3], [4, 5, 6, 7]]> : tensor<2x4xi64>, use_global_device_ids}> : (tensor<4x2xbf16>) -> tensor<4x8xbf16>
    return %2 : tensor<4x8xbf16>
  }
}
