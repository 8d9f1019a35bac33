// What Shardy's propagation leaves behind: meshes of other functions, edges, groups, named
// computations, constants of its own, the steps by which it came to a sharding.
module @shardy_notes {
  sdy.mesh @maximal = <[], device_ids=[0]>
  sdy.mesh @larger = <["a"=4, "b"=4, "c"=2]>
  sdy.mesh @mesh = <["a"=2, "b"=2]>
  func.func public @main(%x: tensor<8x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"a"}, {}]>, sdy.sharding_origin_name = "input"}) -> tensor<8x4xf32> attributes {sdy.original_func_name = "main"} {
    %c = sdy.constant dense<2.0> : tensor<8x4xf32>
    %0 = sdy.data_flow_edge %x sharding=<@mesh, [{"a"}, {}]> : tensor<8x4xf32>
    %1 = sdy.named_computation<"layer">(%0) in_shardings=[<@mesh, [{"a"}, {}]>] out_shardings=[<@mesh, [{"a"}, {}]>] (%n: tensor<8x4xf32>) {
      %4 = sdy.manual_computation(%n) in_shardings=[<@mesh, [{"a"}, {}]>] out_shardings=[<@mesh, [{"a"}, {}]>] manual_axes={"a", "b"} (%b: tensor<4x4xf32>) {
        %5 = sdy.data_flow_edge %b sharding=<@mesh, [{}, {}]> : tensor<4x4xf32>
        %6 = func.call @norm(%5) : (tensor<4x4xf32>) -> tensor<4x4xf32>
        sdy.return %6 : tensor<4x4xf32>
      } : (tensor<8x4xf32>) -> tensor<8x4xf32>
      sdy.return %4 : tensor<8x4xf32>
    } : (tensor<8x4xf32>) -> tensor<8x4xf32>
    sdy.sharding_group %1 group_id=3 : tensor<8x4xf32>
    %2 = sdy.propagation_barrier %1 allowed_direction=NONE : tensor<8x4xf32>
    %3 = stablehlo.multiply %2, %c {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"a"}, {}]>]>} : tensor<8x4xf32>
    return %3 : tensor<8x4xf32>
  }
  func.func private @norm(%x: tensor<4x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>}) -> tensor<4x4xf32> attributes {sdy.func_manual_axes = #sdy<manual_axes{"a", "b"}>} {
    %0 = stablehlo.abs %x : tensor<4x4xf32>
    return %0 : tensor<4x4xf32>
  }
}
