// RUN: shmap-opt %s --shmap-overlap-gather-product --split-input-file | FileCheck %s
// RUN: shmap-opt %s '--shmap-overlap-gather-product=form=ring empty=allocate' --split-input-file | FileCheck %s --check-prefix=FORCED

// FORCED: @AllocateBuffer
// CHECK-LABEL: module @all_axes_are_manual
module @all_axes_are_manual {
  sdy.mesh @mesh = <["i"=4, "j"=2]>
  func.func public @main() attributes {sdy.manual_axes = #sdy<manual_axes{"i", "j"}>} {
    return
  }

  // CHECK-LABEL: func.func private @blocks_go_round_in_halves_both_ways
  func.func private @blocks_go_round_in_halves_both_ways(%x: tensor<4x8xf32>, %w: tensor<8x6xf32>) -> tensor<16x6xf32> {
    // CHECK-NOT: all_gather
    // CHECK-DAG: %[[U:.*]] = stablehlo.slice %arg0 [0:2, 0:8]
    // CHECK-DAG: %[[L:.*]] = stablehlo.slice %arg0 [2:4, 0:8]
    // CHECK: %[[U1:.*]] = "stablehlo.collective_permute"(%[[U]]) <{source_target_pairs = dense<{{\[\[}}0, 6], [1, 7], [2, 0], [3, 1], [4, 2], [5, 3], [6, 4], [7, 5]]>
    // CHECK: %[[L1:.*]] = "stablehlo.collective_permute"(%[[L]]) <{source_target_pairs = dense<{{\[\[}}0, 2], [1, 3], [2, 4], [3, 5], [4, 6], [5, 7], [6, 0], [7, 1]]>
    // CHECK: %[[P:.*]] = stablehlo.dot_general %arg0, %arg1
    // CHECK: %[[A:.*]] = stablehlo.dynamic_update_slice %{{.*}}, %[[P]]
    // CHECK: stablehlo.optimization_barrier %[[A]], %[[U1]], %[[L1]]
    // CHECK-COUNT-2: call @[[STEP:shmap_step]](
    // CHECK-COUNT-2: call @[[PUT:shmap_put]](
    // CHECK-NOT: call @
    // CHECK: func.func private @[[STEP]](
    // CHECK-COUNT-2: stablehlo.collective_permute
    // CHECK-COUNT-2: call @[[PUT]](
    // CHECK: stablehlo.optimization_barrier
    // CHECK: func.func private @[[PUT]](
    // CHECK: %[[P:.*]] = stablehlo.dot_general %arg1, {{.*}} -> tensor<2x6xf32>
    // CHECK-NEXT: %[[C:.*]] = stablehlo.constant
    // CHECK-NEXT: stablehlo.dynamic_update_slice %arg0, %[[P]], %{{.*}}, %[[C]]
    // CHECK-NEXT: return
    %g = "stablehlo.all_gather"(%x) <{all_gather_dim = 0 : i64, replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>}> {shmap.overlap = {name = "ring"}} : (tensor<4x8xf32>) -> tensor<16x8xf32>
    %y = stablehlo.dot_general %g, %w, contracting_dims = [1] x [0] : (tensor<16x8xf32>, tensor<8x6xf32>) -> tensor<16x6xf32>
    return %y : tensor<16x6xf32>
  }

  // CHECK-LABEL: func.func private @what_is_computed_element_by_element_is_computed_on_pieces
  func.func private @what_is_computed_element_by_element_is_computed_on_pieces(%x: tensor<4x8xf32>, %w: tensor<8x6xf32>) -> tensor<16x6xf32> {
    // CHECK: stablehlo.tanh %{{.*}} : tensor<4x6xf32>
    // CHECK: func.func private @shmap_put
    // CHECK: stablehlo.tanh %{{.*}} : tensor<2x6xf32>
    // CHECK-NOT: stablehlo.tanh
    %g = "stablehlo.all_gather"(%x) <{all_gather_dim = 0 : i64, replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>}> {shmap.overlap = {name = "ring"}} : (tensor<4x8xf32>) -> tensor<16x8xf32>
    %y = stablehlo.dot_general %g, %w, contracting_dims = [1] x [0] : (tensor<16x8xf32>, tensor<8x6xf32>) -> tensor<16x6xf32>
    %z = stablehlo.tanh %y : tensor<16x6xf32>
    return %z : tensor<16x6xf32>
  }

  // CHECK-LABEL: func.func private @in_the_place_of_a_product
  func.func private @in_the_place_of_a_product(%x: tensor<4x8xf32>, %w: tensor<8x6xf32>, %v: tensor<16x8xf32>) -> tensor<16x6xf32> {
    // CHECK: %[[Y:.*]] = stablehlo.dot_general %arg2, %arg1
    // CHECK: stablehlo.dynamic_slice %[[Y]],
    // CHECK: stablehlo.dynamic_update_slice %[[Y]],
    // CHECK: func.func private @shmap_put
    // CHECK: stablehlo.dynamic_slice %arg0,
    // CHECK: stablehlo.dynamic_update_slice %arg0,
    %g = "stablehlo.all_gather"(%x) <{all_gather_dim = 0 : i64, replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>}> {shmap.overlap = {name = "ring"}} : (tensor<4x8xf32>) -> tensor<16x8xf32>
    %y = stablehlo.dot_general %v, %w, contracting_dims = [1] x [0] : (tensor<16x8xf32>, tensor<8x6xf32>) -> tensor<16x6xf32>
    %z = stablehlo.dot_general %g, %w, contracting_dims = [1] x [0] : (tensor<16x8xf32>, tensor<8x6xf32>) -> tensor<16x6xf32>
    %h = stablehlo.multiply %z, %y : tensor<16x6xf32>
    return %h : tensor<16x6xf32>
  }

  // CHECK-LABEL: func.func private @the_order_of_the_ring_is_given
  func.func private @the_order_of_the_ring_is_given(%x: tensor<4x8xf32>, %w: tensor<8x6xf32>) -> tensor<16x6xf32> {
    // CHECK: stablehlo.constant dense<[0, 1, 3, 2]> : tensor<4xi32>
    // CHECK: stablehlo.constant dense<[0, 1, 3, 2, 0, 1, 3, 2]> : tensor<8xi32>
    // CHECK: %[[TABLE:.*]] = stablehlo.dynamic_slice %{{.*}}, sizes = [4]
    // CHECK: %[[N:.*]] = stablehlo.constant dense<0>
    // CHECK: %[[S:.*]] = stablehlo.dynamic_slice %[[TABLE]], %[[N]], sizes = [1]
    // CHECK: %[[M:.*]] = stablehlo.reshape %[[S]]
    // CHECK: %[[SIZE:.*]] = stablehlo.constant dense<4>
    // CHECK: %[[START:.*]] = stablehlo.multiply %[[M]], %[[SIZE]]
    // CHECK: stablehlo.select %{{.*}}, %{{.*}}, %[[START]]
    // CHECK: collective_permute{{.*}}dense<{{\[\[}}0, 4], [1, 5], [2, 0], [3, 1], [4, 6], [5, 7], [6, 2], [7, 3]]>
    %g = "stablehlo.all_gather"(%x) <{all_gather_dim = 0 : i64, replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>}> {shmap.overlap = {name = "ring", order = array<i64: 0, 1, 3, 2>}} : (tensor<4x8xf32>) -> tensor<16x8xf32>
    %y = stablehlo.dot_general %g, %w, contracting_dims = [1] x [0] : (tensor<16x8xf32>, tensor<8x6xf32>) -> tensor<16x6xf32>
    return %y : tensor<16x6xf32>
  }

  // CHECK-LABEL: func.func private @transposed_as_the_right_operand
  func.func private @transposed_as_the_right_operand(%x: tensor<4x8xf32>, %w: tensor<6x8xf32>) -> tensor<6x16xf32> {
    // CHECK-NOT: all_gather
    // CHECK: stablehlo.transpose %arg0, dims = [1, 0] : (tensor<4x8xf32>) -> tensor<8x4xf32>
    // CHECK: stablehlo.dot_general %arg1, %{{.*}} -> tensor<6x4xf32>
    // CHECK: func.func private @shmap_put
    // CHECK: stablehlo.dot_general {{.*}} -> tensor<6x2xf32>
    %g = "stablehlo.all_gather"(%x) <{all_gather_dim = 0 : i64, replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>}> {shmap.overlap = {name = "ring"}} : (tensor<4x8xf32>) -> tensor<16x8xf32>
    %t = stablehlo.transpose %g, dims = [1, 0] : (tensor<16x8xf32>) -> tensor<8x16xf32>
    %y = stablehlo.dot_general %w, %t, contracting_dims = [1] x [0] : (tensor<6x8xf32>, tensor<8x16xf32>) -> tensor<6x16xf32>
    return %y : tensor<6x16xf32>
  }

  // CHECK-LABEL: func.func private @other_uses_read_what_is_put_together
  func.func private @other_uses_read_what_is_put_together(%x: tensor<4x8xf32>, %w: tensor<8x6xf32>) -> (tensor<16x6xf32>, tensor<16x8xf32>) {
    // CHECK-NOT: all_gather
    // CHECK: return %{{.*}}, %{{.*}} : tensor<16x6xf32>, tensor<16x8xf32>
    %g = "stablehlo.all_gather"(%x) <{all_gather_dim = 0 : i64, replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>}> {shmap.overlap = {name = "ring"}} : (tensor<4x8xf32>) -> tensor<16x8xf32>
    %y = stablehlo.dot_general %g, %w, contracting_dims = [1] x [0] : (tensor<16x8xf32>, tensor<8x6xf32>) -> tensor<16x6xf32>
    return %y, %g : tensor<16x6xf32>, tensor<16x8xf32>
  }

  // CHECK-LABEL: func.func private @rows_in_two_chunks
  func.func private @rows_in_two_chunks(%x: tensor<4x8xf32>, %w: tensor<8x6xf32>) -> tensor<16x6xf32> {
    // CHECK: %[[G0:.*]] = "stablehlo.all_gather"{{.*}} : (tensor<2x8xf32>) -> tensor<8x8xf32>
    // CHECK: %[[B:.*]]:2 = stablehlo.optimization_barrier %{{.*}}, %[[G0]]
    // CHECK: "stablehlo.all_gather"(%[[B]]#0)
    // CHECK: stablehlo.dot_general %[[B]]#1, %arg1
    // CHECK: stablehlo.dot_general
    // CHECK-NOT: stablehlo.dot_general
    %g = "stablehlo.all_gather"(%x) <{all_gather_dim = 0 : i64, replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>}> {shmap.overlap = {name = "rows", parts = 2 : i64}} : (tensor<4x8xf32>) -> tensor<16x8xf32>
    %y = stablehlo.dot_general %g, %w, contracting_dims = [1] x [0] : (tensor<16x8xf32>, tensor<8x6xf32>) -> tensor<16x6xf32>
    return %y : tensor<16x6xf32>
  }

  // CHECK-LABEL: func.func private @blocks_of_one_row_have_no_halves
  func.func private @blocks_of_one_row_have_no_halves(%x: tensor<1x8xf32>, %w: tensor<8x6xf32>) -> tensor<4x6xf32> {
    // CHECK-NEXT: "stablehlo.all_gather"(%arg0){{.*}}axes = [#stablehlo.axis_ref<name = "i">]>}> : (tensor<1x8xf32>)
    // CHECK-NEXT: stablehlo.dot_general
    %g = "stablehlo.all_gather"(%x) <{all_gather_dim = 0 : i64, replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>}> {shmap.overlap = {name = "ring"}} : (tensor<1x8xf32>) -> tensor<4x8xf32>
    %y = stablehlo.dot_general %g, %w, contracting_dims = [1] x [0] : (tensor<4x8xf32>, tensor<8x6xf32>) -> tensor<4x6xf32>
    return %y : tensor<4x6xf32>
  }

  // CHECK-LABEL: func.func private @the_result_is_needed_before_the_other_factor
  func.func private @the_result_is_needed_before_the_other_factor(%x: tensor<4x8xf32>) -> tensor<16x8xf32> {
    // CHECK-NEXT: "stablehlo.all_gather"(%arg0)
    // CHECK-NOT: collective_permute
    %g = "stablehlo.all_gather"(%x) <{all_gather_dim = 0 : i64, replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>}> {shmap.overlap = {name = "ring"}} : (tensor<4x8xf32>) -> tensor<16x8xf32>
    %v = stablehlo.slice %g [0:8, 0:8] : (tensor<16x8xf32>) -> tensor<8x8xf32>
    %y = stablehlo.dot_general %g, %v, contracting_dims = [1] x [0] : (tensor<16x8xf32>, tensor<8x8xf32>) -> tensor<16x8xf32>
    return %y : tensor<16x8xf32>
  }

  // CHECK-LABEL: func.func private @a_product_that_sums_over_what_is_gathered
  func.func private @a_product_that_sums_over_what_is_gathered(%x: tensor<4x8xf32>, %v: tensor<6x16xf32>) -> tensor<6x8xf32> {
    // CHECK-NEXT: "stablehlo.all_gather"(%arg0)
    // CHECK-NOT: collective_permute
    // CHECK-NOT: shmap.overlap
    %g = "stablehlo.all_gather"(%x) <{all_gather_dim = 0 : i64, replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>}> {shmap.overlap = {name = "ring"}} : (tensor<4x8xf32>) -> tensor<16x8xf32>
    %y = stablehlo.dot_general %v, %g, contracting_dims = [1] x [0] : (tensor<6x16xf32>, tensor<16x8xf32>) -> tensor<6x8xf32>
    return %y : tensor<6x8xf32>
  }

  // CHECK-LABEL: func.func private @nothing_is_chosen
  func.func private @nothing_is_chosen(%x: tensor<4x8xf32>, %w: tensor<8x6xf32>) -> tensor<16x6xf32> {
    // CHECK-NEXT: "stablehlo.all_gather"(%arg0)
    // CHECK-NEXT: stablehlo.dot_general
    %g = "stablehlo.all_gather"(%x) <{all_gather_dim = 0 : i64, replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>}> : (tensor<4x8xf32>) -> tensor<16x8xf32>
    %y = stablehlo.dot_general %g, %w, contracting_dims = [1] x [0] : (tensor<16x8xf32>, tensor<8x6xf32>) -> tensor<16x6xf32>
    return %y : tensor<16x6xf32>
  }

  // CHECK-LABEL: func.func private @devices_may_stay_out_of_a_branch
  func.func private @devices_may_stay_out_of_a_branch(%t: tensor<i1>, %x: tensor<4x8xf32>, %w: tensor<8x6xf32>) -> tensor<16x6xf32> {
    // CHECK: "stablehlo.all_gather"(%arg1)
    // CHECK-NOT: collective_permute
    %z = "stablehlo.if"(%t) ({
      %g = "stablehlo.all_gather"(%x) <{all_gather_dim = 0 : i64, replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>}> {shmap.overlap = {name = "ring"}} : (tensor<4x8xf32>) -> tensor<16x8xf32>
      %y = stablehlo.dot_general %g, %w, contracting_dims = [1] x [0] : (tensor<16x8xf32>, tensor<8x6xf32>) -> tensor<16x6xf32>
      stablehlo.return %y : tensor<16x6xf32>
    }, {
      %c = stablehlo.constant dense<0.0> : tensor<16x6xf32>
      stablehlo.return %c : tensor<16x6xf32>
    }) : (tensor<i1>) -> tensor<16x6xf32>
    return %z : tensor<16x6xf32>
  }

  // CHECK-LABEL: func.func private @a_product_in_a_loop
  func.func private @a_product_in_a_loop(%x: tensor<4x8xf32>, %w: tensor<8x6xf32>, %z: tensor<16x6xf32>) -> tensor<16x6xf32> {
    // CHECK-NEXT: "stablehlo.all_gather"(%arg0)
    // CHECK: stablehlo.while
    // CHECK: stablehlo.dot_general %0, %arg1
    %g = "stablehlo.all_gather"(%x) <{all_gather_dim = 0 : i64, replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>}> {shmap.overlap = {name = "ring"}} : (tensor<4x8xf32>) -> tensor<16x8xf32>
    %zero = stablehlo.constant dense<0> : tensor<i32>
    %last:2 = stablehlo.while(%k = %zero, %c = %z) : tensor<i32>, tensor<16x6xf32>
    cond {
      %limit = stablehlo.constant dense<4> : tensor<i32>
      %more = stablehlo.compare LT, %k, %limit : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %more : tensor<i1>
    } do {
      %one = stablehlo.constant dense<1> : tensor<i32>
      %next = stablehlo.add %k, %one : tensor<i32>
      %y = stablehlo.dot_general %g, %w, contracting_dims = [1] x [0] : (tensor<16x8xf32>, tensor<8x6xf32>) -> tensor<16x6xf32>
      %s = stablehlo.add %c, %y : tensor<16x6xf32>
      stablehlo.return %next, %s : tensor<i32>, tensor<16x6xf32>
    }
    return %last#1 : tensor<16x6xf32>
  }

  // CHECK-LABEL: func.func private @what_a_branch_computes_from_a_product
  func.func private @what_a_branch_computes_from_a_product(%x: tensor<4x8xf32>, %w: tensor<8x6xf32>, %z: tensor<16x6xf32>, %p: tensor<i1>) -> tensor<16x6xf32> {
    // CHECK-NOT: all_gather
    // CHECK: "stablehlo.if"(%arg3)
    // CHECK-NEXT: stablehlo.tanh %{{[0-9]+}} : tensor<16x6xf32>
    %g = "stablehlo.all_gather"(%x) <{all_gather_dim = 0 : i64, replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>}> {shmap.overlap = {name = "ring"}} : (tensor<4x8xf32>) -> tensor<16x8xf32>
    %y = stablehlo.dot_general %g, %w, contracting_dims = [1] x [0] : (tensor<16x8xf32>, tensor<8x6xf32>) -> tensor<16x6xf32>
    %r = "stablehlo.if"(%p) ({
      %t = stablehlo.tanh %y : tensor<16x6xf32>
      stablehlo.return %t : tensor<16x6xf32>
    }, {
      stablehlo.return %z : tensor<16x6xf32>
    }) : (tensor<i1>) -> tensor<16x6xf32>
    return %r : tensor<16x6xf32>
  }

  // A permutation is one among all devices, and not all of them may be in the loop as often.
  // CHECK-LABEL: func.func private @in_a_loop_of_unknown_length
  func.func private @in_a_loop_of_unknown_length(%x: tensor<4x8xf32>, %w: tensor<8x6xf32>, %z: tensor<16x6xf32>, %limit: tensor<i32>) -> tensor<16x6xf32> {
    // CHECK: "stablehlo.all_gather"(%arg0)
    // CHECK-NOT: collective_permute
    %zero = stablehlo.constant dense<0> : tensor<i32>
    %last:2 = stablehlo.while(%k = %zero, %c = %z) : tensor<i32>, tensor<16x6xf32>
    cond {
      %more = stablehlo.compare LT, %k, %limit : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %more : tensor<i1>
    } do {
      %one = stablehlo.constant dense<1> : tensor<i32>
      %next = stablehlo.add %k, %one : tensor<i32>
      %g = "stablehlo.all_gather"(%x) <{all_gather_dim = 0 : i64, replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>}> {shmap.overlap = {name = "ring"}} : (tensor<4x8xf32>) -> tensor<16x8xf32>
      %y = stablehlo.dot_general %g, %w, contracting_dims = [1] x [0] : (tensor<16x8xf32>, tensor<8x6xf32>) -> tensor<16x6xf32>
      stablehlo.return %next, %y : tensor<i32>, tensor<16x6xf32>
    }
    return %last#1 : tensor<16x6xf32>
  }

  // CHECK-LABEL: func.func private @a_branch_calls_the_next_one
  func.func private @a_branch_calls_the_next_one(%x: tensor<4x8xf32>, %w: tensor<8x6xf32>, %z: tensor<16x6xf32>, %p: tensor<i1>) -> tensor<16x6xf32> {
    %r = "stablehlo.if"(%p) ({
      %t = func.call @called_in_a_branch(%x, %w) : (tensor<4x8xf32>, tensor<8x6xf32>) -> tensor<16x6xf32>
      stablehlo.return %t : tensor<16x6xf32>
    }, {
      stablehlo.return %z : tensor<16x6xf32>
    }) : (tensor<i1>) -> tensor<16x6xf32>
    return %r : tensor<16x6xf32>
  }

  // CHECK-LABEL: func.func private @called_in_a_branch
  func.func private @called_in_a_branch(%x: tensor<4x8xf32>, %w: tensor<8x6xf32>) -> tensor<16x6xf32> {
    // CHECK-NEXT: "stablehlo.all_gather"(%arg0)
    // CHECK-NOT: collective_permute
    %g = "stablehlo.all_gather"(%x) <{all_gather_dim = 0 : i64, replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>}> {shmap.overlap = {name = "ring"}} : (tensor<4x8xf32>) -> tensor<16x8xf32>
    %y = stablehlo.dot_general %g, %w, contracting_dims = [1] x [0] : (tensor<16x8xf32>, tensor<8x6xf32>) -> tensor<16x6xf32>
    return %y : tensor<16x6xf32>
  }

  // CHECK-LABEL: func.func private @sent_as_bf16
  func.func private @sent_as_bf16(%x: tensor<4x8xf32>, %w: tensor<8x6xf32>) -> tensor<16x6xf32> {
    // CHECK: "stablehlo.collective_permute"{{.*}} -> tensor<2x8xbf16>
    %g = "stablehlo.all_gather"(%x) <{all_gather_dim = 0 : i64, replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>}> {shmap.overlap = {name = "ring", narrow = true}} : (tensor<4x8xf32>) -> tensor<16x8xf32>
    %y = stablehlo.dot_general %g, %w, contracting_dims = [1] x [0] : (tensor<16x8xf32>, tensor<8x6xf32>) -> tensor<16x6xf32>
    return %y : tensor<16x6xf32>
  }

  // CHECK-LABEL: func.func private @not_sent_as_bf16_for_products_of_the_highest_precision
  func.func private @not_sent_as_bf16_for_products_of_the_highest_precision(%x: tensor<4x8xf32>, %w: tensor<8x6xf32>) -> tensor<16x6xf32> {
    // CHECK-NOT: bf16
    // CHECK: "stablehlo.collective_permute"{{.*}} -> tensor<2x8xf32>
    // CHECK-NOT: bf16
    %g = "stablehlo.all_gather"(%x) <{all_gather_dim = 0 : i64, replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>}> {shmap.overlap = {name = "ring", narrow = true}} : (tensor<4x8xf32>) -> tensor<16x8xf32>
    %y = stablehlo.dot_general %g, %w, contracting_dims = [1] x [0], precision = [HIGHEST, HIGHEST] : (tensor<16x8xf32>, tensor<8x6xf32>) -> tensor<16x6xf32>
    return %y : tensor<16x6xf32>
  }

  // CHECK-LABEL: func.func private @not_sent_as_bf16_if_others_read_it
  func.func private @not_sent_as_bf16_if_others_read_it(%x: tensor<4x8xf32>, %w: tensor<8x6xf32>) -> (tensor<16x6xf32>, tensor<16x8xf32>) {
    // CHECK-NOT: bf16
    // CHECK: "stablehlo.collective_permute"{{.*}} -> tensor<2x8xf32>
    // CHECK-NOT: bf16
    %g = "stablehlo.all_gather"(%x) <{all_gather_dim = 0 : i64, replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>}> {shmap.overlap = {name = "ring", narrow = true}} : (tensor<4x8xf32>) -> tensor<16x8xf32>
    %y = stablehlo.dot_general %g, %w, contracting_dims = [1] x [0] : (tensor<16x8xf32>, tensor<8x6xf32>) -> tensor<16x6xf32>
    %n = stablehlo.negate %g : tensor<16x8xf32>
    return %y, %n : tensor<16x6xf32>, tensor<16x8xf32>
  }
}

// -----

// CHECK-LABEL: module @some_axes_are_automatic
module @some_axes_are_automatic {
  sdy.mesh @mesh = <["i"=4, "j"=2]>
  func.func public @main() attributes {sdy.manual_axes = #sdy<manual_axes{"i"}>} {
    return
  }

  // CHECK-LABEL: func.func private @a_gather
  func.func private @a_gather(%x: tensor<4x8xf32>, %w: tensor<8x6xf32>) -> tensor<16x6xf32> {
    // CHECK-NEXT: "stablehlo.all_gather"(%arg0)
    // CHECK-NOT: collective_permute
    %g = "stablehlo.all_gather"(%x) <{all_gather_dim = 0 : i64, replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>}> {shmap.overlap = {name = "ring"}} : (tensor<4x8xf32>) -> tensor<16x8xf32>
    %y = stablehlo.dot_general %g, %w, contracting_dims = [1] x [0] : (tensor<16x8xf32>, tensor<8x6xf32>) -> tensor<16x6xf32>
    return %y : tensor<16x6xf32>
  }
}

// -----

// CHECK-LABEL: module @a_large_group
module @a_large_group {
  sdy.mesh @mesh = <["i"=32]>
  func.func public @main() attributes {sdy.manual_axes = #sdy<manual_axes{"i"}>} {
    return
  }

  // CHECK-LABEL: func.func private @a_ring_of_32_devices
  func.func private @a_ring_of_32_devices(%x: tensor<4x8xf32>, %w: tensor<8x6xf32>) -> tensor<128x6xf32> {
    // CHECK-NOT: all_gather
    // CHECK: stablehlo.dot_general %arg0, %arg1
    // CHECK: stablehlo.while
    // CHECK: stablehlo.constant dense<15>
    // CHECK: } do {
    // CHECK-COUNT-2: "stablehlo.collective_permute"
    // CHECK: stablehlo.optimization_barrier
    // CHECK-COUNT-2: "stablehlo.collective_permute"
    // CHECK: stablehlo.optimization_barrier
    // CHECK: stablehlo.return
    // CHECK-COUNT-2: call @shmap_put(
    // CHECK-NOT: collective_permute
    %g = "stablehlo.all_gather"(%x) <{all_gather_dim = 0 : i64, replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>}> {shmap.overlap = {name = "ring"}} : (tensor<4x8xf32>) -> tensor<128x8xf32>
    %y = stablehlo.dot_general %g, %w, contracting_dims = [1] x [0] : (tensor<128x8xf32>, tensor<8x6xf32>) -> tensor<128x6xf32>
    return %y : tensor<128x6xf32>
  }
}

// -----

// CHECK-LABEL: module @too_large_a_group
module @too_large_a_group {
  sdy.mesh @mesh = <["i"=512]>
  func.func public @main() attributes {sdy.manual_axes = #sdy<manual_axes{"i"}>} {
    return
  }

  // CHECK-LABEL: func.func private @a_ring_of_512_devices
  func.func private @a_ring_of_512_devices(%x: tensor<4x8xf32>, %w: tensor<8x6xf32>) -> tensor<2048x6xf32> {
    // CHECK-NEXT: "stablehlo.all_gather"(%arg0)
    // CHECK-NOT: collective_permute
    %g = "stablehlo.all_gather"(%x) <{all_gather_dim = 0 : i64, replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>}> {shmap.overlap = {name = "ring"}} : (tensor<4x8xf32>) -> tensor<2048x8xf32>
    %y = stablehlo.dot_general %g, %w, contracting_dims = [1] x [0] : (tensor<2048x8xf32>, tensor<8x6xf32>) -> tensor<2048x6xf32>
    return %y : tensor<2048x6xf32>
  }
}
