// A whole function in a region, as bridges from TensorFlow write it: nothing is split but the batch,
// and a parameter is whole on every device.
module @spmd_step attributes {mhlo.num_partitions = 4 : i32, mhlo.num_replicas = 1 : i32} {
  func.func @main(%arg0: tensor<8x3xf32>, %arg1: tensor<3xf32>) -> (tensor<8xf32>, tensor<3xf32>) {
    %0 = stablehlo.custom_call @Sharding(%arg0) {mhlo.sharding = "{devices=[4,1]0,1,2,3}"} : (tensor<8x3xf32>) -> tensor<8x3xf32>
    %1 = stablehlo.custom_call @SPMDFullToShardShape(%0) {mhlo.sharding = "{manual}"} : (tensor<8x3xf32>) -> tensor<2x3xf32>
    %2 = stablehlo.custom_call @Sharding(%arg1) {mhlo.sharding = "{replicated}"} : (tensor<3xf32>) -> tensor<3xf32>
    %3 = stablehlo.custom_call @SPMDFullToShardShape(%2) {mhlo.sharding = "{manual}"} : (tensor<3xf32>) -> tensor<3xf32>
    %4 = stablehlo.dot_general %1, %3, contracting_dims = [1] x [0] : (tensor<2x3xf32>, tensor<3xf32>) -> tensor<2xf32>
    %5 = stablehlo.dot_general %1, %4, contracting_dims = [0] x [0] : (tensor<2x3xf32>, tensor<2xf32>) -> tensor<3xf32>
    %6 = "stablehlo.all_reduce"(%5) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, replica_groups = dense<[[0, 1, 2, 3]]> : tensor<1x4xi64>, use_global_device_ids}> ({
    ^bb0(%l: tensor<f32>, %r: tensor<f32>):
      %s = stablehlo.add %l, %r : tensor<f32>
      stablehlo.return %s : tensor<f32>
    }) : (tensor<3xf32>) -> tensor<3xf32>
    %7 = stablehlo.custom_call @Sharding(%4) {mhlo.sharding = "{manual}"} : (tensor<2xf32>) -> tensor<2xf32>
    %8 = stablehlo.custom_call @SPMDShardToFullShape(%7) {mhlo.sharding = "{devices=[4]0,1,2,3}"} : (tensor<2xf32>) -> tensor<8xf32>
    %9 = stablehlo.custom_call @Sharding(%6) {mhlo.sharding = "{manual}"} : (tensor<3xf32>) -> tensor<3xf32>
    %10 = stablehlo.custom_call @SPMDShardToFullShape(%9) {mhlo.sharding = "{replicated}"} : (tensor<3xf32>) -> tensor<3xf32>
    return %8, %10 : tensor<8xf32>, tensor<3xf32>
  }
}
