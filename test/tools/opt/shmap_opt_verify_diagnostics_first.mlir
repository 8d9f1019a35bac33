// One chunk that is not as expected decides, also where later ones are.
// RUN: not shmap-opt %s --shmap-verify --split-input-file --verify-diagnostics 2>&1 | FileCheck %s
// RUN: not shmap-opt %s --shmap-verify --split-input-file 2>&1 | FileCheck %s --check-prefix=PLAIN

// CHECK: error: unexpected error: the module has no function @main
// PLAIN: error: the module has no function @main
module @nobody_expects_this_error {
}

// -----

// expected-error @+1 {{the module has no function @main}}
module @this_error_is_expected {
}

// -----

module @nothing_is_wrong_here {
  sdy.mesh @mesh = <["i"=4]>
  func.func public @main() attributes {sdy.manual_axes = #sdy<manual_axes{"i"}>} {
    return
  }
}
