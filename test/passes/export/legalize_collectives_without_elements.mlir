// Calls that return arrays without elements are inlined for GSPMD, if all automatic axes have size one.
// RUN: shmap-opt %s --shmap-legalize-collectives=partitioner=gspmd --split-input-file | FileCheck %s --check-prefix=GSPMD
// RUN: shmap-opt %s --shmap-legalize-collectives=partitioner=shardy --split-input-file | FileCheck %s --check-prefix=SHARDY

module {
  sdy.mesh @mesh = <["i"=2, "k"=1]>
  // GSPMD-LABEL: func.func public @main
  // GSPMD: stablehlo.sine
  // GSPMD-NOT: call @
  // GSPMD: stablehlo.cosine
  // GSPMD: call @one
  // GSPMD-NOT: func.func private @holder
  // GSPMD-NOT: func.func private @none_and_one
  // SHARDY-LABEL: func.func public @main
  // SHARDY: call @holder
  func.func public @main(%x: tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"i"}]>}) -> (tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"i"}]>}) attributes {sdy.manual_axes = #sdy<manual_axes{"i"}>} {
    %0 = call @holder(%x) : (tensor<4xf32>) -> tensor<4xf32>
    %1 = call @one(%0) : (tensor<4xf32>) -> tensor<4xf32>
    return %1 : tensor<4xf32>
  }

  func.func private @holder(%x: tensor<4xf32>) -> tensor<4xf32> {
    %0 = stablehlo.sine %x : tensor<4xf32>
    %1:2 = call @none_and_one(%0) : (tensor<4xf32>) -> (tensor<0x3xf32>, tensor<4xf32>)
    return %1#1 : tensor<4xf32>
  }

  func.func private @none_and_one(%x: tensor<4xf32>) -> (tensor<0x3xf32>, tensor<4xf32>) {
    %0 = stablehlo.constant dense<> : tensor<0x3xf32>
    %1 = stablehlo.cosine %x : tensor<4xf32>
    return %0, %1 : tensor<0x3xf32>, tensor<4xf32>
  }

  func.func private @one(%x: tensor<4xf32>) -> tensor<4xf32> {
    return %x : tensor<4xf32>
  }
}

// -----

// Where all axes are manual, JAX writes no hints.
module {
  sdy.mesh @mesh = <["i"=2]>
  // GSPMD-LABEL: func.func public @main
  // GSPMD: call @none_and_one
  // GSPMD: channel_handle
  // SHARDY-LABEL: func.func public @main
  // SHARDY: channel_handle
  func.func public @main(%x: tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"i"}]>}) -> (tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"i"}]>}) attributes {sdy.manual_axes = #sdy<manual_axes{"i"}>} {
    %0:2 = call @none_and_one(%x) : (tensor<4xf32>) -> (tensor<0x3xf32>, tensor<4xf32>)
    return %0#1 : tensor<4xf32>
  }

  func.func private @none_and_one(%x: tensor<4xf32>) -> (tensor<0x3xf32>, tensor<4xf32>) {
    %0 = stablehlo.constant dense<> : tensor<0x3xf32>
    %1 = "stablehlo.collective_permute"(%x) <{source_target_pairs = dense<[[0, 1], [1, 0]]> : tensor<2x2xi64>}> : (tensor<4xf32>) -> tensor<4xf32>
    return %0, %1 : tensor<0x3xf32>, tensor<4xf32>
  }
}

// -----

module {
  sdy.mesh @mesh = <["i"=2, "k"=2]>
  // GSPMD-LABEL: func.func public @main
  // GSPMD: call @none_and_one
  // GSPMD: channel_handle
  // SHARDY-LABEL: func.func public @main
  // SHARDY: channel_handle
  func.func public @main(%x: tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"i"}]>}) -> (tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"i"}]>}) attributes {sdy.manual_axes = #sdy<manual_axes{"i"}>} {
    %0:2 = call @none_and_one(%x) : (tensor<4xf32>) -> (tensor<0x3xf32>, tensor<4xf32>)
    return %0#1 : tensor<4xf32>
  }

  func.func private @none_and_one(%x: tensor<4xf32>) -> (tensor<0x3xf32>, tensor<4xf32>) {
    %0 = stablehlo.constant dense<> : tensor<0x3xf32>
    %1 = "stablehlo.collective_permute"(%x) <{source_target_pairs = dense<[[0, 2], [1, 3]]> : tensor<2x2xi64>}> : (tensor<4xf32>) -> tensor<4xf32>
    return %0, %1 : tensor<0x3xf32>, tensor<4xf32>
  }
}
