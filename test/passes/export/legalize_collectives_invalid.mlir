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

module @regions_inside_are_on_the_mesh {
  sdy.mesh @mesh = <["i"=4, "j"=2]>
  func.func public @main(%x: tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"i"}]>}) attributes {sdy.manual_axes = #sdy<manual_axes{"i"}>} {
    // expected-error @+2 {{in_shardings of a region inside of the body: sdy.sharding is on mesh #sdy.mesh<["j"=2]>, but the module's mesh is @mesh [i=4, j=2]; use @mesh; or use partitioner=shardy}}
    // expected-error @+1 {{out_shardings of a region inside of the body: sdy.sharding is on mesh}}
    %0 = sdy.manual_computation(%x) in_shardings=[<mesh<["j"=2]>, [{"j"}]>] out_shardings=[<mesh<["j"=2]>, [{"j"}]>] manual_axes={"j"} (%b: tensor<2xf32>) {
      sdy.return %b : tensor<2xf32>
    } : (tensor<4xf32>) -> tensor<4xf32>
    return
  }
}
