// RUN: shmap-opt %s --shmap-store-maxima=form=stored-maximum --split-input-file --verify-diagnostics
// The pass can only work on body form. What else is wrong in a module is found by shmap-verify.

module @main_is_not_in_body_form {
  sdy.mesh @mesh = <["i"=4]>
  // expected-error @+1 {{@main has no sdy.manual_axes, so it is not in body form}}
  func.func public @main(%x: tensor<4x8xf32>) {
    %lowest = stablehlo.constant dense<0xFF800000> : tensor<f32>
    %m = stablehlo.reduce(%x init: %lowest) applies stablehlo.maximum across dimensions = [1] : (tensor<4x8xf32>, tensor<f32>) -> tensor<4xf32>
    return
  }
}
