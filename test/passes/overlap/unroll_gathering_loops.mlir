// RUN: shmap-opt %s --shmap-unroll-gathering-loops | FileCheck %s

// CHECK-LABEL: module @all_axes_are_manual
module @all_axes_are_manual {
  sdy.mesh @mesh = <["i"=4, "j"=2]>
  func.func public @main() attributes {sdy.manual_axes = #sdy<manual_axes{"i", "j"}>} {
    return
  }

  // CHECK-LABEL: func.func private @all_steps
  func.func private @all_steps(%x: tensor<4x8xf32>, %w: tensor<8x8xf32>) -> (tensor<4x8xf32>, tensor<i32>) {
    // CHECK-NOT: stablehlo.while
    // CHECK: %[[K:.*]] = stablehlo.constant dense<1> : tensor<i32>
    // CHECK-COUNT-2: stablehlo.dot_general
    // CHECK: %[[N:.*]] = stablehlo.constant dense<3> : tensor<i32>
    // CHECK: return %{{.*}}, %[[N]]
    %zero = stablehlo.constant dense<0> : tensor<i32>
    %n:3 = stablehlo.while(%k = %zero, %c = %x, %s = %w) : tensor<i32>, tensor<4x8xf32>, tensor<8x8xf32> attributes {shmap.overlap = {name = "unroll", parts = 0 : i64}}
    cond {
      %lim = stablehlo.constant dense<3> : tensor<i32>
      %more = stablehlo.compare LT, %k, %lim : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %more : tensor<i1>
    } do {
      %one = stablehlo.constant dense<1> : tensor<i32>
      %o = stablehlo.dynamic_slice %s, %k, %k, sizes = [2, 8] : (tensor<8x8xf32>, tensor<i32>, tensor<i32>) -> tensor<2x8xf32>
      %g = "stablehlo.all_gather"(%o) <{all_gather_dim = 0 : i64, replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>}> : (tensor<2x8xf32>) -> tensor<8x8xf32>
      %d = stablehlo.dot_general %c, %g, contracting_dims = [1] x [0] : (tensor<4x8xf32>, tensor<8x8xf32>) -> tensor<4x8xf32>
      %next = stablehlo.add %k, %one : tensor<i32>
      stablehlo.return %next, %d, %s : tensor<i32>, tensor<4x8xf32>, tensor<8x8xf32>
    }
    return %n#1, %n#0 : tensor<4x8xf32>, tensor<i32>
  }

  // CHECK-LABEL: func.func private @two_steps_become_one_after_one_that_is_left_over
  func.func private @two_steps_become_one_after_one_that_is_left_over(%x: tensor<4x8xf32>, %w: tensor<8x8xf32>) -> (tensor<4x8xf32>, tensor<i32>) {
    // CHECK: stablehlo.dot_general %arg0
    // CHECK: %[[C:.*]] = stablehlo.constant dense<1> : tensor<i32>
    // CHECK: stablehlo.while(%{{.*}} = %[[C]]
    // CHECK-COUNT-2: stablehlo.dot_general
    // CHECK-NOT: stablehlo.dot_general
    %zero = stablehlo.constant dense<0> : tensor<i32>
    %n:3 = stablehlo.while(%k = %zero, %c = %x, %s = %w) : tensor<i32>, tensor<4x8xf32>, tensor<8x8xf32> attributes {shmap.overlap = {name = "unroll", parts = 2 : i64}}
    cond {
      %lim = stablehlo.constant dense<3> : tensor<i32>
      %more = stablehlo.compare LT, %k, %lim : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %more : tensor<i1>
    } do {
      %one = stablehlo.constant dense<1> : tensor<i32>
      %o = stablehlo.dynamic_slice %s, %k, %k, sizes = [2, 8] : (tensor<8x8xf32>, tensor<i32>, tensor<i32>) -> tensor<2x8xf32>
      %g = "stablehlo.all_gather"(%o) <{all_gather_dim = 0 : i64, replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>}> : (tensor<2x8xf32>) -> tensor<8x8xf32>
      %d = stablehlo.dot_general %c, %g, contracting_dims = [1] x [0] : (tensor<4x8xf32>, tensor<8x8xf32>) -> tensor<4x8xf32>
      %next = stablehlo.add %k, %one : tensor<i32>
      stablehlo.return %next, %d, %s : tensor<i32>, tensor<4x8xf32>, tensor<8x8xf32>
    }
    return %n#1, %n#0 : tensor<4x8xf32>, tensor<i32>
  }

  // CHECK-LABEL: func.func private @nothing_is_chosen
  func.func private @nothing_is_chosen(%x: tensor<4x8xf32>, %w: tensor<8x8xf32>) -> (tensor<4x8xf32>, tensor<i32>) {
    // CHECK: stablehlo.while
    // CHECK-COUNT-1: stablehlo.dot_general
    %zero = stablehlo.constant dense<0> : tensor<i32>
    %n:3 = stablehlo.while(%k = %zero, %c = %x, %s = %w) : tensor<i32>, tensor<4x8xf32>, tensor<8x8xf32> attributes {}
    cond {
      %lim = stablehlo.constant dense<3> : tensor<i32>
      %more = stablehlo.compare LT, %k, %lim : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %more : tensor<i1>
    } do {
      %one = stablehlo.constant dense<1> : tensor<i32>
      %o = stablehlo.dynamic_slice %s, %k, %k, sizes = [2, 8] : (tensor<8x8xf32>, tensor<i32>, tensor<i32>) -> tensor<2x8xf32>
      %g = "stablehlo.all_gather"(%o) <{all_gather_dim = 0 : i64, replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>}> : (tensor<2x8xf32>) -> tensor<8x8xf32>
      %d = stablehlo.dot_general %c, %g, contracting_dims = [1] x [0] : (tensor<4x8xf32>, tensor<8x8xf32>) -> tensor<4x8xf32>
      %next = stablehlo.add %k, %one : tensor<i32>
      stablehlo.return %next, %d, %s : tensor<i32>, tensor<4x8xf32>, tensor<8x8xf32>
    }
    return %n#1, %n#0 : tensor<4x8xf32>, tensor<i32>
  }

  // CHECK-LABEL: func.func private @the_number_of_steps_is_not_known
  func.func private @the_number_of_steps_is_not_known(%x: tensor<4x8xf32>, %w: tensor<8x8xf32>) -> (tensor<4x8xf32>, tensor<i32>) {
    // CHECK: stablehlo.while
    // CHECK: stablehlo.dot_general
    // CHECK-NOT: stablehlo.dot_general
    %zero = stablehlo.constant dense<0> : tensor<i32>
    %n:3 = stablehlo.while(%k = %zero, %c = %x, %s = %w) : tensor<i32>, tensor<4x8xf32>, tensor<8x8xf32> attributes {shmap.overlap = {name = "unroll", parts = 0 : i64}}
    cond {
      %lim = stablehlo.add %k, %k : tensor<i32>
      %more = stablehlo.compare LT, %k, %lim : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %more : tensor<i1>
    } do {
      %one = stablehlo.constant dense<1> : tensor<i32>
      %o = stablehlo.dynamic_slice %s, %k, %k, sizes = [2, 8] : (tensor<8x8xf32>, tensor<i32>, tensor<i32>) -> tensor<2x8xf32>
      %g = "stablehlo.all_gather"(%o) <{all_gather_dim = 0 : i64, replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>}> : (tensor<2x8xf32>) -> tensor<8x8xf32>
      %d = stablehlo.dot_general %c, %g, contracting_dims = [1] x [0] : (tensor<4x8xf32>, tensor<8x8xf32>) -> tensor<4x8xf32>
      %next = stablehlo.add %k, %one : tensor<i32>
      stablehlo.return %next, %d, %s : tensor<i32>, tensor<4x8xf32>, tensor<8x8xf32>
    }
    return %n#1, %n#0 : tensor<4x8xf32>, tensor<i32>
  }

  // CHECK-LABEL: func.func private @too_many_steps
  func.func private @too_many_steps(%x: tensor<4x8xf32>, %w: tensor<8x8xf32>) -> (tensor<4x8xf32>, tensor<i32>) {
    // CHECK: stablehlo.while
    // CHECK: stablehlo.dot_general
    // CHECK-NOT: stablehlo.dot_general
    %zero = stablehlo.constant dense<0> : tensor<i32>
    %n:3 = stablehlo.while(%k = %zero, %c = %x, %s = %w) : tensor<i32>, tensor<4x8xf32>, tensor<8x8xf32> attributes {shmap.overlap = {name = "unroll", parts = 0 : i64}}
    cond {
      %lim = stablehlo.constant dense<100> : tensor<i32>
      %more = stablehlo.compare LT, %k, %lim : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %more : tensor<i1>
    } do {
      %one = stablehlo.constant dense<1> : tensor<i32>
      %o = stablehlo.dynamic_slice %s, %k, %k, sizes = [2, 8] : (tensor<8x8xf32>, tensor<i32>, tensor<i32>) -> tensor<2x8xf32>
      %g = "stablehlo.all_gather"(%o) <{all_gather_dim = 0 : i64, replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>}> : (tensor<2x8xf32>) -> tensor<8x8xf32>
      %d = stablehlo.dot_general %c, %g, contracting_dims = [1] x [0] : (tensor<4x8xf32>, tensor<8x8xf32>) -> tensor<4x8xf32>
      %next = stablehlo.add %k, %one : tensor<i32>
      stablehlo.return %next, %d, %s : tensor<i32>, tensor<4x8xf32>, tensor<8x8xf32>
    }
    return %n#1, %n#0 : tensor<4x8xf32>, tensor<i32>
  }

  // CHECK-LABEL: func.func private @what_is_gathered_comes_from_the_step_before
  func.func private @what_is_gathered_comes_from_the_step_before(%x: tensor<4x8xf32>, %w: tensor<8x8xf32>) -> (tensor<4x8xf32>, tensor<i32>) {
    // CHECK: stablehlo.while
    // CHECK: stablehlo.dot_general
    // CHECK-NOT: stablehlo.dot_general
    %zero = stablehlo.constant dense<0> : tensor<i32>
    %n:3 = stablehlo.while(%k = %zero, %c = %x, %s = %w) : tensor<i32>, tensor<4x8xf32>, tensor<8x8xf32> attributes {shmap.overlap = {name = "unroll", parts = 0 : i64}}
    cond {
      %lim = stablehlo.constant dense<3> : tensor<i32>
      %more = stablehlo.compare LT, %k, %lim : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %more : tensor<i1>
    } do {
      %one = stablehlo.constant dense<1> : tensor<i32>
      %o = stablehlo.slice %c [0:2, 0:8] : (tensor<4x8xf32>) -> tensor<2x8xf32>
      %g = "stablehlo.all_gather"(%o) <{all_gather_dim = 0 : i64, replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>}> : (tensor<2x8xf32>) -> tensor<8x8xf32>
      %d = stablehlo.dot_general %c, %g, contracting_dims = [1] x [0] : (tensor<4x8xf32>, tensor<8x8xf32>) -> tensor<4x8xf32>
      %next = stablehlo.add %k, %one : tensor<i32>
      stablehlo.return %next, %d, %s : tensor<i32>, tensor<4x8xf32>, tensor<8x8xf32>
    }
    return %n#1, %n#0 : tensor<4x8xf32>, tensor<i32>
  }

  // CHECK-LABEL: func.func private @collectives_beside_other_steps
  func.func private @collectives_beside_other_steps(%x: tensor<4x8xf32>, %w: tensor<8x2x8xf32>, %r: tensor<8x2x8xf32>) -> (tensor<4x8xf32>, tensor<8x2x8xf32>) {
    // CHECK: %[[G0:.*]] = "stablehlo.all_gather"
    // CHECK: %[[B0:.*]]:2 = stablehlo.optimization_barrier %{{.*}}, %[[G0]]
    // CHECK: %[[G1:.*]] = "stablehlo.all_gather"(%[[B0]]#0)
    // CHECK: %[[D0:.*]] = stablehlo.dot_general %arg0, %[[B0]]#1
    // CHECK: %[[E0:.*]] = stablehlo.dot_general %arg0, %[[D0]]
    // CHECK: %[[B1:.*]]:2 = stablehlo.optimization_barrier %[[D0]], %[[G1]]
    // CHECK: %[[B2:.*]]:2 = stablehlo.optimization_barrier %[[E0]], %[[B1]]#0
    // CHECK: %[[F0:.*]] = "stablehlo.reduce_scatter"(%[[B2]]#0)
    // CHECK: %[[D1:.*]] = stablehlo.dot_general %[[B2]]#1, %[[B1]]#1
    // CHECK: %[[E1:.*]] = stablehlo.dot_general
    // CHECK: %[[B3:.*]]:2 = stablehlo.optimization_barrier %[[D1]], %[[F0]]
    // CHECK: stablehlo.reshape %[[B3]]#1
    // CHECK: "stablehlo.reduce_scatter"(%[[E1]])
    // CHECK: return %[[B3]]#0
    %zero = stablehlo.constant dense<0> : tensor<i32>
    %n:4 = stablehlo.while(%k = %zero, %c = %x, %s = %w, %o = %r) : tensor<i32>, tensor<4x8xf32>, tensor<8x2x8xf32>, tensor<8x2x8xf32> attributes {shmap.overlap = {name = "unroll", parts = 0 : i64, barriers = true}}
    cond {
      %lim = stablehlo.constant dense<2> : tensor<i32>
      %more = stablehlo.compare LT, %k, %lim : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %more : tensor<i1>
    } do {
      %one = stablehlo.constant dense<1> : tensor<i32>
      %z = stablehlo.constant dense<0> : tensor<i32>
      %t = stablehlo.dynamic_slice %s, %k, %z, %z, sizes = [1, 2, 8] : (tensor<8x2x8xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x2x8xf32>
      %u = stablehlo.reshape %t : (tensor<1x2x8xf32>) -> tensor<2x8xf32>
      %g = "stablehlo.all_gather"(%u) <{all_gather_dim = 0 : i64, replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>}> : (tensor<2x8xf32>) -> tensor<8x8xf32>
      %d = stablehlo.dot_general %c, %g, contracting_dims = [1] x [0] : (tensor<4x8xf32>, tensor<8x8xf32>) -> tensor<4x8xf32>
      %e = stablehlo.dot_general %c, %d, contracting_dims = [0] x [0] : (tensor<4x8xf32>, tensor<4x8xf32>) -> tensor<8x8xf32>
      %f = "stablehlo.reduce_scatter"(%e) <{replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>, scatter_dimension = 0 : i64}> ({
      ^bb0(%p: tensor<f32>, %q: tensor<f32>):
        %sum = stablehlo.add %p, %q : tensor<f32>
        stablehlo.return %sum : tensor<f32>
      }) : (tensor<8x8xf32>) -> tensor<2x8xf32>
      %h = stablehlo.reshape %f : (tensor<2x8xf32>) -> tensor<1x2x8xf32>
      %i = stablehlo.dynamic_update_slice %o, %h, %k, %z, %z : (tensor<8x2x8xf32>, tensor<1x2x8xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<8x2x8xf32>
      %next = stablehlo.add %k, %one : tensor<i32>
      stablehlo.return %next, %d, %s, %i : tensor<i32>, tensor<4x8xf32>, tensor<8x2x8xf32>, tensor<8x2x8xf32>
    }
    return %n#1, %n#3 : tensor<4x8xf32>, tensor<8x2x8xf32>
  }

  // CHECK-LABEL: func.func private @what_a_step_stored_is_taken_again
  func.func private @what_a_step_stored_is_taken_again(%x: tensor<4x8xf32>, %w: tensor<8x2x8xf32>, %r: tensor<8x2x8xf32>) -> (tensor<1x2x8xf32>, tensor<1x2x8xf32>) {
    // CHECK: "stablehlo.reduce_scatter"
    // CHECK: "stablehlo.reduce_scatter"
    // CHECK: %[[H1:.*]] = stablehlo.reshape {{.*}} -> tensor<1x2x8xf32>
    // CHECK-NOT: stablehlo.dynamic_update_slice
    // CHECK: %[[OTHER:.*]] = stablehlo.dynamic_slice %arg2
    // CHECK: return %[[H1]], %[[OTHER]]
    %zero = stablehlo.constant dense<0> : tensor<i32>
    %n:4 = stablehlo.while(%k = %zero, %c = %x, %s = %w, %o = %r) : tensor<i32>, tensor<4x8xf32>, tensor<8x2x8xf32>, tensor<8x2x8xf32> attributes {shmap.overlap = {name = "unroll", parts = 0 : i64, barriers = false}}
    cond {
      %lim = stablehlo.constant dense<2> : tensor<i32>
      %more = stablehlo.compare LT, %k, %lim : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %more : tensor<i1>
    } do {
      %one = stablehlo.constant dense<1> : tensor<i32>
      %z = stablehlo.constant dense<0> : tensor<i32>
      %t = stablehlo.dynamic_slice %s, %k, %z, %z, sizes = [1, 2, 8] : (tensor<8x2x8xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x2x8xf32>
      %u = stablehlo.reshape %t : (tensor<1x2x8xf32>) -> tensor<2x8xf32>
      %g = "stablehlo.all_gather"(%u) <{all_gather_dim = 0 : i64, replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>}> : (tensor<2x8xf32>) -> tensor<8x8xf32>
      %d = stablehlo.dot_general %c, %g, contracting_dims = [1] x [0] : (tensor<4x8xf32>, tensor<8x8xf32>) -> tensor<4x8xf32>
      %e = stablehlo.dot_general %c, %d, contracting_dims = [0] x [0] : (tensor<4x8xf32>, tensor<4x8xf32>) -> tensor<8x8xf32>
      %f = "stablehlo.reduce_scatter"(%e) <{replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>, scatter_dimension = 0 : i64}> ({
      ^bb0(%p: tensor<f32>, %q: tensor<f32>):
        %sum = stablehlo.add %p, %q : tensor<f32>
        stablehlo.return %sum : tensor<f32>
      }) : (tensor<8x8xf32>) -> tensor<2x8xf32>
      %h = stablehlo.reshape %f : (tensor<2x8xf32>) -> tensor<1x2x8xf32>
      %i = stablehlo.dynamic_update_slice %o, %h, %k, %z, %z : (tensor<8x2x8xf32>, tensor<1x2x8xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<8x2x8xf32>
      %next = stablehlo.add %k, %one : tensor<i32>
      stablehlo.return %next, %d, %s, %i : tensor<i32>, tensor<4x8xf32>, tensor<8x2x8xf32>, tensor<8x2x8xf32>
    }
    %two = stablehlo.constant dense<2> : tensor<i32>
    %one = stablehlo.constant dense<1> : tensor<i32>
    %last = stablehlo.subtract %two, %one : tensor<i32>
    %zeros = stablehlo.constant dense<0> : tensor<i32>
    %v = stablehlo.dynamic_slice %n#3, %last, %zeros, %zeros, sizes = [1, 2, 8] : (tensor<8x2x8xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x2x8xf32>
    %m = stablehlo.dynamic_slice %r, %last, %zeros, %zeros, sizes = [1, 2, 8] : (tensor<8x2x8xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x2x8xf32>
    return %v, %m : tensor<1x2x8xf32>, tensor<1x2x8xf32>
  }

  // The first step gathers before anything is taken for the second one.
  // CHECK-LABEL: func.func private @an_array_that_is_written_whole_need_not_be_zeros
  func.func private @an_array_that_is_written_whole_need_not_be_zeros(%x: tensor<2x4xf32>, %w: tensor<8x3xf32>) -> (tensor<2x2x3xf32>, tensor<3x2x3xf32>) {
    // CHECK: %[[O:.*]] = stablehlo.dynamic_slice %arg1
    // CHECK: %[[B:.*]]:2 = stablehlo.optimization_barrier %arg1, %[[O]]
    // CHECK: "stablehlo.all_gather"(%[[B]]#1)
    // CHECK: %[[E:.*]] = stablehlo.custom_call @AllocateBuffer() : () -> tensor<2x2x3xf32>
    // CHECK: stablehlo.dynamic_update_slice %[[E]]
    // CHECK: stablehlo.dynamic_slice %[[B]]#0
    // CHECK-NOT: optimization_barrier
    // CHECK-NOT: AllocateBuffer
    // CHECK: return
    %zero = stablehlo.constant dense<0> : tensor<i32>
    %ys = stablehlo.constant dense<0.0> : tensor<2x2x3xf32>
    %zs = stablehlo.constant dense<0.0> : tensor<3x2x3xf32>
    %n:5 = stablehlo.while(%k = %zero, %a = %ys, %b = %zs, %y = %x, %v = %w) : tensor<i32>, tensor<2x2x3xf32>, tensor<3x2x3xf32>, tensor<2x4xf32>, tensor<8x3xf32> attributes {shmap.overlap = {name = "unroll", parts = 0 : i64, barriers = false, empty = "allocate"}}
    cond {
      %lim = stablehlo.constant dense<2> : tensor<i32>
      %more = stablehlo.compare LT, %k, %lim : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %more : tensor<i1>
    } do {
      %one = stablehlo.constant dense<1> : tensor<i32>
      %i = stablehlo.constant dense<0> : tensor<i32>
      %s = stablehlo.dynamic_slice %v, %k, %i, sizes = [1, 3] : (tensor<8x3xf32>, tensor<i32>, tensor<i32>) -> tensor<1x3xf32>
      %g = "stablehlo.all_gather"(%s) <{all_gather_dim = 0 : i64, replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>}> : (tensor<1x3xf32>) -> tensor<4x3xf32>
      %p = stablehlo.dot_general %y, %g, contracting_dims = [1] x [0] : (tensor<2x4xf32>, tensor<4x3xf32>) -> tensor<2x3xf32>
      %q = stablehlo.reshape %p : (tensor<2x3xf32>) -> tensor<1x2x3xf32>
      %c = stablehlo.dynamic_update_slice %a, %q, %k, %i, %i : (tensor<2x2x3xf32>, tensor<1x2x3xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<2x2x3xf32>
      %d = stablehlo.dynamic_update_slice %b, %q, %k, %i, %i : (tensor<3x2x3xf32>, tensor<1x2x3xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<3x2x3xf32>
      %next = stablehlo.add %k, %one : tensor<i32>
      stablehlo.return %next, %c, %d, %y, %v : tensor<i32>, tensor<2x2x3xf32>, tensor<3x2x3xf32>, tensor<2x4xf32>, tensor<8x3xf32>
    }
    return %n#1, %n#2 : tensor<2x2x3xf32>, tensor<3x2x3xf32>
  }
}
