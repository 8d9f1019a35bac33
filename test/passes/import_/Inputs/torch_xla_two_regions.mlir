// Two regions with what torch_xla computes between them on full arrays.
module @SyncTensorsGraph.57 attributes {mhlo.num_partitions = 4 : i32} {
  func.func @main(%x: tensor<8x4xf32>) -> (tensor<8x4xf32>, tensor<f32>) {
    %c = stablehlo.constant dense<0.0> : tensor<f32>
    %0 = stablehlo.custom_call @Sharding(%x) {mhlo.sharding = "{devices=[4,1]0,1,2,3}"} : (tensor<8x4xf32>) -> tensor<8x4xf32>
    %1 = stablehlo.custom_call @SPMDFullToShardShape(%0) {mhlo.sharding = "{manual}"} : (tensor<8x4xf32>) -> tensor<2x4xf32>
    %2 = "stablehlo.all_to_all"(%1) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, concat_dimension = 0 : i64, replica_groups = dense<[[0, 1, 2, 3]]> : tensor<1x4xi64>, split_count = 4 : i64, split_dimension = 1 : i64}> : (tensor<2x4xf32>) -> tensor<8x1xf32>
    %3 = stablehlo.custom_call @Sharding(%2) {mhlo.sharding = "{manual}"} : (tensor<8x1xf32>) -> tensor<8x1xf32>
    %4 = stablehlo.custom_call @SPMDShardToFullShape(%3) {mhlo.sharding = "{devices=[1,4]0,1,2,3}"} : (tensor<8x1xf32>) -> tensor<8x4xf32>
    %5 = stablehlo.tanh %4 : tensor<8x4xf32>
    %6 = stablehlo.custom_call @Sharding(%5) {mhlo.sharding = "{devices=[4,1]0,1,2,3}"} : (tensor<8x4xf32>) -> tensor<8x4xf32>
    %7 = stablehlo.custom_call @SPMDFullToShardShape(%6) {mhlo.sharding = "{manual}"} : (tensor<8x4xf32>) -> tensor<2x4xf32>
    %8 = stablehlo.reduce(%7 init: %c) applies stablehlo.add across dimensions = [0, 1] : (tensor<2x4xf32>, tensor<f32>) -> tensor<f32>
    %9 = "stablehlo.all_reduce"(%8) <{channel_handle = #stablehlo.channel_handle<handle = 2, type = 1>, replica_groups = dense<[[0, 1, 2, 3]]> : tensor<1x4xi64>, use_global_device_ids}> ({
    ^bb0(%l: tensor<f32>, %r: tensor<f32>):
      %s = stablehlo.add %l, %r : tensor<f32>
      stablehlo.return %s : tensor<f32>
    }) : (tensor<f32>) -> tensor<f32>
    %10 = stablehlo.custom_call @Sharding(%9) {mhlo.sharding = "{manual}"} : (tensor<f32>) -> tensor<f32>
    %11 = stablehlo.custom_call @SPMDShardToFullShape(%10) {mhlo.sharding = "{replicated}"} : (tensor<f32>) -> tensor<f32>
    return %5, %11 : tensor<8x4xf32>, tensor<f32>
  }
}
