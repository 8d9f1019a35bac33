// A region in a region, as Shardy's tests nest them.
module @nested {
  sdy.mesh @mesh = <["a"=2, "b"=2, "c"=2]>
  func.func @main(%x: tensor<8x8xf32>) -> tensor<8x8xf32> {
    %0 = sdy.manual_computation(%x) in_shardings=[<@mesh, [{"a", ?}, {?}]>] out_shardings=[<@mesh, [{"a", ?}, {?}]>] manual_axes={"a"} (%b: tensor<4x8xf32>) {
      %1 = sdy.manual_computation(%b) in_shardings=[<@mesh, [{}, {"b"}]>] out_shardings=[<@mesh, [{}, {"b"}]>] manual_axes={"b"} (%n: tensor<4x4xf32>) {
        %2 = stablehlo.cosine %n : tensor<4x4xf32>
        %3 = stablehlo.multiply %2, %n : tensor<4x4xf32>
        sdy.return %3 : tensor<4x4xf32>
      } : (tensor<4x8xf32>) -> tensor<4x8xf32>
      sdy.return %1 : tensor<4x8xf32>
    } : (tensor<8x8xf32>) -> tensor<8x8xf32>
    return %0 : tensor<8x8xf32>
  }
}
