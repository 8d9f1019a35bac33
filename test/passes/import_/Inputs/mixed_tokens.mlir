// Tokens that enter and leave beside arrays, and integers of 64 bits.
module @tokens attributes {mhlo.num_partitions = 2 : i32} {
  func.func public @main(%t: !stablehlo.token, %x: tensor<4xi64>) -> (!stablehlo.token, tensor<8xi64>) {
    %0 = stablehlo.custom_call @Sharding(%x) {mhlo.sharding = "{devices=[2]<=[2]}"} : (tensor<4xi64>) -> tensor<4xi64>
    %1 = stablehlo.custom_call @SPMDFullToShardShape(%0) {mhlo.sharding = "{manual}"} : (tensor<4xi64>) -> tensor<2xi64>
    %2:2 = call @body(%t, %1) : (!stablehlo.token, tensor<2xi64>) -> (!stablehlo.token, tensor<4xi64>)
    %3 = stablehlo.custom_call @Sharding(%2#1) {mhlo.sharding = "{manual}"} : (tensor<4xi64>) -> tensor<4xi64>
    %4 = stablehlo.custom_call @SPMDShardToFullShape(%3) {mhlo.sharding = "{devices=[2]<=[2]}"} : (tensor<4xi64>) -> tensor<8xi64>
    return %2#0, %4 : !stablehlo.token, tensor<8xi64>
  }
  func.func private @body(%t: !stablehlo.token, %x: tensor<2xi64>) -> (!stablehlo.token, tensor<4xi64>) {
    %0 = "stablehlo.all_gather"(%x) <{all_gather_dim = 0 : i64, channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>, use_global_device_ids}> : (tensor<2xi64>) -> tensor<4xi64>
    return %t, %0 : !stablehlo.token, tensor<4xi64>
  }
}
