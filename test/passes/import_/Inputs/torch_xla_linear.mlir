// As torch_xla marks a region: inline, devices listed one by one, and a replicated parameter that
// enters without a call.
module @SyncTensorsGraph.31 attributes {mhlo.cross_program_prefetches = [], mhlo.is_dynamic = false, mhlo.num_partitions = 4 : i32, mhlo.use_auto_spmd_partitioning = false} {
  func.func @main(%bias: tensor<6xf32> {mhlo.sharding = "{replicated}"}, %x: tensor<8x4xf32> {mhlo.sharding = "{devices=[2,2]0,1,2,3}"}, %w: tensor<4x6xf32> {mhlo.sharding = "{devices=[2,1,2]0,2,1,3 last_tile_dim_replicate}"}) -> tensor<8x6xf32> {
    %0 = stablehlo.custom_call @Sharding(%x) {backend_config = "", mhlo.sharding = "{devices=[2,2]0,1,2,3}"} : (tensor<8x4xf32>) -> tensor<8x4xf32>
    %1 = stablehlo.custom_call @SPMDFullToShardShape(%0) {backend_config = "", mhlo.sharding = "{manual}"} : (tensor<8x4xf32>) -> tensor<4x2xf32>
    %2 = stablehlo.custom_call @Sharding(%w) {backend_config = "", mhlo.sharding = "{devices=[2,1,2]0,2,1,3 last_tile_dim_replicate}"} : (tensor<4x6xf32>) -> tensor<4x6xf32>
    %3 = stablehlo.custom_call @SPMDFullToShardShape(%2) {backend_config = "", mhlo.sharding = "{manual}"} : (tensor<4x6xf32>) -> tensor<2x6xf32>
    %4 = stablehlo.dot_general %1, %3, contracting_dims = [1] x [0] : (tensor<4x2xf32>, tensor<2x6xf32>) -> tensor<4x6xf32>
    %5 = "stablehlo.all_reduce"(%4) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 0>, replica_groups = dense<[[0, 1], [2, 3]]> : tensor<2x2xi64>, use_global_device_ids}> ({
    ^bb0(%l: tensor<f32>, %r: tensor<f32>):
      %s = stablehlo.add %l, %r : tensor<f32>
      stablehlo.return %s : tensor<f32>
    }) : (tensor<4x6xf32>) -> tensor<4x6xf32>
    %6 = stablehlo.broadcast_in_dim %bias, dims = [1] : (tensor<6xf32>) -> tensor<4x6xf32>
    %7 = stablehlo.add %5, %6 : tensor<4x6xf32>
    %8 = stablehlo.custom_call @Sharding(%7) {backend_config = "", mhlo.sharding = "{manual}"} : (tensor<4x6xf32>) -> tensor<4x6xf32>
    %9 = stablehlo.custom_call @SPMDShardToFullShape(%8) {backend_config = "", mhlo.sharding = "{devices=[2,1,2]0,1,2,3 last_tile_dim_replicate}"} : (tensor<4x6xf32>) -> tensor<8x6xf32>
    return %9 : tensor<8x6xf32>
  }
}
