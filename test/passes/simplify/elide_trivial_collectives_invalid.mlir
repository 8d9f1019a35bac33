// RUN: shmap-opt %s --shmap-elide-trivial-collectives --split-input-file --verify-diagnostics
// The pass can only work on body form. What else is wrong in a module is found by shmap-verify.

module @main_is_not_in_body_form {
  sdy.mesh @mesh = <["i"=4]>
  // expected-error @+1 {{@main has no sdy.manual_axes, so it is not in body form}}
  func.func public @main(%x: tensor<4xf32>) -> tensor<4xf32> {
    %0 = "stablehlo.all_reduce"(%x) <{replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>}> ({
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %s = stablehlo.add %a, %b : tensor<f32>
      stablehlo.return %s : tensor<f32>
    }) : (tensor<4xf32>) -> tensor<4xf32>
    return %0 : tensor<4xf32>
  }
}
