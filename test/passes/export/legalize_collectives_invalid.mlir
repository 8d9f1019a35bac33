// RUN: shmap-opt %s --shmap-legalize-collectives --split-input-file --verify-diagnostics
// The pass can only work on body form. What else is wrong in a module is found by shmap-verify.

module @main_is_not_in_body_form {
  sdy.mesh @mesh = <["i"=4]>
  // expected-error @+1 {{@main has no sdy.manual_axes, so it is not in body form}}
  func.func public @main() {
    return
  }
}

// -----

// expected-error @+1 {{the module has no function @main with a body; its functions: none}}
module @there_is_no_main {
}

// -----

// Passes check what shmap-verify checks where it has not run before them.
module @no_pass_verified_this {
  sdy.mesh @mesh = <["i"=4]>
  // expected-error @+1 {{manual axis "k": the mesh is @mesh [i=4]; name one of "i"}}
  func.func public @main() attributes {sdy.manual_axes = #sdy<manual_axes{"k"}>} {
    return
  }
}

// -----

module @regions_inside_are_written_for_shardy {
  sdy.mesh @mesh = <["i"=4, "j"=2]>
  func.func public @main(%x: tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"i"}]>}) attributes {sdy.manual_axes = #sdy<manual_axes{"i"}>} {
    // expected-error @+1 {{a region inside of the body is written for shardy, and this pass for gspmd: passes rewrite the outermost region, and XLA reads one form in a module; use partitioner=shardy}}
    %0 = sdy.manual_computation(%x) in_shardings=[<@mesh, [{"j"}]>] out_shardings=[<@mesh, [{"j"}]>] manual_axes={"j"} (%b: tensor<2xf32>) {
      sdy.return %b : tensor<2xf32>
    } : (tensor<4xf32>) -> tensor<4xf32>
    return
  }
}
