// RUN: shmap-opt %s --shmap-overlap-row-block | FileCheck %s

// CHECK-LABEL: module @all_axes_are_manual
module @all_axes_are_manual {
  sdy.mesh @mesh = <["i"=2, "j"=2]>
  func.func public @main() attributes {sdy.manual_axes = #sdy<manual_axes{"i", "j"}>} {
    return
  }

  // CHECK-LABEL: func.func private @an_mlp_and_the_gradient_of_its_last_weights
  func.func private @an_mlp_and_the_gradient_of_its_last_weights(%x: tensor<4x8xf32>, %v: tensor<8x6xf32>, %w: tensor<6x8xf32>) -> (tensor<4x8xf32>, tensor<6x8xf32>) {
    // CHECK: %[[X0:.*]] = stablehlo.slice %arg0 [0:2, 0:8]
    // CHECK: %[[G0:.*]] = "stablehlo.all_gather"(%[[X0]]){{.*}} -> tensor<4x8xf32>
    // CHECK: %[[X1:.*]] = stablehlo.slice %arg0 [2:4, 0:8]
    // CHECK: %[[B0:.*]]:2 = stablehlo.optimization_barrier %[[X1]], %[[G0]]
    // CHECK: %[[G1:.*]] = "stablehlo.all_gather"(%[[B0]]#0)
    // CHECK: %[[A0:.*]] = call @shmap_chunk(%[[B0]]#1, %arg1)
    // CHECK: %[[B1:.*]]:2 = stablehlo.optimization_barrier %[[A0]], %[[G1]]
    // CHECK: %[[A1:.*]] = call @shmap_chunk(%[[B1]]#1, %arg1)
    // CHECK: %[[A:.*]]:2 = stablehlo.optimization_barrier %[[B1]]#0, %[[A1]]
    // A partial sum of the first chunk, and one of the second; what a product needs is computed again.
    // CHECK: %[[Z0:.*]] = call @shmap_product({{.*}}, %[[A]]#0, %[[T:.*]], %arg2)
    // CHECK: %[[Z1:.*]] = call @shmap_product({{.*}}, %[[A]]#1, %[[T]], %arg2)
    // CHECK: %[[R0:.*]] = "stablehlo.collective_permute"(%[[Z0]])
    // CHECK: %[[S0:.*]]:2 = call @shmap_add(%[[R0]], {{.*}}, %[[A]]#0, {{.*}}, %[[T]], %arg2)
    // CHECK: %[[Y0:.*]] = stablehlo.dynamic_update_slice %[[S0]]#1, %[[S0]]#0
    // CHECK: %[[R1:.*]] = "stablehlo.collective_permute"(%[[Z1]])
    // CHECK: %[[S1:.*]]:2 = call @shmap_add(%[[R1]], {{.*}}, %[[A]]#1, %[[Y0]], %[[T]], %arg2)
    // CHECK: %[[Y:.*]] = stablehlo.dynamic_update_slice
    // CHECK: stablehlo.slice %[[Y]] [0:2, 0:8]
    // CHECK: "stablehlo.all_gather"
    // CHECK: %[[B2:.*]]:2 = stablehlo.optimization_barrier
    // CHECK: "stablehlo.all_gather"
    // CHECK: %[[D0:.*]] = call @shmap_chunk_0(%[[A]]#0, %[[B2]]#1)
    // CHECK: %[[B3:.*]]:2 = stablehlo.optimization_barrier %[[D0]],
    // CHECK: %[[D1:.*]] = call @shmap_chunk_0(%[[A]]#1, %[[B3]]#1)
    // CHECK: %[[D:.*]] = stablehlo.add %[[B3]]#0, %[[D1]] : tensor<6x8xf32>
    // CHECK-NOT: "stablehlo.reduce_scatter"
    // CHECK: return %[[Y]], %[[D]]
    // CHECK: func.func private @shmap_chunk_0
    // CHECK: %[[H:.*]] = stablehlo.tanh %arg0 : tensor<4x6xf32>
    // CHECK: stablehlo.dot_general %[[H]], %arg1, contracting_dims = [0] x [0]
    // CHECK: func.func private @shmap_add
    // CHECK: %[[B:.*]]:3 = stablehlo.optimization_barrier %arg0, %arg2, %arg3
    // CHECK: %[[P:.*]] = call @shmap_product(%arg1, %[[B]]#1, %arg4, %arg5)
    // CHECK: stablehlo.add %[[B]]#0, %[[P]]
    // CHECK: func.func private @shmap_product
    // CHECK: %[[P:.*]] = stablehlo.dynamic_slice %arg1, {{.*}} -> tensor<2x6xf32>
    // CHECK: %[[H:.*]] = stablehlo.tanh %[[P]]
    // CHECK: stablehlo.dot_general %[[H]], %arg3
    // CHECK: func.func private @shmap_chunk(
    // CHECK: stablehlo.dot_general %arg0, %arg1
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

  // CHECK-LABEL: func.func private @halves_of_a_product_a_bias_and_sums_of_rows
  func.func private @halves_of_a_product_a_bias_and_sums_of_rows(%x: tensor<4x8xf32>, %v: tensor<8x12xf32>, %b: tensor<1x12xf32>, %w: tensor<6x8xf32>, %u: tensor<6x8xf32>) -> (tensor<4x8xf32>, tensor<6x8xf32>, tensor<8xf32>) {
    // CHECK-NOT: "stablehlo.reduce_scatter"
    // Of a chunk the product is kept, and its halves are taken from it where they are needed.
    // CHECK: call @shmap_chunk{{.*}} -> tensor<4x12xf32>
    // CHECK: call @[[SUMS:shmap_chunk_[0-9]+]](%{{.*}}) {{.*}} -> (tensor<8xf32>, tensor<6x8xf32>)
    // CHECK: func.func private @[[SUMS]](
    // CHECK: stablehlo.reduce(%{{.*}} init: %{{.*}}) applies stablehlo.add across dimensions = [0] : (tensor<4x8xf32>, tensor<f32>) -> tensor<8xf32>
    // CHECK: stablehlo.broadcast_in_dim %{{.*}}, dims = [0, 1] : (tensor<1x12xf32>) -> tensor<4x12xf32>
    // CHECK: stablehlo.slice %{{.*}} [0:4, 0:6] : (tensor<4x12xf32>)
    %g = "stablehlo.all_gather"(%x) <{all_gather_dim = 0 : i64, replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>}> {shmap.overlap = {name = "row-chunks", parts = 2 : i64}} : (tensor<4x8xf32>) -> tensor<8x8xf32>
    %a = stablehlo.dot_general %g, %v, contracting_dims = [1] x [0] : (tensor<8x8xf32>, tensor<8x12xf32>) -> tensor<8x12xf32>
    %i = stablehlo.broadcast_in_dim %b, dims = [0, 1] : (tensor<1x12xf32>) -> tensor<8x12xf32>
    %j = stablehlo.add %a, %i : tensor<8x12xf32>
    %l = stablehlo.slice %j [0:8, 0:6] : (tensor<8x12xf32>) -> tensor<8x6xf32>
    %r = stablehlo.slice %j [0:8, 6:12] : (tensor<8x12xf32>) -> tensor<8x6xf32>
    %h = stablehlo.multiply %l, %r : tensor<8x6xf32>
    %y0 = stablehlo.dot_general %h, %w, contracting_dims = [1] x [0] : (tensor<8x6xf32>, tensor<6x8xf32>) -> tensor<8x8xf32>
    %y1 = stablehlo.dot_general %r, %u, contracting_dims = [1] x [0] : (tensor<8x6xf32>, tensor<6x8xf32>) -> tensor<8x8xf32>
    %z = stablehlo.add %y0, %y1 : tensor<8x8xf32>
    %y = "stablehlo.reduce_scatter"(%z) <{replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>, scatter_dimension = 0 : i64}> ({
    ^bb0(%p: tensor<f32>, %q: tensor<f32>):
      %s = stablehlo.add %p, %q : tensor<f32>
      stablehlo.return %s : tensor<f32>
    }) : (tensor<8x8xf32>) -> tensor<4x8xf32>
    %e = "stablehlo.all_gather"(%y) <{all_gather_dim = 0 : i64, replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>}> : (tensor<4x8xf32>) -> tensor<8x8xf32>
    %zero = stablehlo.constant dense<0.0> : tensor<f32>
    %c = stablehlo.reduce(%e init: %zero) applies stablehlo.add across dimensions = [0] : (tensor<8x8xf32>, tensor<f32>) -> tensor<8xf32>
    %d = stablehlo.dot_general %h, %e, contracting_dims = [0] x [0] : (tensor<8x6xf32>, tensor<8x8xf32>) -> tensor<6x8xf32>
    return %y, %d, %c : tensor<4x8xf32>, tensor<6x8xf32>, tensor<8xf32>
  }

  // CHECK-LABEL: func.func private @rows_that_become_several
  func.func private @rows_that_become_several(%x: tensor<4x8xf32>, %v: tensor<8x6xf32>, %w: tensor<6x8xf32>) -> (tensor<4x8xf32>, tensor<6x8xf32>, tensor<8xf32>) {
    // CHECK-NOT: collective_permute
    // CHECK: "stablehlo.all_gather"{{.*}} -> tensor<8x8xf32>
    // CHECK: "stablehlo.reduce_scatter"
    %g = "stablehlo.all_gather"(%x) <{all_gather_dim = 0 : i64, replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>}> {shmap.overlap = {name = "row-chunks", parts = 2 : i64}} : (tensor<4x8xf32>) -> tensor<8x8xf32>
    %a = stablehlo.dot_general %g, %v, contracting_dims = [1] x [0] : (tensor<8x8xf32>, tensor<8x6xf32>) -> tensor<8x6xf32>
    %k = stablehlo.reshape %a : (tensor<8x6xf32>) -> tensor<16x3xf32>
    %t = stablehlo.tanh %k : tensor<16x3xf32>
    %h = stablehlo.reshape %t : (tensor<16x3xf32>) -> tensor<8x6xf32>
    %z = stablehlo.dot_general %h, %w, contracting_dims = [1] x [0] : (tensor<8x6xf32>, tensor<6x8xf32>) -> tensor<8x8xf32>
    %y = "stablehlo.reduce_scatter"(%z) <{replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>, scatter_dimension = 0 : i64}> ({
    ^bb0(%p: tensor<f32>, %q: tensor<f32>):
      %s = stablehlo.add %p, %q : tensor<f32>
      stablehlo.return %s : tensor<f32>
    }) : (tensor<8x8xf32>) -> tensor<4x8xf32>
    %e = "stablehlo.all_gather"(%y) <{all_gather_dim = 0 : i64, replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>}> : (tensor<4x8xf32>) -> tensor<8x8xf32>
    %d = stablehlo.dot_general %h, %e, contracting_dims = [0] x [0] : (tensor<8x6xf32>, tensor<8x8xf32>) -> tensor<6x8xf32>
    %c = stablehlo.constant dense<0.0> : tensor<8xf32>
    return %y, %d, %c : tensor<4x8xf32>, tensor<6x8xf32>, tensor<8xf32>
  }

  // CHECK-LABEL: func.func private @a_sum_that_begins_with_one
  func.func private @a_sum_that_begins_with_one(%x: tensor<4x8xf32>, %v: tensor<8x6xf32>, %w: tensor<6x8xf32>) -> (tensor<4x8xf32>, tensor<6x8xf32>, tensor<8xf32>) {
    // CHECK-NOT: collective_permute
    // CHECK: "stablehlo.all_gather"{{.*}} -> tensor<8x8xf32>
    // CHECK: "stablehlo.reduce_scatter"
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
    %one = stablehlo.constant dense<1.0> : tensor<f32>
    %c = stablehlo.reduce(%e init: %one) applies stablehlo.add across dimensions = [0] : (tensor<8x8xf32>, tensor<f32>) -> tensor<8xf32>
    return %y, %d, %c : tensor<4x8xf32>, tensor<6x8xf32>, tensor<8xf32>
  }

  // CHECK-LABEL: func.func private @a_maximum_of_rows
  func.func private @a_maximum_of_rows(%x: tensor<4x8xf32>, %v: tensor<8x6xf32>, %w: tensor<6x8xf32>) -> (tensor<4x8xf32>, tensor<6x8xf32>, tensor<8xf32>) {
    // CHECK-NOT: collective_permute
    // CHECK: "stablehlo.all_gather"{{.*}} -> tensor<8x8xf32>
    // CHECK: "stablehlo.reduce_scatter"
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
    %o = stablehlo.constant dense<0.0> : tensor<f32>
    %c = stablehlo.reduce(%e init: %o) applies stablehlo.maximum across dimensions = [0] : (tensor<8x8xf32>, tensor<f32>) -> tensor<8xf32>
    return %y, %d, %c : tensor<4x8xf32>, tensor<6x8xf32>, tensor<8xf32>
  }

  // CHECK-LABEL: func.func private @a_sum_along_rows
  func.func private @a_sum_along_rows(%x: tensor<4x8xf32>, %v: tensor<8x6xf32>, %w: tensor<6x8xf32>) -> (tensor<4x8xf32>, tensor<6x8xf32>, tensor<8xf32>) {
    // CHECK-NOT: collective_permute
    // CHECK: "stablehlo.all_gather"{{.*}} -> tensor<8x8xf32>
    // CHECK: "stablehlo.reduce_scatter"
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
    %one = stablehlo.constant dense<0.0> : tensor<f32>
    %c = stablehlo.reduce(%e init: %one) applies stablehlo.add across dimensions = [1] : (tensor<8x8xf32>, tensor<f32>) -> tensor<8xf32>
    return %y, %d, %c : tensor<4x8xf32>, tensor<6x8xf32>, tensor<8xf32>
  }

  // CHECK-LABEL: func.func private @a_block_without_a_form
  func.func private @a_block_without_a_form(%x: tensor<4x8xf32>, %v: tensor<8x6xf32>, %w: tensor<6x8xf32>) -> (tensor<4x8xf32>, tensor<6x8xf32>) {
    // CHECK-NOT: collective_permute
    // CHECK: "stablehlo.all_gather"{{.*}} -> tensor<8x8xf32>
    // CHECK: "stablehlo.reduce_scatter"
    // CHECK: "stablehlo.all_gather"{{.*}} -> tensor<8x8xf32>
    %g = "stablehlo.all_gather"(%x) <{all_gather_dim = 0 : i64, replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>}> : (tensor<4x8xf32>) -> tensor<8x8xf32>
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

  // CHECK-LABEL: func.func private @rows_that_cannot_be_cut
  func.func private @rows_that_cannot_be_cut(%x: tensor<4x8xf32>, %v: tensor<8x6xf32>, %w: tensor<6x8xf32>) -> (tensor<4x8xf32>, tensor<6x8xf32>) {
    // CHECK-NOT: collective_permute
    // CHECK: "stablehlo.all_gather"{{.*}} -> tensor<8x8xf32>
    // CHECK: "stablehlo.reduce_scatter"
    // CHECK: "stablehlo.all_gather"{{.*}} -> tensor<8x8xf32>
    %g = "stablehlo.all_gather"(%x) <{all_gather_dim = 0 : i64, replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>}> {shmap.overlap = {name = "row-chunks", parts = 3 : i64}} : (tensor<4x8xf32>) -> tensor<8x8xf32>
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

  // CHECK-LABEL: func.func private @rows_that_others_read
  func.func private @rows_that_others_read(%x: tensor<4x8xf32>, %v: tensor<8x6xf32>, %w: tensor<6x8xf32>) -> (tensor<4x8xf32>, tensor<6x8xf32>, tensor<8x6xf32>) {
    // CHECK-NOT: collective_permute
    // CHECK: "stablehlo.all_gather"{{.*}} -> tensor<8x8xf32>
    // CHECK: "stablehlo.reduce_scatter"
    // CHECK: "stablehlo.all_gather"{{.*}} -> tensor<8x8xf32>
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
    return %y, %d, %h : tensor<4x8xf32>, tensor<6x8xf32>, tensor<8x6xf32>
  }

  // CHECK-LABEL: func.func private @a_sum_over_rows_of_what_is_not_gathered
  func.func private @a_sum_over_rows_of_what_is_not_gathered(%x: tensor<4x8xf32>, %v: tensor<8x6xf32>, %w: tensor<6x8xf32>) -> (tensor<4x8xf32>, tensor<6x8xf32>) {
    // CHECK-NOT: collective_permute
    // CHECK: "stablehlo.all_gather"{{.*}} -> tensor<8x8xf32>
    // CHECK: "stablehlo.reduce_scatter"
    // CHECK: "stablehlo.all_gather"{{.*}} -> tensor<8x8xf32>
    %g = "stablehlo.all_gather"(%x) <{all_gather_dim = 0 : i64, replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>}> {shmap.overlap = {name = "row-chunks", parts = 2 : i64}} : (tensor<4x8xf32>) -> tensor<8x8xf32>
    %a = stablehlo.dot_general %g, %v, contracting_dims = [1] x [0] : (tensor<8x8xf32>, tensor<8x6xf32>) -> tensor<8x6xf32>
    %h = stablehlo.tanh %a : tensor<8x6xf32>
    %z = stablehlo.dot_general %h, %w, contracting_dims = [1] x [0] : (tensor<8x6xf32>, tensor<6x8xf32>) -> tensor<8x8xf32>
    %y = "stablehlo.reduce_scatter"(%z) <{replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>, scatter_dimension = 0 : i64}> ({
    ^bb0(%p: tensor<f32>, %q: tensor<f32>):
      %s = stablehlo.add %p, %q : tensor<f32>
      stablehlo.return %s : tensor<f32>
    }) : (tensor<8x8xf32>) -> tensor<4x8xf32>
    %c = stablehlo.iota dim = 0 : tensor<8x8xf32>
    %e = "stablehlo.all_gather"(%y) <{all_gather_dim = 0 : i64, replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>}> : (tensor<4x8xf32>) -> tensor<8x8xf32>
    %d = stablehlo.dot_general %h, %c, contracting_dims = [0] x [0] : (tensor<8x6xf32>, tensor<8x8xf32>) -> tensor<6x8xf32>
    return %y, %d : tensor<4x8xf32>, tensor<6x8xf32>
  }

  // CHECK-LABEL: func.func private @no_sum_over_rows
  func.func private @no_sum_over_rows(%x: tensor<4x8xf32>, %v: tensor<8x6xf32>, %w: tensor<6x8xf32>) -> (tensor<4x8xf32>, tensor<6x8xf32>) {
    // CHECK-NOT: collective_permute
    // CHECK: "stablehlo.all_gather"{{.*}} -> tensor<8x8xf32>
    // CHECK: "stablehlo.reduce_scatter"
    // CHECK: "stablehlo.all_gather"{{.*}} -> tensor<8x8xf32>
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
    %f = stablehlo.negate %e : tensor<8x8xf32>
    return %y, %w : tensor<4x8xf32>, tensor<6x8xf32>
  }
}
