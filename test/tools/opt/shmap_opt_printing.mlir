// Dumps of the module between passes, on standard error: named passes, all, changes and failures.
// RUN: shmap-opt %s --shmap-verify --cse --canonicalize --mlir-print-ir-before=cse --mlir-print-ir-after=shmap-verify,canonicalize -o /dev/null 2>&1 | grep 'IR Dump' | FileCheck %s --check-prefix=NAMED
// RUN: shmap-opt %s --pass-pipeline='builtin.module(func.func(cse),canonicalize)' --mlir-print-ir-after=cse -o /dev/null 2>&1 | grep 'IR Dump' | FileCheck %s --check-prefix=NESTED
// RUN: shmap-opt %s --shmap-verify --cse --mlir-print-ir-before-all -o /dev/null 2>&1 | grep 'IR Dump' | FileCheck %s --check-prefix=BEFORE-ALL
// RUN: shmap-opt %s --shmap-verify --cse --canonicalize --mlir-print-ir-after-change -o /dev/null 2>&1 | grep 'IR Dump' | FileCheck %s --check-prefix=CHANGE
// RUN: not shmap-opt %S/Inputs/no_manual_axes.mlir --cse --shmap-verify --mlir-print-ir-after-failure 2>&1 | grep 'IR Dump' | FileCheck %s --check-prefix=FAILURE
// RUN: shmap-opt %s --cse --mlir-print-ir-before=cse --mlir-print-ir-after=cse -o /dev/null 2>&1 | FileCheck %s --check-prefix=BEFORE-CSE

// In dumps as in the result: the generic form, and locations.
// RUN: shmap-opt %s --mlir-print-op-generic | FileCheck %s --check-prefix=GENERIC
// RUN: shmap-opt %s --cse --mlir-print-op-generic --mlir-print-ir-after=cse -o /dev/null 2>&1 | FileCheck %s --check-prefix=GENERIC
// RUN: shmap-opt %s --mlir-print-debuginfo | FileCheck %s --check-prefix=DEBUGINFO
// RUN: shmap-opt %s --mlir-timing --shmap-verify --cse -o /dev/null 2>&1 | FileCheck %s --check-prefix=TIMING

// NAMED: IR Dump After shmap-verify
// NAMED-NEXT: IR Dump Before cse
// NAMED-NEXT: IR Dump After canonicalize
// NAMED-NOT: IR Dump
// NESTED: IR Dump After func.func(cse)
// NESTED-NOT: IR Dump
// BEFORE-ALL: IR Dump Before shmap-verify
// BEFORE-ALL-NEXT: IR Dump Before CSE
// BEFORE-ALL-NOT: IR Dump
// CHANGE: IR Dump After CSE
// CHANGE-NOT: IR Dump
// FAILURE: IR Dump After shmap-verify Failed
// FAILURE-NOT: IR Dump
// BEFORE-CSE: IR Dump Before cse
// BEFORE-CSE: stablehlo.cosine
// BEFORE-CSE-NEXT: stablehlo.cosine
// BEFORE-CSE: IR Dump After cse
// BEFORE-CSE: stablehlo.cosine
// BEFORE-CSE-NEXT: return
// GENERIC: "func.func"() <{
// DEBUGINFO: stablehlo.cosine {{.*}} loc(#loc
// TIMING: Execution time report
// TIMING: shmap-verify
// TIMING: CSE
module {
  sdy.mesh @mesh = <["i"=2]>
  func.func public @main(
      %x: tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"i"}]>})
      -> (tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"i"}]>},
          tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"i"}]>})
      attributes {sdy.manual_axes = #sdy<manual_axes{"i"}>} {
    %0 = stablehlo.cosine %x : tensor<4xf32>
    %1 = stablehlo.cosine %x : tensor<4xf32>
    return %0, %1 : tensor<4xf32>, tensor<4xf32>
  }
}
