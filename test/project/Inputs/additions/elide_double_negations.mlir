// RUN: shmap-opt %s --shmap-elide-double-negations | FileCheck %s

// CHECK-LABEL: func.func @twice
func.func @twice(%x: tensor<4xf32>) -> tensor<4xf32> {
  // CHECK-NEXT: return %arg0
  %0 = stablehlo.negate %x : tensor<4xf32>
  %1 = stablehlo.negate %0 : tensor<4xf32>
  return %1 : tensor<4xf32>
}

// CHECK-LABEL: func.func @once
func.func @once(%x: tensor<4xf32>) -> tensor<4xf32> {
  // CHECK: %[[R:.*]] = stablehlo.negate %arg0
  // CHECK: return %[[R]]
  %0 = stablehlo.negate %x : tensor<4xf32>
  return %0 : tensor<4xf32>
}
