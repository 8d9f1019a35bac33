// Regions of Shardy's inside of the body, written for GSPMD. The axis "c" is automatic in both.
// RUN: shmap-opt %s --shmap-legalize-collectives=partitioner=gspmd --split-input-file | FileCheck %s

module {
  sdy.mesh @mesh = <["a"=2, "b"=2, "c"=2]>
  // CHECK-LABEL: func.func public @main
  // CHECK-SAME: (%[[X:.*]]: tensor<4x8xf32>
  // CHECK: %[[CUT:.*]] = stablehlo.custom_call @Sharding(%[[X]]) {backend_config = "unspecified_dims=[0,1]", mhlo.sharding = "{devices=[1,2,2,2]<=[2,2,2]T(1,0,2) last_tile_dims={manual, replicated}}"}
  // CHECK-NEXT: %[[BLOCK:.*]] = stablehlo.custom_call @SPMDFullToShardShape(%[[CUT]]) {backend_config = "unspecified_dims=[0,1]", mhlo.sharding = "{devices=[1,1,4,2]<=[8] last_tile_dims={manual, replicated}}"} : (tensor<4x8xf32>) -> tensor<4x4xf32>
  // CHECK-NEXT: %[[ALL:.*]] = "stablehlo.all_gather"(%[[BLOCK]])
  // CHECK-SAME: {mhlo.sharding = "{devices=[1,1,4,2]<=[8] last_tile_dims={manual, replicated}}"}
  // CHECK-NEXT: %[[HINT:.*]] = stablehlo.custom_call @Sharding(%[[ALL]]) {backend_config = "", mhlo.sharding = "{devices=[2,1,4]<=[4,2]T(1,0) last_tile_dims={manual}}"}
  // CHECK-NEXT: %[[PLACED:.*]] = stablehlo.custom_call @Sharding(%[[HINT]]) {backend_config = "unspecified_dims=[0,1]", mhlo.sharding = "{devices=[1,1,4,2]<=[8] last_tile_dims={manual, replicated}}"}
  // CHECK-NEXT: %[[FULL:.*]] = stablehlo.custom_call @SPMDShardToFullShape(%[[PLACED]]) {backend_config = "unspecified_dims=[0,1]", mhlo.sharding = "{devices=[1,1,2,4]<=[8] last_tile_dims={manual, replicated}}"} : (tensor<4x8xf32>) -> tensor<4x8xf32>
  // CHECK-NEXT: return %[[FULL]]
  func.func public @main(%x: tensor<4x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"a"}, {}]>}) -> (tensor<4x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"a"}, {}]>}) attributes {sdy.manual_axes = #sdy<manual_axes{"a"}>} {
    %0 = sdy.manual_computation(%x) in_shardings=[<@mesh, [{}, {"b", "c"}]>] out_shardings=[<@mesh, [{}, {}]>] manual_axes={"b"} (%b: tensor<4x4xf32>) {
      %1 = func.call @gathered(%b) : (tensor<4x4xf32>) -> tensor<4x8xf32>
      sdy.return %1 : tensor<4x8xf32>
    } : (tensor<4x8xf32>) -> tensor<4x8xf32>
    return %0 : tensor<4x8xf32>
  }

  func.func private @gathered(%b: tensor<4x4xf32>) -> tensor<4x8xf32> {
    %0 = "stablehlo.all_gather"(%b) <{all_gather_dim = 1 : i64, channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, replica_groups = dense<[[0, 2], [1, 3], [4, 6], [5, 7]]> : tensor<4x2xi64>, use_global_device_ids}> : (tensor<4x4xf32>) -> tensor<4x8xf32>
    %1 = sdy.sharding_constraint %0 <@mesh, [{"c"}, {}]> : tensor<4x8xf32>
    return %1 : tensor<4x8xf32>
  }
}

// -----

// A region in a function that the body calls, of all axes, with an array that has no elements.
module {
  sdy.mesh @mesh = <["a"=2, "b"=2]>
  // CHECK-LABEL: func.func public @main
  // CHECK-SAME: (%[[X:.*]]: tensor<4xf32>
  // CHECK-NOT: call
  // CHECK: %[[NOTHING:.*]] = stablehlo.constant dense<> : tensor<0x4xf32>
  // CHECK: %[[BLOCK:.*]] = stablehlo.custom_call @SPMDFullToShardShape
  // CHECK: %[[EMPTY:.*]] = stablehlo.constant dense<> : tensor<0x2xf32>
  // CHECK: stablehlo.partition_id {mhlo.sharding = "{manual}"}
  // CHECK: stablehlo.add %[[EMPTY]], %[[EMPTY]]
  // CHECK: stablehlo.custom_call @SPMDShardToFullShape
  // CHECK-NOT: SPMDShardToFullShape
  // CHECK-NOT: func.func
  func.func public @main(%x: tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"a"}]>}) -> (tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"a"}]>}) attributes {sdy.manual_axes = #sdy<manual_axes{"a"}>} {
    %0 = func.call @f(%x) : (tensor<4xf32>) -> tensor<4xf32>
    return %0 : tensor<4xf32>
  }

  func.func private @f(%x: tensor<4xf32>) -> tensor<4xf32> {
    %nothing = stablehlo.constant dense<> : tensor<0x4xf32>
    %0:2 = sdy.manual_computation(%x, %nothing) in_shardings=[<@mesh, [{"b"}]>, <@mesh, [{}, {"b"}]>] out_shardings=[<@mesh, [{"b"}]>, <@mesh, [{}, {"b"}]>] manual_axes={"b"} (%b: tensor<2xf32>, %e: tensor<0x2xf32>) {
      %1 = stablehlo.partition_id : tensor<ui32>
      %2 = stablehlo.add %e, %e : tensor<0x2xf32>
      sdy.return %b, %2 : tensor<2xf32>, tensor<0x2xf32>
    } : (tensor<4xf32>, tensor<0x4xf32>) -> (tensor<4xf32>, tensor<0x4xf32>)
    return %0#0 : tensor<4xf32>
  }
}

// -----

// Of the functions that lead to regions, those stay that something else refers to.
module {
  sdy.mesh @mesh = <["a"=2, "b"=2]>
  // CHECK-LABEL: func.func public @main
  // CHECK: stablehlo.custom_call @SPMDFullToShardShape
  // CHECK-NOT: @in_the_body
  // CHECK: func.func private @on_the_host
  // CHECK-NOT: @in_the_body
  func.func public @main(%x: tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"a"}]>}) -> (tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"a"}]>}) attributes {sdy.manual_axes = #sdy<manual_axes{"a"}>} {
    %0 = func.call @in_the_body(%x) : (tensor<4xf32>) -> tensor<4xf32>
    %1 = stablehlo.custom_call @a_library(%0) {called_computations = [@on_the_host]} : (tensor<4xf32>) -> tensor<4xf32>
    return %1 : tensor<4xf32>
  }

  func.func private @in_the_body(%x: tensor<4xf32>) -> tensor<4xf32> {
    %0 = sdy.manual_computation(%x) in_shardings=[<@mesh, [{"b"}]>] out_shardings=[<@mesh, [{"b"}]>] manual_axes={"b"} (%b: tensor<2xf32>) {
      %1 = func.call @on_the_host(%b) : (tensor<2xf32>) -> tensor<2xf32>
      sdy.return %1 : tensor<2xf32>
    } : (tensor<4xf32>) -> tensor<4xf32>
    return %0 : tensor<4xf32>
  }

  func.func private @on_the_host(%x: tensor<2xf32>) -> tensor<2xf32> {
    %0 = stablehlo.partition_id : tensor<ui32>
    return %x : tensor<2xf32>
  }
}
