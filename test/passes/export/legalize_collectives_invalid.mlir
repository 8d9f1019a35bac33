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
