// RUN: shmap-opt %s --shmap-overlap-sequence-block | FileCheck %s

// CHECK-LABEL: module @all_axes_are_manual
module @all_axes_are_manual {
  sdy.mesh @mesh = <["i"=2, "j"=2]>
  func.func public @main() attributes {sdy.manual_axes = #sdy<manual_axes{"i", "j"}>} {
    return
  }

  // CHECK-LABEL: func.func private @attention(
  func.func private @attention(%x: tensor<4x3x8xf32>, %v: tensor<8x2xf32>, %w: tensor<2x8xf32>) -> tensor<4x3x8xf32> {
    // CHECK: %[[X0:.*]] = stablehlo.slice %arg0 [0:2, 0:3, 0:8]
    // CHECK: %[[G0:.*]] = "stablehlo.all_gather"(%[[X0]]){{.*}} -> tensor<2x6x8xf32>
    // CHECK: %[[X1:.*]] = stablehlo.slice %arg0 [2:4, 0:3, 0:8]
    // CHECK: %[[B0:.*]]:2 = stablehlo.optimization_barrier %[[X1]], %[[G0]]
    // CHECK: %[[G1:.*]] = "stablehlo.all_gather"(%[[B0]]#0)
    // CHECK: %[[A0:.*]] = call @shmap_sequences(%[[B0]]#1, %arg1)
    // CHECK: %[[B1:.*]]:2 = stablehlo.optimization_barrier %[[A0]], %[[G1]]
    // CHECK: %[[Z0:.*]] = stablehlo.dot_general %[[B1]]#0, %arg2
    // The sum of the first chunk ends beside the other one.
    // CHECK: %[[Y0:.*]] = "stablehlo.reduce_scatter"(%[[Z0]])
    // CHECK: %[[A1:.*]] = call @shmap_sequences(%[[B1]]#1, %arg1)
    // CHECK: %[[B2:.*]]:2 = stablehlo.optimization_barrier %[[A1]], %[[Y0]]
    // CHECK: %[[Z1:.*]] = stablehlo.dot_general %[[B2]]#0, %arg2
    // CHECK: %[[Y1:.*]] = "stablehlo.reduce_scatter"(%[[Z1]]){{.*}}scatter_dimension = 1
    // CHECK: %[[J0:.*]] = stablehlo.dynamic_update_slice {{.*}}, %[[B2]]#1
    // CHECK: %[[J1:.*]] = stablehlo.dynamic_update_slice %[[J0]], %[[Y1]]
    // CHECK: return %[[J1]]
    // What reads the gathered rows is there before the scores are computed.
    // CHECK: func.func private @shmap_sequences
    // CHECK: %[[Q:.*]] = stablehlo.dot_general %arg0, %arg1
    // CHECK: %[[K:.*]] = stablehlo.optimization_barrier %[[Q]]
    // CHECK: stablehlo.tanh %[[K]]
    // CHECK: batching_dims = [0] x [0]
    %g = "stablehlo.all_gather"(%x) <{all_gather_dim = 1 : i64, replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>}> {shmap.overlap = {name = "sequences", parts = 2 : i64}} : (tensor<4x3x8xf32>) -> tensor<4x6x8xf32>
    %q = stablehlo.dot_general %g, %v, contracting_dims = [2] x [0] : (tensor<4x6x8xf32>, tensor<8x2xf32>) -> tensor<4x6x2xf32>
    %k = stablehlo.tanh %q : tensor<4x6x2xf32>
    %s = stablehlo.dot_general %q, %k, batching_dims = [0] x [0], contracting_dims = [2] x [2] : (tensor<4x6x2xf32>, tensor<4x6x2xf32>) -> tensor<4x6x6xf32>
    %e = stablehlo.exponential %s : tensor<4x6x6xf32>
    %a = stablehlo.dot_general %e, %k, batching_dims = [0] x [0], contracting_dims = [2] x [1] : (tensor<4x6x6xf32>, tensor<4x6x2xf32>) -> tensor<4x6x2xf32>
    %z = stablehlo.dot_general %a, %w, contracting_dims = [2] x [0] : (tensor<4x6x2xf32>, tensor<2x8xf32>) -> tensor<4x6x8xf32>
    %y = "stablehlo.reduce_scatter"(%z) <{replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>, scatter_dimension = 1 : i64}> ({
    ^bb0(%p: tensor<f32>, %r: tensor<f32>):
      %t = stablehlo.add %p, %r : tensor<f32>
      stablehlo.return %t : tensor<f32>
    }) : (tensor<4x6x8xf32>) -> tensor<4x3x8xf32>
    return %y : tensor<4x3x8xf32>
  }

  // CHECK-LABEL: func.func private @with_partial_sums(
  func.func private @with_partial_sums(%x: tensor<4x3x8xf32>, %v: tensor<8x2xf32>, %w: tensor<2x8xf32>) -> tensor<4x3x8xf32> {
    // CHECK: "stablehlo.reduce_scatter"
    // CHECK: {{.*}} {shmap.overlap = {{.*}}name = "partial-sums"{{.*}}parts = 2{{.*}} -> tensor<2x3x8xf32>
    // CHECK: "stablehlo.reduce_scatter"
    // CHECK: {{.*}} {shmap.overlap = {{.*}}name = "partial-sums"{{.*}}parts = 2{{.*}} -> tensor<2x3x8xf32>
    %g = "stablehlo.all_gather"(%x) <{all_gather_dim = 1 : i64, replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>}> {shmap.overlap = {name = "sequence-sums", parts = 2 : i64}} : (tensor<4x3x8xf32>) -> tensor<4x6x8xf32>
    %q = stablehlo.dot_general %g, %v, contracting_dims = [2] x [0] : (tensor<4x6x8xf32>, tensor<8x2xf32>) -> tensor<4x6x2xf32>
    %k = stablehlo.tanh %q : tensor<4x6x2xf32>
    %s = stablehlo.dot_general %q, %k, batching_dims = [0] x [0], contracting_dims = [2] x [2] : (tensor<4x6x2xf32>, tensor<4x6x2xf32>) -> tensor<4x6x6xf32>
    %e = stablehlo.exponential %s : tensor<4x6x6xf32>
    %a = stablehlo.dot_general %e, %k, batching_dims = [0] x [0], contracting_dims = [2] x [1] : (tensor<4x6x6xf32>, tensor<4x6x2xf32>) -> tensor<4x6x2xf32>
    %z = stablehlo.dot_general %a, %w, contracting_dims = [2] x [0] : (tensor<4x6x2xf32>, tensor<2x8xf32>) -> tensor<4x6x8xf32>
    %y = "stablehlo.reduce_scatter"(%z) <{replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>, scatter_dimension = 1 : i64}> ({
    ^bb0(%p: tensor<f32>, %r: tensor<f32>):
      %t = stablehlo.add %p, %r : tensor<f32>
      stablehlo.return %t : tensor<f32>
    }) : (tensor<4x6x8xf32>) -> tensor<4x3x8xf32>
    return %y : tensor<4x3x8xf32>
  }

  // Each of two devices has four sequences of three rows: a chunk has two of each.
  // CHECK-LABEL: func.func private @rows_of_whole_sequences(
  func.func private @rows_of_whole_sequences(%x: tensor<12x8xf32>, %v: tensor<8x2xf32>, %w: tensor<2x8xf32>) -> tensor<12x8xf32> {
    // CHECK: %[[X0:.*]] = stablehlo.slice %arg0 [0:6, 0:8]
    // CHECK: "stablehlo.all_gather"(%[[X0]]){{.*}} -> tensor<12x8xf32>
    // CHECK: stablehlo.slice %arg0 [6:12, 0:8]
    // CHECK: call @shmap_sequences{{.*}} -> tensor<12x2xf32>
    // CHECK: }) : (tensor<12x8xf32>) -> tensor<6x8xf32>
    // CHECK: call @shmap_sequences
    // CHECK: }) : (tensor<12x8xf32>) -> tensor<6x8xf32>
    // CHECK: func.func private @shmap_sequences
    // CHECK: stablehlo.dot_general
    // CHECK: %[[Q:.*]] = stablehlo.reshape
    // CHECK: stablehlo.optimization_barrier %[[Q]] : tensor<4x3x2xf32>
    %g = "stablehlo.all_gather"(%x) <{all_gather_dim = 0 : i64, replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>}> {shmap.overlap = {name = "sequences", parts = 2 : i64}} : (tensor<12x8xf32>) -> tensor<24x8xf32>
    %f = stablehlo.dot_general %g, %v, contracting_dims = [1] x [0] : (tensor<24x8xf32>, tensor<8x2xf32>) -> tensor<24x2xf32>
    %q = stablehlo.reshape %f : (tensor<24x2xf32>) -> tensor<8x3x2xf32>
    %k = stablehlo.tanh %q : tensor<8x3x2xf32>
    %s = stablehlo.dot_general %q, %k, batching_dims = [0] x [0], contracting_dims = [2] x [2] : (tensor<8x3x2xf32>, tensor<8x3x2xf32>) -> tensor<8x3x3xf32>
    %e = stablehlo.exponential %s : tensor<8x3x3xf32>
    %a = stablehlo.dot_general %e, %k, batching_dims = [0] x [0], contracting_dims = [2] x [1] : (tensor<8x3x3xf32>, tensor<8x3x2xf32>) -> tensor<8x3x2xf32>
    %b = stablehlo.reshape %a : (tensor<8x3x2xf32>) -> tensor<24x2xf32>
    %z = stablehlo.dot_general %b, %w, contracting_dims = [1] x [0] : (tensor<24x2xf32>, tensor<2x8xf32>) -> tensor<24x8xf32>
    %y = "stablehlo.reduce_scatter"(%z) <{replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>, scatter_dimension = 0 : i64}> ({
    ^bb0(%p: tensor<f32>, %r: tensor<f32>):
      %t = stablehlo.add %p, %r : tensor<f32>
      stablehlo.return %t : tensor<f32>
    }) : (tensor<24x8xf32>) -> tensor<12x8xf32>
    return %y : tensor<12x8xf32>
  }

  // CHECK-LABEL: func.func private @rows_before_sequences_are_taken_apart(
  func.func private @rows_before_sequences_are_taken_apart(%x: tensor<12x8xf32>, %v: tensor<8x2xf32>, %w: tensor<2x8xf32>) -> tensor<12x8xf32> {
    // CHECK: call @shmap_sequences
    // CHECK: func.func private @shmap_sequences
    // CHECK: %[[F:.*]] = stablehlo.dot_general
    // CHECK: %[[Q:.*]] = stablehlo.optimization_barrier %[[F]] : tensor<12x2xf32>
    // CHECK: stablehlo.reshape %[[Q]]
    %g = "stablehlo.all_gather"(%x) <{all_gather_dim = 0 : i64, replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>}> {shmap.overlap = {name = "sequences", parts = 2 : i64, ordered = true}} : (tensor<12x8xf32>) -> tensor<24x8xf32>
    %f = stablehlo.dot_general %g, %v, contracting_dims = [1] x [0] : (tensor<24x8xf32>, tensor<8x2xf32>) -> tensor<24x2xf32>
    %q = stablehlo.reshape %f : (tensor<24x2xf32>) -> tensor<8x3x2xf32>
    %k = stablehlo.tanh %q : tensor<8x3x2xf32>
    %s = stablehlo.dot_general %q, %k, batching_dims = [0] x [0], contracting_dims = [2] x [2] : (tensor<8x3x2xf32>, tensor<8x3x2xf32>) -> tensor<8x3x3xf32>
    %e = stablehlo.exponential %s : tensor<8x3x3xf32>
    %a = stablehlo.dot_general %e, %k, batching_dims = [0] x [0], contracting_dims = [2] x [1] : (tensor<8x3x3xf32>, tensor<8x3x2xf32>) -> tensor<8x3x2xf32>
    %b = stablehlo.reshape %a : (tensor<8x3x2xf32>) -> tensor<24x2xf32>
    %z = stablehlo.dot_general %b, %w, contracting_dims = [1] x [0] : (tensor<24x2xf32>, tensor<2x8xf32>) -> tensor<24x8xf32>
    %y = "stablehlo.reduce_scatter"(%z) <{replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>, scatter_dimension = 0 : i64}> ({
    ^bb0(%p: tensor<f32>, %r: tensor<f32>):
      %t = stablehlo.add %p, %r : tensor<f32>
      stablehlo.return %t : tensor<f32>
    }) : (tensor<24x8xf32>) -> tensor<12x8xf32>
    return %y : tensor<12x8xf32>
  }

  // CHECK-LABEL: func.func private @four_sequences_are_not_three_chunks(
  func.func private @four_sequences_are_not_three_chunks(%x: tensor<4x3x8xf32>, %v: tensor<8x2xf32>, %w: tensor<2x8xf32>) -> tensor<4x3x8xf32> {
    // CHECK-NOT: stablehlo.slice
    // CHECK: return
    %g = "stablehlo.all_gather"(%x) <{all_gather_dim = 1 : i64, replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>}> {shmap.overlap = {name = "sequences", parts = 3 : i64}} : (tensor<4x3x8xf32>) -> tensor<4x6x8xf32>
    %q = stablehlo.dot_general %g, %v, contracting_dims = [2] x [0] : (tensor<4x6x8xf32>, tensor<8x2xf32>) -> tensor<4x6x2xf32>
    %k = stablehlo.tanh %q : tensor<4x6x2xf32>
    %s = stablehlo.dot_general %q, %k, batching_dims = [0] x [0], contracting_dims = [2] x [2] : (tensor<4x6x2xf32>, tensor<4x6x2xf32>) -> tensor<4x6x6xf32>
    %e = stablehlo.exponential %s : tensor<4x6x6xf32>
    %a = stablehlo.dot_general %e, %k, batching_dims = [0] x [0], contracting_dims = [2] x [1] : (tensor<4x6x6xf32>, tensor<4x6x2xf32>) -> tensor<4x6x2xf32>
    %z = stablehlo.dot_general %a, %w, contracting_dims = [2] x [0] : (tensor<4x6x2xf32>, tensor<2x8xf32>) -> tensor<4x6x8xf32>
    %y = "stablehlo.reduce_scatter"(%z) <{replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>, scatter_dimension = 1 : i64}> ({
    ^bb0(%p: tensor<f32>, %r: tensor<f32>):
      %t = stablehlo.add %p, %r : tensor<f32>
      stablehlo.return %t : tensor<f32>
    }) : (tensor<4x6x8xf32>) -> tensor<4x3x8xf32>
    return %y : tensor<4x3x8xf32>
  }

  // CHECK-LABEL: func.func private @no_form(
  func.func private @no_form(%x: tensor<4x3x8xf32>, %v: tensor<8x2xf32>, %w: tensor<2x8xf32>) -> tensor<4x3x8xf32> {
    // CHECK-NOT: stablehlo.slice
    // CHECK: return
    %g = "stablehlo.all_gather"(%x) <{all_gather_dim = 1 : i64, replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>}> : (tensor<4x3x8xf32>) -> tensor<4x6x8xf32>
    %q = stablehlo.dot_general %g, %v, contracting_dims = [2] x [0] : (tensor<4x6x8xf32>, tensor<8x2xf32>) -> tensor<4x6x2xf32>
    %k = stablehlo.tanh %q : tensor<4x6x2xf32>
    %s = stablehlo.dot_general %q, %k, batching_dims = [0] x [0], contracting_dims = [2] x [2] : (tensor<4x6x2xf32>, tensor<4x6x2xf32>) -> tensor<4x6x6xf32>
    %e = stablehlo.exponential %s : tensor<4x6x6xf32>
    %a = stablehlo.dot_general %e, %k, batching_dims = [0] x [0], contracting_dims = [2] x [1] : (tensor<4x6x6xf32>, tensor<4x6x2xf32>) -> tensor<4x6x2xf32>
    %z = stablehlo.dot_general %a, %w, contracting_dims = [2] x [0] : (tensor<4x6x2xf32>, tensor<2x8xf32>) -> tensor<4x6x8xf32>
    %y = "stablehlo.reduce_scatter"(%z) <{replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>, scatter_dimension = 1 : i64}> ({
    ^bb0(%p: tensor<f32>, %r: tensor<f32>):
      %t = stablehlo.add %p, %r : tensor<f32>
      stablehlo.return %t : tensor<f32>
    }) : (tensor<4x6x8xf32>) -> tensor<4x3x8xf32>
    return %y : tensor<4x3x8xf32>
  }

  // CHECK-LABEL: func.func private @what_is_computed_of_rows_is_read(
  func.func private @what_is_computed_of_rows_is_read(%x: tensor<4x3x8xf32>, %v: tensor<8x2xf32>, %w: tensor<2x8xf32>) -> tensor<4x6x2xf32> {
    // CHECK-NOT: stablehlo.slice
    // CHECK: return
    %g = "stablehlo.all_gather"(%x) <{all_gather_dim = 1 : i64, replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>}> {shmap.overlap = {name = "sequences", parts = 2 : i64}} : (tensor<4x3x8xf32>) -> tensor<4x6x8xf32>
    %q = stablehlo.dot_general %g, %v, contracting_dims = [2] x [0] : (tensor<4x6x8xf32>, tensor<8x2xf32>) -> tensor<4x6x2xf32>
    %k = stablehlo.tanh %q : tensor<4x6x2xf32>
    %s = stablehlo.dot_general %q, %k, batching_dims = [0] x [0], contracting_dims = [2] x [2] : (tensor<4x6x2xf32>, tensor<4x6x2xf32>) -> tensor<4x6x6xf32>
    %e = stablehlo.exponential %s : tensor<4x6x6xf32>
    %a = stablehlo.dot_general %e, %k, batching_dims = [0] x [0], contracting_dims = [2] x [1] : (tensor<4x6x6xf32>, tensor<4x6x2xf32>) -> tensor<4x6x2xf32>
    %z = stablehlo.dot_general %a, %w, contracting_dims = [2] x [0] : (tensor<4x6x2xf32>, tensor<2x8xf32>) -> tensor<4x6x8xf32>
    %y = "stablehlo.reduce_scatter"(%z) <{replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>, scatter_dimension = 1 : i64}> ({
    ^bb0(%p: tensor<f32>, %r: tensor<f32>):
      %t = stablehlo.add %p, %r : tensor<f32>
      stablehlo.return %t : tensor<f32>
    }) : (tensor<4x6x8xf32>) -> tensor<4x3x8xf32>
    return %k : tensor<4x6x2xf32>
  }

  // CHECK-LABEL: func.func private @nothing_is_multiplied_with_other_rows(
  func.func private @nothing_is_multiplied_with_other_rows(%x: tensor<4x3x8xf32>, %v: tensor<8x2xf32>, %w: tensor<2x8xf32>, %u: tensor<4x2x2xf32>) -> (tensor<4x3x8xf32>, tensor<4x2x2xf32>) {
    // CHECK-NOT: stablehlo.slice
    // CHECK: return
    %g = "stablehlo.all_gather"(%x) <{all_gather_dim = 1 : i64, replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>}> {shmap.overlap = {name = "sequences", parts = 2 : i64}} : (tensor<4x3x8xf32>) -> tensor<4x6x8xf32>
    %q = stablehlo.dot_general %g, %v, contracting_dims = [2] x [0] : (tensor<4x6x8xf32>, tensor<8x2xf32>) -> tensor<4x6x2xf32>
    %a = stablehlo.tanh %q : tensor<4x6x2xf32>
    %b = stablehlo.dot_general %u, %u, batching_dims = [0] x [0], contracting_dims = [2] x [2] : (tensor<4x2x2xf32>, tensor<4x2x2xf32>) -> tensor<4x2x2xf32>
    %z = stablehlo.dot_general %a, %w, contracting_dims = [2] x [0] : (tensor<4x6x2xf32>, tensor<2x8xf32>) -> tensor<4x6x8xf32>
    %y = "stablehlo.reduce_scatter"(%z) <{replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>, scatter_dimension = 1 : i64}> ({
    ^bb0(%p: tensor<f32>, %r: tensor<f32>):
      %t = stablehlo.add %p, %r : tensor<f32>
      stablehlo.return %t : tensor<f32>
    }) : (tensor<4x6x8xf32>) -> tensor<4x3x8xf32>
    return %y, %b : tensor<4x3x8xf32>, tensor<4x2x2xf32>
  }
}
