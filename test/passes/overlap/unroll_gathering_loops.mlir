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
}
