// What Shardy leaves of a program whose communication it made explicit, around a region and in it.
module @shardy_collectives {
  sdy.mesh @mesh = <["x"=2, "y"=4]>
  func.func @entry(%x: tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {"y"}]>}) -> (tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}]>}) {
    %0 = sdy.all_gather [{}, {"y"}] %x out_sharding=<@mesh, [{"x"}, {}]> : tensor<8x8xf32>
    %1 = sdy.all_to_all [{"x"}: 0->1] %0 out_sharding=<@mesh, [{}, {"x"}]> : tensor<8x8xf32>
    %2 = sdy.all_slice [{"y"}, {}] %1 out_sharding=<@mesh, [{"y"}, {"x"}]> : tensor<8x8xf32>
    %3 = sdy.manual_computation(%2) in_shardings=[<@mesh, [{"y"}, {"x"}]>] out_shardings=[<@mesh, [{}, {"x"}]>] manual_axes={"x", "y"} (%b: tensor<2x4xf32>) {
      %c = stablehlo.constant dense<0.0> : tensor<f32>
      %5 = stablehlo.multiply %b, %b : tensor<2x4xf32>
      %6 = stablehlo.reduce(%5 init: %c) applies stablehlo.add across dimensions = [0] : (tensor<2x4xf32>, tensor<f32>) -> tensor<4xf32>
      %7 = sdy.all_reduce {"y"} %6 out_sharding=<@mesh, [{}]> : tensor<4xf32>
      %8 = stablehlo.broadcast_in_dim %7, dims = [1] : (tensor<4xf32>) -> tensor<8x4xf32>
      sdy.return %8 : tensor<8x4xf32>
    } : (tensor<8x8xf32>) -> tensor<8x8xf32>
    return %3 : tensor<8x8xf32>
  }
}
