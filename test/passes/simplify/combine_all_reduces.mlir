// RUN: shmap-opt %s --shmap-combine-all-reduces --split-input-file | FileCheck %s

// CHECK-LABEL: module @all_axes_are_manual
module @all_axes_are_manual {
  sdy.mesh @mesh = <["i"=4, "j"=2]>
  func.func public @main() attributes {sdy.manual_axes = #sdy<manual_axes{"i", "j"}>} {
    return
  }

  // CHECK-LABEL: func.func private @sums_of_two_shapes
  func.func private @sums_of_two_shapes(%x: tensor<f32>, %y: tensor<2x2xf32>) -> (tensor<f32>, tensor<2x2xf32>) {
    // CHECK-NEXT: %[[A:.*]] = stablehlo.reshape %arg0 : (tensor<f32>) -> tensor<1xf32>
    // CHECK-NEXT: %[[B:.*]] = stablehlo.reshape %arg1 : (tensor<2x2xf32>) -> tensor<4xf32>
    // CHECK-NEXT: %[[AB:.*]] = stablehlo.concatenate %[[A]], %[[B]], dim = 0
    // CHECK-NEXT: %[[SUM:.*]] = "stablehlo.all_reduce"(%[[AB]])
    // CHECK-SAME: axes = [#stablehlo.axis_ref<name = "i">]
    // CHECK: %[[P:.*]] = stablehlo.slice %[[SUM]] [0:1]
    // CHECK-NEXT: %[[Q:.*]] = stablehlo.reshape %[[P]] : (tensor<1xf32>) -> tensor<f32>
    // CHECK-NEXT: %[[R:.*]] = stablehlo.slice %[[SUM]] [1:5]
    // CHECK-NEXT: %[[S:.*]] = stablehlo.reshape %[[R]] : (tensor<4xf32>) -> tensor<2x2xf32>
    // CHECK-NEXT: return %[[Q]], %[[S]]
    %0 = "stablehlo.all_reduce"(%x) <{replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>}> ({
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %s = stablehlo.add %a, %b : tensor<f32>
      stablehlo.return %s : tensor<f32>
    }) : (tensor<f32>) -> tensor<f32>
    %1 = "stablehlo.all_reduce"(%y) <{replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>}> ({
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %s = stablehlo.add %a, %b : tensor<f32>
      stablehlo.return %s : tensor<f32>
    }) : (tensor<2x2xf32>) -> tensor<2x2xf32>
    return %0, %1 : tensor<f32>, tensor<2x2xf32>
  }

  // CHECK-LABEL: func.func private @comparisons_in_two_directions
  func.func private @comparisons_in_two_directions(%x: tensor<4xi1>, %y: tensor<4xi1>) -> (tensor<4xi1>, tensor<4xi1>) {
    // CHECK-NEXT: %[[R:.*]] = "stablehlo.all_reduce"(%arg0)
    // CHECK: %[[S:.*]] = "stablehlo.all_reduce"(%arg1)
    // CHECK: return %[[R]], %[[S]] :
    %0 = "stablehlo.all_reduce"(%x) <{replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>}> ({
    ^bb0(%a: tensor<i1>, %b: tensor<i1>):
      %s = stablehlo.compare NE, %a, %b : (tensor<i1>, tensor<i1>) -> tensor<i1>
      stablehlo.return %s : tensor<i1>
    }) : (tensor<4xi1>) -> tensor<4xi1>
    %1 = "stablehlo.all_reduce"(%y) <{replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>}> ({
    ^bb0(%a: tensor<i1>, %b: tensor<i1>):
      %s = stablehlo.compare EQ, %a, %b : (tensor<i1>, tensor<i1>) -> tensor<i1>
      stablehlo.return %s : tensor<i1>
    }) : (tensor<4xi1>) -> tensor<4xi1>
    return %0, %1 : tensor<4xi1>, tensor<4xi1>
  }

  // CHECK-LABEL: func.func private @sums_that_promote_their_elements
  func.func private @sums_that_promote_their_elements(%x: tensor<4xbf16>, %y: tensor<4xbf16>) -> (tensor<4xf32>, tensor<4xf32>) {
    // CHECK-NEXT: %[[R:.*]] = "stablehlo.all_reduce"(%arg0)
    // CHECK: %[[S:.*]] = "stablehlo.all_reduce"(%arg1)
    // CHECK: return %[[R]], %[[S]] :
    %0 = "stablehlo.all_reduce"(%x) <{replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>}> ({
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %s = stablehlo.add %a, %b : tensor<f32>
      stablehlo.return %s : tensor<f32>
    }) : (tensor<4xbf16>) -> tensor<4xf32>
    %1 = "stablehlo.all_reduce"(%y) <{replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>}> ({
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %s = stablehlo.add %a, %b : tensor<f32>
      stablehlo.return %s : tensor<f32>
    }) : (tensor<4xbf16>) -> tensor<4xf32>
    return %0, %1 : tensor<4xf32>, tensor<4xf32>
  }

  // CHECK-LABEL: func.func private @sums_of_unknown_size
  func.func private @sums_of_unknown_size(%x: tensor<?xf32, #stablehlo.bounds<4>>, %y: tensor<?xf32, #stablehlo.bounds<4>>) -> (tensor<?xf32, #stablehlo.bounds<4>>, tensor<?xf32, #stablehlo.bounds<4>>) {
    // CHECK-NEXT: %[[R:.*]] = "stablehlo.all_reduce"(%arg0)
    // CHECK: %[[S:.*]] = "stablehlo.all_reduce"(%arg1)
    // CHECK: return %[[R]], %[[S]] :
    %0 = "stablehlo.all_reduce"(%x) <{replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>}> ({
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %s = stablehlo.add %a, %b : tensor<f32>
      stablehlo.return %s : tensor<f32>
    }) : (tensor<?xf32, #stablehlo.bounds<4>>) -> tensor<?xf32, #stablehlo.bounds<4>>
    %1 = "stablehlo.all_reduce"(%y) <{replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>}> ({
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %s = stablehlo.add %a, %b : tensor<f32>
      stablehlo.return %s : tensor<f32>
    }) : (tensor<?xf32, #stablehlo.bounds<4>>) -> tensor<?xf32, #stablehlo.bounds<4>>
    return %0, %1 : tensor<?xf32, #stablehlo.bounds<4>>, tensor<?xf32, #stablehlo.bounds<4>>
  }

  // CHECK-LABEL: func.func private @work_between_them
  func.func private @work_between_them(%x: tensor<f32>, %y: tensor<2x2xf32>) -> (tensor<f32>, tensor<2x2xf32>) {
    // CHECK: stablehlo.concatenate
    // CHECK: stablehlo.all_reduce
    // CHECK-NOT: stablehlo.all_reduce
    // CHECK: return
    %0 = "stablehlo.all_reduce"(%x) <{replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>}> ({
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %s = stablehlo.add %a, %b : tensor<f32>
      stablehlo.return %s : tensor<f32>
    }) : (tensor<f32>) -> tensor<f32>
    %n = stablehlo.negate %y : tensor<2x2xf32>
    %i = stablehlo.custom_call @shmap.axis_index() {api_version = 4 : i32, backend_config = {axes = ["i"]}} : () -> tensor<i32>
    %1 = "stablehlo.all_reduce"(%n) <{replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>}> ({
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %s = stablehlo.add %a, %b : tensor<f32>
      stablehlo.return %s : tensor<f32>
    }) : (tensor<2x2xf32>) -> tensor<2x2xf32>
    return %0, %1 : tensor<f32>, tensor<2x2xf32>
  }

  // CHECK-LABEL: func.func private @integers_over_axes_in_another_order
  func.func private @integers_over_axes_in_another_order(%x: tensor<i32>, %y: tensor<2x2xi32>) -> (tensor<i32>, tensor<2x2xi32>) {
    // CHECK: stablehlo.concatenate
    // CHECK: stablehlo.all_reduce
    // CHECK-NOT: stablehlo.all_reduce
    // CHECK: return
    %0 = "stablehlo.all_reduce"(%x) <{replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">, #stablehlo.axis_ref<name = "j">]>}> ({
    ^bb0(%a: tensor<i32>, %b: tensor<i32>):
      %s = stablehlo.add %a, %b : tensor<i32>
      stablehlo.return %s : tensor<i32>
    }) : (tensor<i32>) -> tensor<i32>
    %1 = "stablehlo.all_reduce"(%y) <{replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "j">, #stablehlo.axis_ref<name = "i">]>}> ({
    ^bb0(%a: tensor<i32>, %b: tensor<i32>):
      %s = stablehlo.add %a, %b : tensor<i32>
      stablehlo.return %s : tensor<i32>
    }) : (tensor<2x2xi32>) -> tensor<2x2xi32>
    return %0, %1 : tensor<i32>, tensor<2x2xi32>
  }

  // CHECK-LABEL: func.func private @numbers_that_are_rounded_over_axes_in_another_order
  func.func private @numbers_that_are_rounded_over_axes_in_another_order(%x: tensor<f32>, %y: tensor<2x2xf32>) -> (tensor<f32>, tensor<2x2xf32>) {
    // CHECK-NOT: stablehlo.concatenate
    // CHECK: return
    %0 = "stablehlo.all_reduce"(%x) <{replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">, #stablehlo.axis_ref<name = "j">]>}> ({
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %s = stablehlo.add %a, %b : tensor<f32>
      stablehlo.return %s : tensor<f32>
    }) : (tensor<f32>) -> tensor<f32>
    %1 = "stablehlo.all_reduce"(%y) <{replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "j">, #stablehlo.axis_ref<name = "i">]>}> ({
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %s = stablehlo.add %a, %b : tensor<f32>
      stablehlo.return %s : tensor<f32>
    }) : (tensor<2x2xf32>) -> tensor<2x2xf32>
    return %0, %1 : tensor<f32>, tensor<2x2xf32>
  }

  // CHECK-LABEL: func.func private @a_result_that_is_wanted_before_the_last
  func.func private @a_result_that_is_wanted_before_the_last(%x: tensor<f32>, %y: tensor<2x2xf32>) -> (tensor<f32>, tensor<2x2xf32>) {
    // CHECK-NOT: stablehlo.concatenate
    // CHECK: return
    %0 = "stablehlo.all_reduce"(%x) <{replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>}> ({
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %s = stablehlo.add %a, %b : tensor<f32>
      stablehlo.return %s : tensor<f32>
    }) : (tensor<f32>) -> tensor<f32>
    %n = stablehlo.negate %0 : tensor<f32>
    %1 = "stablehlo.all_reduce"(%y) <{replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>}> ({
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %s = stablehlo.add %a, %b : tensor<f32>
      stablehlo.return %s : tensor<f32>
    }) : (tensor<2x2xf32>) -> tensor<2x2xf32>
    return %n, %1 : tensor<f32>, tensor<2x2xf32>
  }

  // CHECK-LABEL: func.func private @a_sum_that_depends_on_the_other
  func.func private @a_sum_that_depends_on_the_other(%x: tensor<f32>, %y: tensor<2x2xf32>) -> (tensor<f32>, tensor<2x2xf32>) {
    // CHECK-NOT: stablehlo.concatenate
    // CHECK: return
    %0 = "stablehlo.all_reduce"(%x) <{replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>}> ({
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %s = stablehlo.add %a, %b : tensor<f32>
      stablehlo.return %s : tensor<f32>
    }) : (tensor<f32>) -> tensor<f32>
    %w = stablehlo.broadcast_in_dim %0, dims = [] : (tensor<f32>) -> tensor<2x2xf32>
    %1 = "stablehlo.all_reduce"(%w) <{replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>}> ({
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %s = stablehlo.add %a, %b : tensor<f32>
      stablehlo.return %s : tensor<f32>
    }) : (tensor<2x2xf32>) -> tensor<2x2xf32>
    return %0, %1 : tensor<f32>, tensor<2x2xf32>
  }

  // CHECK-LABEL: func.func private @other_axes
  func.func private @other_axes(%x: tensor<f32>, %y: tensor<2x2xf32>) -> (tensor<f32>, tensor<2x2xf32>) {
    // CHECK-NOT: stablehlo.concatenate
    // CHECK: return
    %0 = "stablehlo.all_reduce"(%x) <{replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>}> ({
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %s = stablehlo.add %a, %b : tensor<f32>
      stablehlo.return %s : tensor<f32>
    }) : (tensor<f32>) -> tensor<f32>
    %1 = "stablehlo.all_reduce"(%y) <{replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "j">]>}> ({
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %s = stablehlo.add %a, %b : tensor<f32>
      stablehlo.return %s : tensor<f32>
    }) : (tensor<2x2xf32>) -> tensor<2x2xf32>
    return %0, %1 : tensor<f32>, tensor<2x2xf32>
  }

  // CHECK-LABEL: func.func private @another_reduction
  func.func private @another_reduction(%x: tensor<f32>, %y: tensor<2x2xf32>) -> (tensor<f32>, tensor<2x2xf32>) {
    // CHECK-NOT: stablehlo.concatenate
    // CHECK: return
    %0 = "stablehlo.all_reduce"(%x) <{replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>}> ({
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %s = stablehlo.add %a, %b : tensor<f32>
      stablehlo.return %s : tensor<f32>
    }) : (tensor<f32>) -> tensor<f32>
    %1 = "stablehlo.all_reduce"(%y) <{replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>}> ({
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %s = stablehlo.maximum %a, %b : tensor<f32>
      stablehlo.return %s : tensor<f32>
    }) : (tensor<2x2xf32>) -> tensor<2x2xf32>
    return %0, %1 : tensor<f32>, tensor<2x2xf32>
  }

  // CHECK-LABEL: func.func private @another_element_type
  func.func private @another_element_type(%x: tensor<f32>, %y: tensor<f16>) -> (tensor<f32>, tensor<f16>) {
    // CHECK-NOT: stablehlo.concatenate
    // CHECK: return
    %0 = "stablehlo.all_reduce"(%x) <{replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>}> ({
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %s = stablehlo.add %a, %b : tensor<f32>
      stablehlo.return %s : tensor<f32>
    }) : (tensor<f32>) -> tensor<f32>
    %1 = "stablehlo.all_reduce"(%y) <{replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>}> ({
    ^bb0(%a: tensor<f16>, %b: tensor<f16>):
      %s = stablehlo.add %a, %b : tensor<f16>
      stablehlo.return %s : tensor<f16>
    }) : (tensor<f16>) -> tensor<f16>
    return %0, %1 : tensor<f32>, tensor<f16>
  }

  // CHECK-LABEL: func.func private @another_collective_between_them
  func.func private @another_collective_between_them(%x: tensor<f32>, %y: tensor<2x2xf32>) -> (tensor<f32>, tensor<2x2xf32>) {
    // CHECK-NOT: stablehlo.concatenate
    // CHECK: return
    %0 = "stablehlo.all_reduce"(%x) <{replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>}> ({
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %s = stablehlo.add %a, %b : tensor<f32>
      stablehlo.return %s : tensor<f32>
    }) : (tensor<f32>) -> tensor<f32>
    %p = "stablehlo.collective_permute"(%y) <{source_target_pairs = dense<[[0, 1]]> : tensor<1x2xi64>}> : (tensor<2x2xf32>) -> tensor<2x2xf32>
    %1 = "stablehlo.all_reduce"(%p) <{replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>}> ({
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %s = stablehlo.add %a, %b : tensor<f32>
      stablehlo.return %s : tensor<f32>
    }) : (tensor<2x2xf32>) -> tensor<2x2xf32>
    return %0, %1 : tensor<f32>, tensor<2x2xf32>
  }

  // CHECK-LABEL: func.func private @an_effect_between_them
  func.func private @an_effect_between_them(%x: tensor<f32>, %y: tensor<2x2xf32>) -> (tensor<f32>, tensor<2x2xf32>) {
    // CHECK-NOT: stablehlo.concatenate
    // CHECK: return
    %0 = "stablehlo.all_reduce"(%x) <{replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>}> ({
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %s = stablehlo.add %a, %b : tensor<f32>
      stablehlo.return %s : tensor<f32>
    }) : (tensor<f32>) -> tensor<f32>
    stablehlo.custom_call @print(%x) {has_side_effect = true} : (tensor<f32>) -> ()
    %1 = "stablehlo.all_reduce"(%y) <{replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>}> ({
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %s = stablehlo.add %a, %b : tensor<f32>
      stablehlo.return %s : tensor<f32>
    }) : (tensor<2x2xf32>) -> tensor<2x2xf32>
    return %0, %1 : tensor<f32>, tensor<2x2xf32>
  }

  // CHECK-LABEL: func.func private @as_much_as_the_limit_holds
  func.func private @as_much_as_the_limit_holds(%x: tensor<128xf32>, %y: tensor<128xf32>) -> (tensor<128xf32>, tensor<128xf32>) {
    // CHECK: stablehlo.concatenate
    // CHECK: stablehlo.all_reduce
    // CHECK-NOT: stablehlo.all_reduce
    // CHECK: return
    %0 = "stablehlo.all_reduce"(%x) <{replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>}> ({
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %s = stablehlo.add %a, %b : tensor<f32>
      stablehlo.return %s : tensor<f32>
    }) : (tensor<128xf32>) -> tensor<128xf32>
    %1 = "stablehlo.all_reduce"(%y) <{replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>}> ({
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %s = stablehlo.add %a, %b : tensor<f32>
      stablehlo.return %s : tensor<f32>
    }) : (tensor<128xf32>) -> tensor<128xf32>
    return %0, %1 : tensor<128xf32>, tensor<128xf32>
  }

  // CHECK-LABEL: func.func private @more_than_the_limit_holds
  func.func private @more_than_the_limit_holds(%x: tensor<128xf32>, %y: tensor<129xf32>) -> (tensor<128xf32>, tensor<129xf32>) {
    // CHECK-NOT: stablehlo.concatenate
    // CHECK: return
    %0 = "stablehlo.all_reduce"(%x) <{replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>}> ({
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %s = stablehlo.add %a, %b : tensor<f32>
      stablehlo.return %s : tensor<f32>
    }) : (tensor<128xf32>) -> tensor<128xf32>
    %1 = "stablehlo.all_reduce"(%y) <{replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>}> ({
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %s = stablehlo.add %a, %b : tensor<f32>
      stablehlo.return %s : tensor<f32>
    }) : (tensor<129xf32>) -> tensor<129xf32>
    return %0, %1 : tensor<128xf32>, tensor<129xf32>
  }

  // CHECK-LABEL: func.func private @a_run_that_is_too_long_for_one
  func.func private @a_run_that_is_too_long_for_one(%x: tensor<128xf32>, %y: tensor<128xf32>) -> (tensor<128xf32>, tensor<128xf32>, tensor<128xf32>, tensor<128xf32>) {
    // CHECK: stablehlo.concatenate
    // CHECK: tensor<256xf32>
    // CHECK: stablehlo.concatenate
    // CHECK: tensor<256xf32>
    // CHECK-NOT: stablehlo.concatenate
    // CHECK: return
    %0 = "stablehlo.all_reduce"(%y) <{replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>}> ({
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %s = stablehlo.add %a, %b : tensor<f32>
      stablehlo.return %s : tensor<f32>
    }) : (tensor<128xf32>) -> tensor<128xf32>
    %1 = "stablehlo.all_reduce"(%x) <{replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>}> ({
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %s = stablehlo.add %a, %b : tensor<f32>
      stablehlo.return %s : tensor<f32>
    }) : (tensor<128xf32>) -> tensor<128xf32>
    %2 = "stablehlo.all_reduce"(%y) <{replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>}> ({
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %s = stablehlo.add %a, %b : tensor<f32>
      stablehlo.return %s : tensor<f32>
    }) : (tensor<128xf32>) -> tensor<128xf32>
    %3 = "stablehlo.all_reduce"(%x) <{replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>}> ({
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %s = stablehlo.add %a, %b : tensor<f32>
      stablehlo.return %s : tensor<f32>
    }) : (tensor<128xf32>) -> tensor<128xf32>
    return %0, %1, %2, %3 : tensor<128xf32>, tensor<128xf32>, tensor<128xf32>, tensor<128xf32>
  }
}

// -----

// CHECK-LABEL: module @one_axis_is_automatic
module @one_axis_is_automatic {
  sdy.mesh @mesh = <["i"=4, "j"=2]>
  func.func public @main() attributes {sdy.manual_axes = #sdy<manual_axes{"i"}>} {
    return
  }

  // CHECK-LABEL: func.func private @values_may_lie_differently_over_automatic_axes
  func.func private @values_may_lie_differently_over_automatic_axes(%x: tensor<f32>, %y: tensor<2x2xf32>) -> (tensor<f32>, tensor<2x2xf32>) {
    // CHECK-NOT: stablehlo.concatenate
    // CHECK: return
    %0 = "stablehlo.all_reduce"(%x) <{replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>}> ({
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %s = stablehlo.add %a, %b : tensor<f32>
      stablehlo.return %s : tensor<f32>
    }) : (tensor<f32>) -> tensor<f32>
    %1 = "stablehlo.all_reduce"(%y) <{replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>}> ({
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %s = stablehlo.add %a, %b : tensor<f32>
      stablehlo.return %s : tensor<f32>
    }) : (tensor<2x2xf32>) -> tensor<2x2xf32>
    return %0, %1 : tensor<f32>, tensor<2x2xf32>
  }
}
