// RUN: shmap-opt %s --shmap-overlap-exchange-block | FileCheck %s

// CHECK-LABEL: module @all_axes_are_manual
module @all_axes_are_manual {
  sdy.mesh @mesh = <["i"=4, "j"=2]>
  func.func public @main() attributes {sdy.manual_axes = #sdy<manual_axes{"i", "j"}>} {
    return
  }

  // CHECK-LABEL: func.func private @the_gradient_of_one_layer
  func.func private @the_gradient_of_one_layer(%t: tensor<4x6x8xf32>, %h: tensor<24x8xf32>, %w: tensor<8x8xf32>) -> (tensor<4x6x8xf32>, tensor<8x8xf32>) {
    // CHECK: %[[T0:.*]] = stablehlo.slice %arg0 [0:4, 0:3, 0:8]
    // CHECK: %[[E0:.*]] = "stablehlo.all_to_all"(%[[T0]]){{.*}} -> tensor<4x3x8xf32>
    // CHECK: %[[T1:.*]] = stablehlo.slice %arg0 [0:4, 3:6, 0:8]
    // The second chunk is sent when the first is there.
    // CHECK: %[[B1:.*]]:2 = stablehlo.optimization_barrier %[[T1]], %[[E0]]
    // CHECK: %[[E1:.*]] = "stablehlo.all_to_all"(%[[B1]]#0)
    // CHECK: %[[F0:.*]] = stablehlo.reshape %[[B1]]#1 : (tensor<4x3x8xf32>) -> tensor<12x8xf32>
    // CHECK: %[[D0:.*]] = stablehlo.dot_general %[[F0]], %arg2
    // CHECK: %[[R0:.*]] = stablehlo.reshape %[[D0]]
    // CHECK: %[[B2:.*]]:2 = stablehlo.optimization_barrier %[[R0]], %[[E1]]
    // CHECK: %[[X0:.*]] = "stablehlo.all_to_all"(%[[B2]]#0)
    // CHECK: stablehlo.reshape %arg1 : (tensor<24x8xf32>) -> tensor<4x6x8xf32>
    // CHECK: %[[S0:.*]] = stablehlo.dot_general {{.*}}, %[[F0]], contracting_dims = [0] x [0]
    // CHECK: %[[F1:.*]] = stablehlo.reshape %[[B2]]#1
    // CHECK: %[[X1:.*]] = "stablehlo.all_to_all"
    // CHECK: %[[S1:.*]] = stablehlo.dot_general {{.*}}, %[[F1]], contracting_dims = [0] x [0]
    // CHECK: %[[S:.*]] = stablehlo.add %[[S0]], %[[S1]]
    // CHECK: %[[J:.*]] = stablehlo.dynamic_update_slice {{.*}}, %[[X1]]
    // CHECK: %[[N:.*]] = stablehlo.negate %[[S]]
    // CHECK: return %[[J]], %[[N]]
    %e = "stablehlo.all_to_all"(%t) <{concat_dimension = 0 : i64, replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>, split_count = 4 : i64, split_dimension = 0 : i64}> {shmap.overlap = {name = "summed-chunks", parts = 2 : i64}} : (tensor<4x6x8xf32>) -> tensor<4x6x8xf32>
    %f = stablehlo.reshape %e : (tensor<4x6x8xf32>) -> tensor<24x8xf32>
    %s = stablehlo.dot_general %h, %f, contracting_dims = [0] x [0] : (tensor<24x8xf32>, tensor<24x8xf32>) -> tensor<8x8xf32>
    %n = stablehlo.negate %s : tensor<8x8xf32>
    %d = stablehlo.dot_general %f, %w, contracting_dims = [1] x [0] : (tensor<24x8xf32>, tensor<8x8xf32>) -> tensor<24x8xf32>
    %r = stablehlo.reshape %d : (tensor<24x8xf32>) -> tensor<4x6x8xf32>
    %y = "stablehlo.all_to_all"(%r) <{concat_dimension = 0 : i64, replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>, split_count = 4 : i64, split_dimension = 0 : i64}> : (tensor<4x6x8xf32>) -> tensor<4x6x8xf32>
    return %y, %n : tensor<4x6x8xf32>, tensor<8x8xf32>
  }

  // CHECK-LABEL: func.func private @each_sum_is_stored_before_the_next_product
  func.func private @each_sum_is_stored_before_the_next_product(%t: tensor<4x6x8xf32>, %h: tensor<24x8xf32>, %w: tensor<8x8xf32>) -> (tensor<4x6x8xf32>, tensor<8x8xf32>) {
    // CHECK: %[[S0:.*]] = stablehlo.dot_general {{.*}}, contracting_dims = [0] x [0]
    // CHECK-NEXT: %[[B0:.*]] = stablehlo.optimization_barrier %[[S0]] : tensor<8x8xf32>
    // CHECK: %[[S1:.*]] = stablehlo.dot_general {{.*}}, contracting_dims = [0] x [0]
    // CHECK-NEXT: %[[T1:.*]] = stablehlo.add %[[B0]], %[[S1]]
    // CHECK-NEXT: %[[B1:.*]] = stablehlo.optimization_barrier %[[T1]] : tensor<8x8xf32>
    // CHECK: %[[S2:.*]] = stablehlo.dot_general {{.*}}, contracting_dims = [0] x [0]
    // CHECK-NEXT: %[[T2:.*]] = stablehlo.add %[[B1]], %[[S2]]
    // CHECK: return %{{.*}}, %[[T2]]
    %e = "stablehlo.all_to_all"(%t) <{concat_dimension = 0 : i64, replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>, split_count = 4 : i64, split_dimension = 0 : i64}> {shmap.overlap = {name = "summed-chunks", parts = 3 : i64, ordered = true}} : (tensor<4x6x8xf32>) -> tensor<4x6x8xf32>
    %f = stablehlo.reshape %e : (tensor<4x6x8xf32>) -> tensor<24x8xf32>
    %s = stablehlo.dot_general %h, %f, contracting_dims = [0] x [0] : (tensor<24x8xf32>, tensor<24x8xf32>) -> tensor<8x8xf32>
    %d = stablehlo.dot_general %f, %w, contracting_dims = [1] x [0] : (tensor<24x8xf32>, tensor<8x8xf32>) -> tensor<24x8xf32>
    %r = stablehlo.reshape %d : (tensor<24x8xf32>) -> tensor<4x6x8xf32>
    %y = "stablehlo.all_to_all"(%r) <{concat_dimension = 0 : i64, replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>, split_count = 4 : i64, split_dimension = 0 : i64}> : (tensor<4x6x8xf32>) -> tensor<4x6x8xf32>
    return %y, %s : tensor<4x6x8xf32>, tensor<8x8xf32>
  }

  // CHECK-LABEL: func.func private @nothing_is_joined_between_a_layer_and_its_gradient
  func.func private @nothing_is_joined_between_a_layer_and_its_gradient(%x: tensor<4x6x8xf32>, %w: tensor<8x8xf32>) -> (tensor<4x6x8xf32>, tensor<8x8xf32>) {
    // CHECK-COUNT-3: {{.*}}"stablehlo.all_to_all"{{.*}} -> tensor<4x3x8xf32>
    // CHECK-NOT: dynamic_update_slice
    // CHECK-COUNT-5: {{.*}}"stablehlo.all_to_all"{{.*}} -> tensor<4x3x8xf32>
    // CHECK: stablehlo.dynamic_update_slice
    // CHECK-NOT: "stablehlo.all_to_all"
    %a = "stablehlo.all_to_all"(%x) <{concat_dimension = 0 : i64, replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>, split_count = 4 : i64, split_dimension = 0 : i64}> {shmap.overlap = {name = "summed-chunks", parts = 2 : i64}} : (tensor<4x6x8xf32>) -> tensor<4x6x8xf32>
    %b = stablehlo.reshape %a : (tensor<4x6x8xf32>) -> tensor<24x8xf32>
    %c = stablehlo.dot_general %b, %w, contracting_dims = [1] x [0] : (tensor<24x8xf32>, tensor<8x8xf32>) -> tensor<24x8xf32>
    %d = stablehlo.reshape %c : (tensor<24x8xf32>) -> tensor<4x6x8xf32>
    %e = "stablehlo.all_to_all"(%d) <{concat_dimension = 0 : i64, replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>, split_count = 4 : i64, split_dimension = 0 : i64}> : (tensor<4x6x8xf32>) -> tensor<4x6x8xf32>
    %f = stablehlo.tanh %e : tensor<4x6x8xf32>
    %g = "stablehlo.all_to_all"(%f) <{concat_dimension = 0 : i64, replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>, split_count = 4 : i64, split_dimension = 0 : i64}> : (tensor<4x6x8xf32>) -> tensor<4x6x8xf32>
    %h = stablehlo.reshape %g : (tensor<4x6x8xf32>) -> tensor<24x8xf32>
    %s = stablehlo.dot_general %b, %h, contracting_dims = [0] x [0] : (tensor<24x8xf32>, tensor<24x8xf32>) -> tensor<8x8xf32>
    %k = stablehlo.dot_general %h, %w, contracting_dims = [1] x [0] : (tensor<24x8xf32>, tensor<8x8xf32>) -> tensor<24x8xf32>
    %l = stablehlo.reshape %k : (tensor<24x8xf32>) -> tensor<4x6x8xf32>
    %y = "stablehlo.all_to_all"(%l) <{concat_dimension = 0 : i64, replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>, split_count = 4 : i64, split_dimension = 0 : i64}> : (tensor<4x6x8xf32>) -> tensor<4x6x8xf32>
    return %y, %s : tensor<4x6x8xf32>, tensor<8x8xf32>
  }

  // CHECK-LABEL: func.func private @what_is_computed_after_it_is_joined
  func.func private @what_is_computed_after_it_is_joined(%x: tensor<4x6x8xf32>, %w: tensor<8x8xf32>) -> (tensor<4x6x8xf32>, tensor<8x8xf32>, tensor<4x6x8xf32>) {
    // CHECK-COUNT-4: {{.*}}"stablehlo.all_to_all"{{.*}} -> tensor<4x3x8xf32>
    // Others read the tanh whole, and its gradient reads it in chunks.
    // CHECK: stablehlo.dynamic_update_slice
    // CHECK: %[[E:.*]] = stablehlo.dynamic_update_slice
    // CHECK-NEXT: %[[F:.*]] = stablehlo.tanh %[[E]] : tensor<4x6x8xf32>
    // CHECK: stablehlo.reverse %[[F]]
    // CHECK: stablehlo.tanh {{.*}} : tensor<4x3x8xf32>
    // CHECK-COUNT-4: {{.*}}"stablehlo.all_to_all"{{.*}} -> tensor<4x3x8xf32>
    // CHECK: return %{{.*}}, %{{.*}}, %[[F]]
    %a = "stablehlo.all_to_all"(%x) <{concat_dimension = 0 : i64, replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>, split_count = 4 : i64, split_dimension = 0 : i64}> {shmap.overlap = {name = "summed-chunks", parts = 2 : i64}} : (tensor<4x6x8xf32>) -> tensor<4x6x8xf32>
    %b = stablehlo.reshape %a : (tensor<4x6x8xf32>) -> tensor<24x8xf32>
    %c = stablehlo.dot_general %b, %w, contracting_dims = [1] x [0] : (tensor<24x8xf32>, tensor<8x8xf32>) -> tensor<24x8xf32>
    %d = stablehlo.reshape %c : (tensor<24x8xf32>) -> tensor<4x6x8xf32>
    %e = "stablehlo.all_to_all"(%d) <{concat_dimension = 0 : i64, replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>, split_count = 4 : i64, split_dimension = 0 : i64}> : (tensor<4x6x8xf32>) -> tensor<4x6x8xf32>
    %f = stablehlo.tanh %e : tensor<4x6x8xf32>
    %o = stablehlo.reverse %f, dims = [2] : tensor<4x6x8xf32>
    %q = stablehlo.multiply %o, %f : tensor<4x6x8xf32>
    %g = "stablehlo.all_to_all"(%q) <{concat_dimension = 0 : i64, replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>, split_count = 4 : i64, split_dimension = 0 : i64}> : (tensor<4x6x8xf32>) -> tensor<4x6x8xf32>
    %h = stablehlo.reshape %g : (tensor<4x6x8xf32>) -> tensor<24x8xf32>
    %s = stablehlo.dot_general %b, %h, contracting_dims = [0] x [0] : (tensor<24x8xf32>, tensor<24x8xf32>) -> tensor<8x8xf32>
    %k = stablehlo.dot_general %h, %w, contracting_dims = [1] x [0] : (tensor<24x8xf32>, tensor<8x8xf32>) -> tensor<24x8xf32>
    %l = stablehlo.reshape %k : (tensor<24x8xf32>) -> tensor<4x6x8xf32>
    %y = "stablehlo.all_to_all"(%l) <{concat_dimension = 0 : i64, replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>, split_count = 4 : i64, split_dimension = 0 : i64}> : (tensor<4x6x8xf32>) -> tensor<4x6x8xf32>
    return %y, %s, %f : tensor<4x6x8xf32>, tensor<8x8xf32>, tensor<4x6x8xf32>
  }

  // CHECK-LABEL: func.func private @others_read_a_product
  func.func private @others_read_a_product(%x: tensor<4x6x8xf32>, %w: tensor<8x8xf32>) -> (tensor<4x6x8xf32>, tensor<8x8xf32>, tensor<24x8xf32>) {
    // CHECK-NEXT: "stablehlo.all_to_all"(%arg0)
    %a = "stablehlo.all_to_all"(%x) <{concat_dimension = 0 : i64, replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>, split_count = 4 : i64, split_dimension = 0 : i64}> {shmap.overlap = {name = "summed-chunks", parts = 2 : i64}} : (tensor<4x6x8xf32>) -> tensor<4x6x8xf32>
    %b = stablehlo.reshape %a : (tensor<4x6x8xf32>) -> tensor<24x8xf32>
    %c = stablehlo.dot_general %b, %w, contracting_dims = [1] x [0] : (tensor<24x8xf32>, tensor<8x8xf32>) -> tensor<24x8xf32>
    %d = stablehlo.reshape %c : (tensor<24x8xf32>) -> tensor<4x6x8xf32>
    %e = "stablehlo.all_to_all"(%d) <{concat_dimension = 0 : i64, replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>, split_count = 4 : i64, split_dimension = 0 : i64}> : (tensor<4x6x8xf32>) -> tensor<4x6x8xf32>
    %s = stablehlo.dot_general %b, %c, contracting_dims = [0] x [0] : (tensor<24x8xf32>, tensor<24x8xf32>) -> tensor<8x8xf32>
    return %e, %s, %c : tensor<4x6x8xf32>, tensor<8x8xf32>, tensor<24x8xf32>
  }

  // CHECK-LABEL: func.func private @others_read_what_arrives_first
  func.func private @others_read_what_arrives_first(%x: tensor<4x6x8xf32>, %w: tensor<8x8xf32>) -> (tensor<4x6x8xf32>, tensor<8x8xf32>, tensor<4x6x8xf32>) {
    // CHECK-NEXT: "stablehlo.all_to_all"(%arg0)
    %a = "stablehlo.all_to_all"(%x) <{concat_dimension = 0 : i64, replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>, split_count = 4 : i64, split_dimension = 0 : i64}> {shmap.overlap = {name = "summed-chunks", parts = 2 : i64}} : (tensor<4x6x8xf32>) -> tensor<4x6x8xf32>
    %b = stablehlo.reshape %a : (tensor<4x6x8xf32>) -> tensor<24x8xf32>
    %c = stablehlo.dot_general %b, %w, contracting_dims = [1] x [0] : (tensor<24x8xf32>, tensor<8x8xf32>) -> tensor<24x8xf32>
    %d = stablehlo.reshape %c : (tensor<24x8xf32>) -> tensor<4x6x8xf32>
    %e = "stablehlo.all_to_all"(%d) <{concat_dimension = 0 : i64, replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>, split_count = 4 : i64, split_dimension = 0 : i64}> : (tensor<4x6x8xf32>) -> tensor<4x6x8xf32>
    %s = stablehlo.dot_general %b, %c, contracting_dims = [0] x [0] : (tensor<24x8xf32>, tensor<24x8xf32>) -> tensor<8x8xf32>
    return %e, %s, %a : tensor<4x6x8xf32>, tensor<8x8xf32>, tensor<4x6x8xf32>
  }

  // CHECK-LABEL: func.func private @no_sum_over_what_is_exchanged
  func.func private @no_sum_over_what_is_exchanged(%x: tensor<4x6x8xf32>, %w: tensor<8x8xf32>) -> tensor<4x6x8xf32> {
    // CHECK-NEXT: "stablehlo.all_to_all"(%arg0)
    %a = "stablehlo.all_to_all"(%x) <{concat_dimension = 0 : i64, replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>, split_count = 4 : i64, split_dimension = 0 : i64}> {shmap.overlap = {name = "summed-chunks", parts = 2 : i64}} : (tensor<4x6x8xf32>) -> tensor<4x6x8xf32>
    %b = stablehlo.reshape %a : (tensor<4x6x8xf32>) -> tensor<24x8xf32>
    %c = stablehlo.dot_general %b, %w, contracting_dims = [1] x [0] : (tensor<24x8xf32>, tensor<8x8xf32>) -> tensor<24x8xf32>
    %d = stablehlo.reshape %c : (tensor<24x8xf32>) -> tensor<4x6x8xf32>
    %e = "stablehlo.all_to_all"(%d) <{concat_dimension = 0 : i64, replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>, split_count = 4 : i64, split_dimension = 0 : i64}> : (tensor<4x6x8xf32>) -> tensor<4x6x8xf32>
    return %e : tensor<4x6x8xf32>
  }

  // CHECK-LABEL: func.func private @without_a_form
  func.func private @without_a_form(%x: tensor<4x6x8xf32>, %w: tensor<8x8xf32>) -> (tensor<4x6x8xf32>, tensor<8x8xf32>) {
    // CHECK-NEXT: "stablehlo.all_to_all"(%arg0)
    %a = "stablehlo.all_to_all"(%x) <{concat_dimension = 0 : i64, replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>, split_count = 4 : i64, split_dimension = 0 : i64}> : (tensor<4x6x8xf32>) -> tensor<4x6x8xf32>
    %b = stablehlo.reshape %a : (tensor<4x6x8xf32>) -> tensor<24x8xf32>
    %c = stablehlo.dot_general %b, %w, contracting_dims = [1] x [0] : (tensor<24x8xf32>, tensor<8x8xf32>) -> tensor<24x8xf32>
    %d = stablehlo.reshape %c : (tensor<24x8xf32>) -> tensor<4x6x8xf32>
    %e = "stablehlo.all_to_all"(%d) <{concat_dimension = 0 : i64, replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>, split_count = 4 : i64, split_dimension = 0 : i64}> : (tensor<4x6x8xf32>) -> tensor<4x6x8xf32>
    %s = stablehlo.dot_general %b, %c, contracting_dims = [0] x [0] : (tensor<24x8xf32>, tensor<24x8xf32>) -> tensor<8x8xf32>
    return %e, %s : tensor<4x6x8xf32>, tensor<8x8xf32>
  }
}
