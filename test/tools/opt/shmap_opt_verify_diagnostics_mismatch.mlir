// What --verify-diagnostics says when it is not as expected.
// RUN: not shmap-opt %s --shmap-verify --split-input-file --verify-diagnostics 2>&1 | FileCheck %s

// CHECK: mismatch.mlir:5:1: error: unexpected error: the module has no function @main
module @nobody_expects_this_error {
}

// -----

// CHECK: mismatch.mlir:13:1: error: unexpected error: the module has no function @main
// CHECK: mismatch.mlir:12:1: error: expected error at line 13 was not produced: another text
// expected-error @+1 {{another text}}
module @another_error_is_expected {
}

// -----

// CHECK: mismatch.mlir:19:1: error: expected error at line 20 was not produced: the module has
// expected-error @+1 {{the module has}}

module @the_error_is_expected_elsewhere {
}

// -----

// CHECK: mismatch.mlir:27:1: error: cannot read this expectation
// expected-error @next {{the module has}}
module @an_expectation_that_cannot_be_read {
}

// -----

// CHECK: mismatch.mlir:36:1: error: unexpected error: the module has no function @main
// CHECK: mismatch.mlir:35:1: error: expected warning at line 36 was not produced: the module has
// expected-warning @+1 {{the module has}}
module @a_warning_is_expected {
}

// -----

// CHECK: mismatch.mlir:43:1: error: cannot read the regular expression of this expectation: unterminated character set at position
// CHECK: mismatch.mlir:44:1: error: unexpected error: the module has no function @main
// expected-error-re @+1 {{the {{[a-z}} has}}
module @an_expression_that_cannot_be_read {
}
