// RUN: shmap-opt %s --allow-unregistered-dialect --shmap-import-custom-calls | FileCheck %s
// RUN: not shmap-opt %s --shmap-import-custom-calls 2>&1 | FileCheck %s --check-prefix=UNKNOWN

// UNKNOWN: error: {{.*}}unregistered dialect
module {
  // CHECK: @main(%arg0: tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"axis_0"}]>, ttcore.status = #ttcore<"presharded">})
  func.func @main(%x: tensor<8xf32> {ttcore.status = #ttcore<"presharded">}) -> tensor<8xf32> {
    %0 = stablehlo.custom_call @Sharding(%x) {mhlo.sharding = "{devices=[2]0,1}"} : (tensor<8xf32>) -> tensor<8xf32>
    %1 = stablehlo.custom_call @SPMDFullToShardShape(%0) {mhlo.sharding = "{manual}"} : (tensor<8xf32>) -> tensor<4xf32>
    %2 = stablehlo.custom_call @Sharding(%1) {mhlo.sharding = "{manual}"} : (tensor<4xf32>) -> tensor<4xf32>
    %3 = stablehlo.custom_call @SPMDShardToFullShape(%2) {mhlo.sharding = "{devices=[2]0,1}"} : (tensor<4xf32>) -> tensor<8xf32>
    return %3 : tensor<8xf32>
  }
}
