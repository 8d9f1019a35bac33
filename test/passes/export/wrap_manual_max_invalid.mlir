// Shardy knows arrays whose summands are combined by another operation than a sum; GSPMD does not.
// REQUIRES: reduction-op
// RUN: shmap-opt %s --shmap-legalize-collectives=partitioner=gspmd --shmap-wrap-manual=partitioner=gspmd --split-input-file --verify-diagnostics

module @a_result {
  sdy.mesh @mesh = <["i"=4, "j"=2]>
  // expected-error @+1 {{result 0 of @main is unreduced, to be combined by another operation than a sum, which the shardings of GSPMD cannot express; use partitioner=shardy, or reduce it in the body}}
  func.func public @main(%x: tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"i"}]>}) -> (tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}], unreduced=max{"i"}>}) attributes {sdy.manual_axes = #sdy<manual_axes{"i"}>} {
    return %x : tensor<4xf32>
  }
}

// -----

module @a_region_inside {
  sdy.mesh @mesh = <["i"=4, "j"=2]>
  func.func public @main(%x: tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"i"}]>}) -> (tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"i"}]>}) attributes {sdy.manual_axes = #sdy<manual_axes{"i"}>} {
    // expected-error @+1 {{out_shardings of a region inside of the body: it is unreduced, to be combined by another operation than a sum; or use partitioner=shardy}}
    %0 = sdy.manual_computation(%x) in_shardings=[<@mesh, [{}]>] out_shardings=[<@mesh, [{}], unreduced=max{"j"}>] manual_axes={"j"} (%b: tensor<4xf32>) {
      sdy.return %b : tensor<4xf32>
    } : (tensor<4xf32>) -> tensor<4xf32>
    return %0 : tensor<4xf32>
  }
}
