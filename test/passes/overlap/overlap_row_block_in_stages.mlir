// RUN: shmap-opt %s '--shmap-overlap-row-block=form=row-stages parts=2' | FileCheck %s

// CHECK-LABEL: module @all_axes_are_manual
module @all_axes_are_manual {
  sdy.mesh @mesh = <["i"=2, "j"=2]>
  func.func public @main() attributes {sdy.manual_axes = #sdy<manual_axes{"i", "j"}>} {
    return
  }

  // CHECK-LABEL: func.func private @an_mlp_and_the_gradient_of_its_last_weights
  func.func private @an_mlp_and_the_gradient_of_its_last_weights(%x: tensor<4x8xf32>, %v: tensor<8x6xf32>, %w: tensor<6x8xf32>) -> (tensor<4x8xf32>, tensor<6x8xf32>) {
    // CHECK: %[[X0:.*]] = stablehlo.slice %arg0 [0:2, 0:8]
    // CHECK: %[[G0:.*]] = "stablehlo.all_gather"(%[[X0]])
    // CHECK: %[[X1:.*]] = stablehlo.slice %arg0 [2:4, 0:8]
    // CHECK: %[[B0:.*]]:2 = stablehlo.optimization_barrier %[[X1]], %[[G0]]
    // The second chunk is gathered beside the first product of the first one.
    // CHECK: %[[G1:.*]] = "stablehlo.all_gather"(%[[B0]]#0)
    // CHECK: %[[A0:.*]] = stablehlo.dot_general %[[B0]]#1, %arg1
    // CHECK: %[[B1:.*]]:2 = stablehlo.optimization_barrier %[[A0]], %[[G1]]
    // CHECK: %[[H0:.*]] = stablehlo.tanh %[[B1]]#0
    // CHECK: %[[Z0:.*]] = stablehlo.dot_general %[[H0]], %arg2
    // CHECK: %[[B2:.*]]:2 = stablehlo.optimization_barrier %[[Z0]], %[[B1]]#1
    // CHECK: %[[A1:.*]] = stablehlo.dot_general %[[B2]]#1, %arg1
    // CHECK: %[[B3:.*]]:2 = stablehlo.optimization_barrier %[[A1]], %[[B2]]#0
    // The first chunk is scattered beside the second product of the second one.
    // CHECK: %[[Y0:.*]] = "stablehlo.reduce_scatter"(%[[B3]]#1)
    // CHECK: %[[H1:.*]] = stablehlo.tanh %[[B3]]#0
    // CHECK: %[[Z1:.*]] = stablehlo.dot_general %[[H1]], %arg2
    // CHECK: %[[B4:.*]]:2 = stablehlo.optimization_barrier %[[Z1]], %[[Y0]]
    // CHECK: %[[Y1:.*]] = "stablehlo.reduce_scatter"(%[[B4]]#0)
    // CHECK: stablehlo.dynamic_update_slice %{{.*}}, %[[B4]]#1
    // CHECK: %[[Y:.*]] = stablehlo.dynamic_update_slice %{{.*}}, %[[Y1]]
    // CHECK: %[[E0:.*]] = "stablehlo.all_gather"
    // CHECK: %[[B5:.*]]:2 = stablehlo.optimization_barrier %{{.*}}, %[[E0]]
    // CHECK: %[[E1:.*]] = "stablehlo.all_gather"(%[[B5]]#0)
    // What is computed element by element is computed again.
    // CHECK: %[[T0:.*]] = stablehlo.tanh %[[B1]]#0
    // CHECK: %[[D0:.*]] = stablehlo.dot_general %[[T0]], %[[B5]]#1, contracting_dims = [0] x [0]
    // CHECK: %[[B6:.*]]:2 = stablehlo.optimization_barrier %[[D0]], %[[E1]]
    // CHECK: %[[T1:.*]] = stablehlo.tanh %[[B3]]#0
    // CHECK: %[[D1:.*]] = stablehlo.dot_general %[[T1]], %[[B6]]#1, contracting_dims = [0] x [0]
    // CHECK: %[[D:.*]] = stablehlo.add %[[B6]]#0, %[[D1]]
    // CHECK: return %[[Y]], %[[D]]
    %g = "stablehlo.all_gather"(%x) <{all_gather_dim = 0 : i64, replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>}> {shmap.overlap = {name = "row-chunks", parts = 2 : i64}} : (tensor<4x8xf32>) -> tensor<8x8xf32>
    %a = stablehlo.dot_general %g, %v, contracting_dims = [1] x [0] : (tensor<8x8xf32>, tensor<8x6xf32>) -> tensor<8x6xf32>
    %h = stablehlo.tanh %a : tensor<8x6xf32>
    %z = stablehlo.dot_general %h, %w, contracting_dims = [1] x [0] : (tensor<8x6xf32>, tensor<6x8xf32>) -> tensor<8x8xf32>
    %y = "stablehlo.reduce_scatter"(%z) <{replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>, scatter_dimension = 0 : i64}> ({
    ^bb0(%p: tensor<f32>, %q: tensor<f32>):
      %s = stablehlo.add %p, %q : tensor<f32>
      stablehlo.return %s : tensor<f32>
    }) : (tensor<8x8xf32>) -> tensor<4x8xf32>
    %e = "stablehlo.all_gather"(%y) <{all_gather_dim = 0 : i64, replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>}> : (tensor<4x8xf32>) -> tensor<8x8xf32>
    %d = stablehlo.dot_general %h, %e, contracting_dims = [0] x [0] : (tensor<8x6xf32>, tensor<8x8xf32>) -> tensor<6x8xf32>
    return %y, %d : tensor<4x8xf32>, tensor<6x8xf32>
  }

  // CHECK-LABEL: func.func private @products_that_read_the_same_rows
  func.func private @products_that_read_the_same_rows(%x: tensor<4x8xf32>, %u: tensor<8x6xf32>, %v: tensor<8x6xf32>, %w: tensor<6x8xf32>) -> (tensor<4x8xf32>, tensor<6x8xf32>) {
    // CHECK: %[[G1:.*]] = "stablehlo.all_gather"(%{{.*}}#0)
    // CHECK: %[[L0:.*]] = stablehlo.dot_general %[[G0:.*]], %arg1
    // CHECK: %[[B0:.*]]:2 = stablehlo.optimization_barrier %[[G0]], %[[L0]]
    // CHECK: %[[R0:.*]] = stablehlo.dot_general %[[B0]]#0, %arg2
    // CHECK: stablehlo.optimization_barrier %[[B0]]#1, %[[R0]], %[[G1]]
    %g = "stablehlo.all_gather"(%x) <{all_gather_dim = 0 : i64, replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>}> {shmap.overlap = {name = "row-chunks", parts = 2 : i64}} : (tensor<4x8xf32>) -> tensor<8x8xf32>
    %l = stablehlo.dot_general %g, %u, contracting_dims = [1] x [0] : (tensor<8x8xf32>, tensor<8x6xf32>) -> tensor<8x6xf32>
    %r = stablehlo.dot_general %g, %v, contracting_dims = [1] x [0] : (tensor<8x8xf32>, tensor<8x6xf32>) -> tensor<8x6xf32>
    %h = stablehlo.multiply %l, %r : tensor<8x6xf32>
    %z = stablehlo.dot_general %h, %w, contracting_dims = [1] x [0] : (tensor<8x6xf32>, tensor<6x8xf32>) -> tensor<8x8xf32>
    %y = "stablehlo.reduce_scatter"(%z) <{replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>, scatter_dimension = 0 : i64}> ({
    ^bb0(%p: tensor<f32>, %q: tensor<f32>):
      %s = stablehlo.add %p, %q : tensor<f32>
      stablehlo.return %s : tensor<f32>
    }) : (tensor<8x8xf32>) -> tensor<4x8xf32>
    %e = "stablehlo.all_gather"(%y) <{all_gather_dim = 0 : i64, replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>}> : (tensor<4x8xf32>) -> tensor<8x8xf32>
    %d = stablehlo.dot_general %h, %e, contracting_dims = [0] x [0] : (tensor<8x6xf32>, tensor<8x8xf32>) -> tensor<6x8xf32>
    return %y, %d : tensor<4x8xf32>, tensor<6x8xf32>
  }
}
