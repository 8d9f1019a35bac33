// RUN: shmap-opt %s --shmap-import-custom-calls=mesh=i=2,j=4 --split-input-file --verify-diagnostics

module @axes_of_other_sizes {
  func.func public @main(%x: tensor<8xf32>) -> tensor<8xf32> {
    %0 = stablehlo.custom_call @Sharding(%x) {mhlo.sharding = "{devices=[4,2]<=[8] last_tile_dim_replicate}"} : (tensor<8xf32>) -> tensor<8xf32>
    // expected-error @+1 {{the sharding is no product of axes of @mesh [i=2, j=4]; leave the option out}}
    %1 = stablehlo.custom_call @SPMDFullToShardShape(%0) {mhlo.sharding = "{manual}"} : (tensor<8xf32>) -> tensor<2xf32>
    %3 = stablehlo.custom_call @SPMDShardToFullShape(%1) {mhlo.sharding = "{devices=[8]<=[8]}"} : (tensor<2xf32>) -> tensor<16xf32>
    return %x : tensor<8xf32>
  }
}

// -----

module @other_devices {
  func.func public @main(%x: tensor<8xf32>) -> tensor<8xf32> {
    %0 = stablehlo.custom_call @Sharding(%x) {mhlo.sharding = "{devices=[4]<=[4]}"} : (tensor<8xf32>) -> tensor<8xf32>
    // expected-error @+1 {{the sharding names 4 devices, and @mesh [i=2, j=4] has 8}}
    %1 = stablehlo.custom_call @SPMDFullToShardShape(%0) {mhlo.sharding = "{manual}"} : (tensor<8xf32>) -> tensor<2xf32>
    return %x : tensor<8xf32>
  }
}

// -----

module @other_partitions attributes {mhlo.num_partitions = 4 : i32} {
  // expected-error @+1 {{the module runs on 4 devices, and @mesh [i=2, j=4] has 8}}
  func.func public @main(%x: tensor<8xf32>) -> tensor<8xf32> {
    %0 = stablehlo.custom_call @Sharding(%x) {mhlo.sharding = "{replicated}"} : (tensor<8xf32>) -> tensor<8xf32>
    %1 = stablehlo.custom_call @SPMDFullToShardShape(%0) {mhlo.sharding = "{manual}"} : (tensor<8xf32>) -> tensor<8xf32>
    return %x : tensor<8xf32>
  }
}
