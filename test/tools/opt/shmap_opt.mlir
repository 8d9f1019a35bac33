// Flags and pipelines mean the same, mix our passes with MLIR's, and keep their order.
// RUN: shmap-opt %s --shmap-verify --shmap-legalize-collectives=groups=ids --shmap-wrap-manual=partitioner=shardy --cse > %t.flags
// RUN: shmap-opt %s --pass-pipeline='builtin.module(shmap-verify,shmap-legalize-collectives{groups=ids partitioner=gspmd},shmap-wrap-manual{partitioner=shardy},func.func(cse))' -o %t.pipeline
// RUN: cmp %t.flags %t.pipeline
// RUN: FileCheck %s < %t.flags

// Standard input is the default, and '-' names it.
// RUN: shmap-opt < %s | FileCheck %s --check-prefix=SAME
// RUN: shmap-opt - < %s | FileCheck %s --check-prefix=SAME

// Passes of StableHLO and Shardy are known too.
// RUN: shmap-opt %s --pass-pipeline='builtin.module(stablehlo-refine-shapes,func.func(sdy-sharding-constraint-to-reshard))' | FileCheck %s --check-prefix=SAME

// RUN: shmap-opt %s --mlir-print-ir-after-all --shmap-verify --canonicalize 2>&1 | FileCheck %s --check-prefix=DUMP

// CHECK: sdy.manual_computation
// SAME: func.func public @one_cosine_is_enough_after_cse
// DUMP: IR Dump After shmap-verify
// DUMP: IR Dump After Canonicalizer
module {
  sdy.mesh @mesh = <["i"=2]>
  func.func public @main(
      %x: tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"i"}]>})
      -> (tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"i"}]>})
      attributes {sdy.manual_axes = #sdy<manual_axes{"i"}>} {
    return %x : tensor<4xf32>
  }

  // CHECK: func.func public @one_cosine_is_enough_after_cse
  func.func public @one_cosine_is_enough_after_cse(%x: tensor<4xf32>) -> tensor<4xf32> {
    // CHECK: stablehlo.cosine
    // CHECK-NOT: stablehlo.cosine
    %0 = stablehlo.cosine %x : tensor<4xf32>
    %1 = stablehlo.cosine %x : tensor<4xf32>
    %2 = stablehlo.add %0, %1 : tensor<4xf32>
    return %2 : tensor<4xf32>
  }
}
