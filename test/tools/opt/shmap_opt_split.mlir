// Each module is on its own; places count from the top of the file. A line separator,  , ends no line.
// RUN: shmap-opt %s --split-input-file | FileCheck %s
// RUN: not shmap-opt %s --split-input-file --shmap-verify 2>&1 | FileCheck %s --check-prefix=ERROR

// CHECK-LABEL: module @first
// ERROR: shmap_opt_split.mlir:7:1: error: the module has no function @main
module @first {
}

// CHECK: // -----
// -----

// CHECK-LABEL: module @second
// ERROR: shmap_opt_split.mlir:15:1: error: the module has no function @main
module @second {
}
// ERROR: to reproduce: shmap-opt {{.*}}shmap_opt_split.mlir --split-input-file --shmap-verify
