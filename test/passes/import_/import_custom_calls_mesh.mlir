// RUN: shmap-opt %s --shmap-import-custom-calls=mesh=i=2,one=1,j=4 --shmap-verify | FileCheck %s

module @the_mesh_that_the_user_names {
  // CHECK: sdy.mesh @mesh = <["i"=2, "one"=1, "j"=4]>
  // CHECK: @main(%arg0: tensor<1xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"i", "j"}]>}) {{.*}}manual_axes{"i", "one", "j"}
  func.func public @main(%x: tensor<8xf32>) -> tensor<8xf32> {
    // CHECK: axes = ["i", "j"]
    %0 = stablehlo.custom_call @Sharding(%x) {mhlo.sharding = "{devices=[8]<=[8]}"} : (tensor<8xf32>) -> tensor<8xf32>
    %1 = stablehlo.custom_call @SPMDFullToShardShape(%0) {mhlo.sharding = "{manual}"} : (tensor<8xf32>) -> tensor<1xf32>
    %p = stablehlo.partition_id : tensor<ui32>
    %f = stablehlo.convert %p : (tensor<ui32>) -> tensor<f32>
    %b = stablehlo.broadcast_in_dim %f, dims = [] : (tensor<f32>) -> tensor<1xf32>
    %2 = stablehlo.add %1, %b : tensor<1xf32>
    %3 = stablehlo.custom_call @SPMDShardToFullShape(%2) {mhlo.sharding = "{devices=[8]<=[8]}"} : (tensor<1xf32>) -> tensor<8xf32>
    return %3 : tensor<8xf32>
  }
}
