// RUN: shmap-opt %s --shmap-overlap-gather-scatter | FileCheck %s

// CHECK-LABEL: module @all_axes_are_manual
module @all_axes_are_manual {
  sdy.mesh @mesh = <["i"=4, "j"=2]>
  func.func public @main() attributes {sdy.manual_axes = #sdy<manual_axes{"i", "j"}>} {
    return
  }

  // CHECK-LABEL: func.func private @a_block_in_two_stages
  func.func private @a_block_in_two_stages(%x: tensor<4x8xf32>, %v: tensor<8x6xf32>, %w: tensor<6x8xf32>) -> tensor<4x8xf32> {
    // CHECK: %[[X0:.*]] = stablehlo.slice %arg0 [0:2, 0:8]
    // CHECK: %[[G0:.*]] = "stablehlo.all_gather"(%[[X0]]){{.*}} -> tensor<8x8xf32>
    // CHECK: %[[X1:.*]] = stablehlo.slice %arg0 [2:4, 0:8]
    // CHECK: %[[B0:.*]]:2 = stablehlo.optimization_barrier %[[X1]], %[[G0]]
    // CHECK: %[[G1:.*]] = "stablehlo.all_gather"(%[[B0]]#0)
    // CHECK: %[[A0:.*]] = stablehlo.dot_general %[[B0]]#1, %arg1
    // CHECK: %[[H0:.*]] = stablehlo.tanh %[[A0]]
    // CHECK: %[[B1:.*]]:2 = stablehlo.optimization_barrier %[[H0]], %[[G1]]
    // CHECK: %[[Z0:.*]] = stablehlo.dot_general %[[B1]]#0, %arg2
    // CHECK: %[[B2:.*]]:2 = stablehlo.optimization_barrier %[[Z0]], %[[B1]]#1
    // CHECK: %[[A1:.*]] = stablehlo.dot_general %[[B2]]#1, %arg1
    // CHECK: %[[H1:.*]] = stablehlo.tanh %[[A1]]
    // CHECK: %[[B3:.*]]:2 = stablehlo.optimization_barrier %[[H1]], %[[B2]]#0
    // CHECK: %[[Y0:.*]] = "stablehlo.reduce_scatter"(%[[B3]]#1)
    // CHECK: %[[Z1:.*]] = stablehlo.dot_general %[[B3]]#0, %arg2
    // CHECK: %[[B4:.*]]:2 = stablehlo.optimization_barrier %[[Z1]], %[[Y0]]
    // CHECK: %[[Y1:.*]] = "stablehlo.reduce_scatter"(%[[B4]]#0)
    // CHECK: stablehlo.concatenate %[[B4]]#1, %[[Y1]], dim = 0
    %g = "stablehlo.all_gather"(%x) <{all_gather_dim = 0 : i64, replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>}> {shmap.overlap = {name = "stages", parts = 2 : i64, in_place = false}} : (tensor<4x8xf32>) -> tensor<16x8xf32>
    %a = stablehlo.dot_general %g, %v, contracting_dims = [1] x [0] : (tensor<16x8xf32>, tensor<8x6xf32>) -> tensor<16x6xf32>
    %h = stablehlo.tanh %a : tensor<16x6xf32>
    %z = stablehlo.dot_general %h, %w, contracting_dims = [1] x [0] : (tensor<16x6xf32>, tensor<6x8xf32>) -> tensor<16x8xf32>
    %y = "stablehlo.reduce_scatter"(%z) <{replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>, scatter_dimension = 0 : i64}> ({
    ^bb0(%p: tensor<f32>, %q: tensor<f32>):
      %s = stablehlo.add %p, %q : tensor<f32>
      stablehlo.return %s : tensor<f32>
    }) : (tensor<16x8xf32>) -> tensor<4x8xf32>
    return %y : tensor<4x8xf32>
  }

  // CHECK-LABEL: func.func private @two_products_first_without_barriers
  func.func private @two_products_first_without_barriers(%x: tensor<4x8xf32>, %v: tensor<8x6xf32>, %w: tensor<6x8xf32>) -> tensor<4x8xf32> {
    // CHECK-NOT: stablehlo.optimization_barrier
    // CHECK-COUNT-3: stablehlo.dot_general{{.*}} -> tensor<8x
    // CHECK: stablehlo.negate %{{.*}} : tensor<8x8xf32>
    // CHECK: "stablehlo.reduce_scatter"
    // CHECK: tensor<8x8xf32>) -> tensor<2x8xf32>
    // CHECK: stablehlo.dynamic_update_slice
    %g = "stablehlo.all_gather"(%x) <{all_gather_dim = 0 : i64, replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>}> {shmap.overlap = {name = "stages", parts = 2 : i64, barriers = false}} : (tensor<4x8xf32>) -> tensor<16x8xf32>
    %a = stablehlo.dot_general %g, %v, contracting_dims = [1] x [0] : (tensor<16x8xf32>, tensor<8x6xf32>) -> tensor<16x6xf32>
    %b = stablehlo.dot_general %g, %v, contracting_dims = [1] x [0] : (tensor<16x8xf32>, tensor<8x6xf32>) -> tensor<16x6xf32>
    %h = stablehlo.multiply %a, %b : tensor<16x6xf32>
    %z = stablehlo.dot_general %h, %w, contracting_dims = [1] x [0] : (tensor<16x6xf32>, tensor<6x8xf32>) -> tensor<16x8xf32>
    %n = stablehlo.negate %z : tensor<16x8xf32>
    %y = "stablehlo.reduce_scatter"(%n) <{replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>, scatter_dimension = 0 : i64}> ({
    ^bb0(%p: tensor<f32>, %q: tensor<f32>):
      %s = stablehlo.add %p, %q : tensor<f32>
      stablehlo.return %s : tensor<f32>
    }) : (tensor<16x8xf32>) -> tensor<4x8xf32>
    return %y : tensor<4x8xf32>
  }

  // CHECK-LABEL: func.func private @what_is_between_is_used_again
  func.func private @what_is_between_is_used_again(%x: tensor<4x8xf32>, %v: tensor<8x6xf32>, %w: tensor<6x8xf32>) -> (tensor<4x8xf32>, tensor<16x6xf32>) {
    // CHECK-NEXT: "stablehlo.all_gather"(%arg0)
    // CHECK-NOT: shmap.overlap
    %g = "stablehlo.all_gather"(%x) <{all_gather_dim = 0 : i64, replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>}> {shmap.overlap = {name = "stages", parts = 2 : i64, in_place = false}} : (tensor<4x8xf32>) -> tensor<16x8xf32>
    %a = stablehlo.dot_general %g, %v, contracting_dims = [1] x [0] : (tensor<16x8xf32>, tensor<8x6xf32>) -> tensor<16x6xf32>
    %h = stablehlo.tanh %a : tensor<16x6xf32>
    %z = stablehlo.dot_general %h, %w, contracting_dims = [1] x [0] : (tensor<16x6xf32>, tensor<6x8xf32>) -> tensor<16x8xf32>
    %y = "stablehlo.reduce_scatter"(%z) <{replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>, scatter_dimension = 0 : i64}> ({
    ^bb0(%p: tensor<f32>, %q: tensor<f32>):
      %s = stablehlo.add %p, %q : tensor<f32>
      stablehlo.return %s : tensor<f32>
    }) : (tensor<16x8xf32>) -> tensor<4x8xf32>
    return %y, %h : tensor<4x8xf32>, tensor<16x6xf32>
  }

  // CHECK-LABEL: func.func private @one_product
  func.func private @one_product(%x: tensor<4x8xf32>, %v: tensor<8x6xf32>, %w: tensor<6x8xf32>) -> tensor<4x6xf32> {
    // CHECK-NEXT: "stablehlo.all_gather"(%arg0)
    // CHECK-NOT: shmap.overlap
    %g = "stablehlo.all_gather"(%x) <{all_gather_dim = 0 : i64, replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>}> {shmap.overlap = {name = "stages", parts = 2 : i64, in_place = false}} : (tensor<4x8xf32>) -> tensor<16x8xf32>
    %a = stablehlo.dot_general %g, %v, contracting_dims = [1] x [0] : (tensor<16x8xf32>, tensor<8x6xf32>) -> tensor<16x6xf32>
    %y = "stablehlo.reduce_scatter"(%a) <{replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>, scatter_dimension = 0 : i64}> ({
    ^bb0(%p: tensor<f32>, %q: tensor<f32>):
      %s = stablehlo.add %p, %q : tensor<f32>
      stablehlo.return %s : tensor<f32>
    }) : (tensor<16x6xf32>) -> tensor<4x6xf32>
    return %y : tensor<4x6xf32>
  }

  // CHECK-LABEL: func.func private @an_odd_number_of_rows
  func.func private @an_odd_number_of_rows(%x: tensor<4x8xf32>, %v: tensor<8x6xf32>, %w: tensor<6x8xf32>) -> tensor<4x8xf32> {
    // CHECK-NEXT: "stablehlo.all_gather"(%arg0)
    // CHECK-NOT: shmap.overlap
    %g = "stablehlo.all_gather"(%x) <{all_gather_dim = 0 : i64, replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>}> {shmap.overlap = {name = "stages", parts = 3 : i64, in_place = false}} : (tensor<4x8xf32>) -> tensor<16x8xf32>
    %a = stablehlo.dot_general %g, %v, contracting_dims = [1] x [0] : (tensor<16x8xf32>, tensor<8x6xf32>) -> tensor<16x6xf32>
    %h = stablehlo.tanh %a : tensor<16x6xf32>
    %z = stablehlo.dot_general %h, %w, contracting_dims = [1] x [0] : (tensor<16x6xf32>, tensor<6x8xf32>) -> tensor<16x8xf32>
    %y = "stablehlo.reduce_scatter"(%z) <{replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>, scatter_dimension = 0 : i64}> ({
    ^bb0(%p: tensor<f32>, %q: tensor<f32>):
      %s = stablehlo.add %p, %q : tensor<f32>
      stablehlo.return %s : tensor<f32>
    }) : (tensor<16x8xf32>) -> tensor<4x8xf32>
    return %y : tensor<4x8xf32>
  }

  // CHECK-LABEL: func.func private @over_other_axes
  func.func private @over_other_axes(%x: tensor<4x8xf32>, %v: tensor<8x6xf32>, %w: tensor<6x8xf32>) -> tensor<8x8xf32> {
    // CHECK-NEXT: "stablehlo.all_gather"(%arg0)
    // CHECK-NOT: shmap.overlap
    %g = "stablehlo.all_gather"(%x) <{all_gather_dim = 0 : i64, replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>}> {shmap.overlap = {name = "stages", parts = 2 : i64, in_place = false}} : (tensor<4x8xf32>) -> tensor<16x8xf32>
    %a = stablehlo.dot_general %g, %v, contracting_dims = [1] x [0] : (tensor<16x8xf32>, tensor<8x6xf32>) -> tensor<16x6xf32>
    %z = stablehlo.dot_general %a, %w, contracting_dims = [1] x [0] : (tensor<16x6xf32>, tensor<6x8xf32>) -> tensor<16x8xf32>
    %y = "stablehlo.reduce_scatter"(%z) <{replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "j">]>, scatter_dimension = 0 : i64}> ({
    ^bb0(%p: tensor<f32>, %q: tensor<f32>):
      %s = stablehlo.add %p, %q : tensor<f32>
      stablehlo.return %s : tensor<f32>
    }) : (tensor<16x8xf32>) -> tensor<8x8xf32>
    return %y : tensor<8x8xf32>
  }

  // CHECK-LABEL: func.func private @the_largest_of_each
  func.func private @the_largest_of_each(%x: tensor<4x8xf32>, %v: tensor<8x6xf32>, %w: tensor<6x8xf32>) -> tensor<4x8xf32> {
    // CHECK-NEXT: "stablehlo.all_gather"(%arg0)
    // CHECK-NOT: shmap.overlap
    %g = "stablehlo.all_gather"(%x) <{all_gather_dim = 0 : i64, replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>}> {shmap.overlap = {name = "stages", parts = 2 : i64, in_place = false}} : (tensor<4x8xf32>) -> tensor<16x8xf32>
    %a = stablehlo.dot_general %g, %v, contracting_dims = [1] x [0] : (tensor<16x8xf32>, tensor<8x6xf32>) -> tensor<16x6xf32>
    %h = stablehlo.tanh %a : tensor<16x6xf32>
    %z = stablehlo.dot_general %h, %w, contracting_dims = [1] x [0] : (tensor<16x6xf32>, tensor<6x8xf32>) -> tensor<16x8xf32>
    %y = "stablehlo.reduce_scatter"(%z) <{replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>, scatter_dimension = 0 : i64}> ({
    ^bb0(%p: tensor<f32>, %q: tensor<f32>):
      %s = stablehlo.maximum %p, %q : tensor<f32>
      stablehlo.return %s : tensor<f32>
    }) : (tensor<16x8xf32>) -> tensor<4x8xf32>
    return %y : tensor<4x8xf32>
  }

  // CHECK-LABEL: func.func private @nothing_is_chosen
  func.func private @nothing_is_chosen(%x: tensor<4x8xf32>, %v: tensor<8x6xf32>, %w: tensor<6x8xf32>) -> tensor<4x8xf32> {
    // CHECK-NEXT: "stablehlo.all_gather"(%arg0)
    // CHECK-NOT: shmap.overlap
    %g = "stablehlo.all_gather"(%x) <{all_gather_dim = 0 : i64, replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>}> : (tensor<4x8xf32>) -> tensor<16x8xf32>
    %a = stablehlo.dot_general %g, %v, contracting_dims = [1] x [0] : (tensor<16x8xf32>, tensor<8x6xf32>) -> tensor<16x6xf32>
    %h = stablehlo.tanh %a : tensor<16x6xf32>
    %z = stablehlo.dot_general %h, %w, contracting_dims = [1] x [0] : (tensor<16x6xf32>, tensor<6x8xf32>) -> tensor<16x8xf32>
    %y = "stablehlo.reduce_scatter"(%z) <{replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>, scatter_dimension = 0 : i64}> ({
    ^bb0(%p: tensor<f32>, %q: tensor<f32>):
      %s = stablehlo.add %p, %q : tensor<f32>
      stablehlo.return %s : tensor<f32>
    }) : (tensor<16x8xf32>) -> tensor<4x8xf32>
    return %y : tensor<4x8xf32>
  }
}
