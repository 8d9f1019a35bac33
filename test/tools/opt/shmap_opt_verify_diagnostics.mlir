// Every way to name the line of an expected diagnostic.
// RUN: shmap-opt %s --shmap-verify --split-input-file --verify-diagnostics

// expected-error @+1 {{the module has no function @main}}
module @line_given_as_a_difference {
}

// -----

// expected-error @below {{the module has no function @main}}
module @line_below {
}

// -----

module @line_above {
}
// expected-error @-2 {{the module has no function @main}}

// -----

module @same_line { // expected-error {{the module has no function @main}}
}

// -----

// expected-error-re @+1 {{has no function @{{m.+n}} with a body; its functions: {{n[a-z]+e}} [SHM-P01: }}
module @regular_expression {
}

// -----

func.func private @note_of_a_diagnostic(%x: tensor<f32>) {
  // expected-note @+1 {{prior use here}}
  %0 = stablehlo.negate %y : tensor<f32>
  // expected-error @+1 {{use of value '%y' expects different type than prior uses: 'tensor<i32>' vs 'tensor<f32>'}}
  %1 = stablehlo.negate %y : tensor<i32>
  return
}
