// RUN: shmap-opt %s --shmap-overlap-product-sum | FileCheck %s

// CHECK-LABEL: module @all_axes_are_manual
module @all_axes_are_manual {
  sdy.mesh @mesh = <["i"=4, "j"=2]>
  func.func public @main() attributes {sdy.manual_axes = #sdy<manual_axes{"i", "j"}>} {
    return
  }

  // CHECK-LABEL: func.func private @columns_in_two_chunks_although_there_are_more_rows
  func.func private @columns_in_two_chunks_although_there_are_more_rows(%x: tensor<16x8xf32>, %w: tensor<8x6xf32>) -> tensor<16x6xf32> {
    // CHECK: stablehlo.slice %arg1 [0:8, 0:3]
    // CHECK: %[[P:.*]] = stablehlo.dot_general
    // CHECK: %[[B:.*]]:2 = stablehlo.optimization_barrier %arg0, %[[P]]
    // CHECK: "stablehlo.all_reduce"(%[[B]]#1)
    // CHECK: stablehlo.add
    // CHECK: stablehlo.slice %arg1 [0:8, 3:6]
    // CHECK: stablehlo.dot_general %[[B]]#0, %{{.*}}
    // CHECK: "stablehlo.all_reduce"
    // CHECK-NOT: stablehlo.all_reduce
    // CHECK: stablehlo.concatenate
    %p = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<16x8xf32>, tensor<8x6xf32>) -> tensor<16x6xf32>
    %y = "stablehlo.all_reduce"(%p) <{replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>}> ({
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %s = stablehlo.add %a, %b : tensor<f32>
      stablehlo.return %s : tensor<f32>
    }) {shmap.overlap = {name = "columns", parts = 2 : i64, in_place = false}} : (tensor<16x6xf32>) -> tensor<16x6xf32>
    return %y : tensor<16x6xf32>
  }

  // CHECK-LABEL: func.func private @columns_that_are_transposed_before_they_are_put_in_place
  func.func private @columns_that_are_transposed_before_they_are_put_in_place(%x: tensor<4x8xf32>, %w: tensor<8x6xf32>) -> tensor<6x4xf32> {
    // CHECK: stablehlo.slice %arg1 [0:8, 0:2]
    // CHECK: stablehlo.transpose %{{.*}} : (tensor<4x2xf32>) -> tensor<2x4xf32>
    // CHECK-COUNT-3: stablehlo.all_reduce
    // CHECK-NOT: stablehlo.all_reduce
    // CHECK: stablehlo.dynamic_update_slice
    %p = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<4x8xf32>, tensor<8x6xf32>) -> tensor<4x6xf32>
    %t = stablehlo.transpose %p, dims = [1, 0] : (tensor<4x6xf32>) -> tensor<6x4xf32>
    %y = "stablehlo.all_reduce"(%t) <{replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>}> ({
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %s = stablehlo.add %a, %b : tensor<f32>
      stablehlo.return %s : tensor<f32>
    }) {shmap.overlap = {name = "columns", parts = 3 : i64}} : (tensor<6x4xf32>) -> tensor<6x4xf32>
    return %y : tensor<6x4xf32>
  }

  // CHECK-LABEL: func.func private @a_product_comes_after_a_piece_is_in_its_place
  func.func private @a_product_comes_after_a_piece_is_in_its_place(%x: tensor<16x8xf32>, %w: tensor<8x6xf32>) -> tensor<16x6xf32> {
    // CHECK: %[[Q:.*]] = stablehlo.dot_general
    // CHECK: %[[B:.*]]:2 = stablehlo.optimization_barrier %{{.*}}, %[[Q]] :
    // CHECK: "stablehlo.all_reduce"(%[[B]]#1)
    // CHECK: %[[R:.*]] = stablehlo.dot_general %[[B]]#0,
    // CHECK: %[[F:.*]]:3 = stablehlo.optimization_barrier %{{.*}}, %[[R]], %{{.*}} :
    // CHECK: %[[P:.*]] = stablehlo.dynamic_update_slice %[[F]]#2, %[[F]]#0,
    // CHECK: %[[C:.*]]:2 = stablehlo.optimization_barrier %{{.*}}, %[[F]]#1 :
    // CHECK: "stablehlo.all_reduce"(%[[C]]#1)
    // CHECK: %[[D:.*]]:2 = stablehlo.optimization_barrier %[[C]]#0, %[[P]] :
    // CHECK: stablehlo.dot_general %[[D]]#0,
    %p = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<16x8xf32>, tensor<8x6xf32>) -> tensor<16x6xf32>
    %y = "stablehlo.all_reduce"(%p) <{replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>}> ({
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %s = stablehlo.add %a, %b : tensor<f32>
      stablehlo.return %s : tensor<f32>
    }) {shmap.overlap = {name = "columns", parts = 3 : i64}} : (tensor<16x6xf32>) -> tensor<16x6xf32>
    return %y : tensor<16x6xf32>
  }

  // CHECK-LABEL: func.func private @nothing_is_chosen
  func.func private @nothing_is_chosen(%x: tensor<16x8xf32>, %w: tensor<8x6xf32>) -> tensor<16x6xf32> {
    // CHECK-NEXT: stablehlo.dot_general
    // CHECK-NEXT: "stablehlo.all_reduce"
    %p = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<16x8xf32>, tensor<8x6xf32>) -> tensor<16x6xf32>
    %y = "stablehlo.all_reduce"(%p) <{replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>}> ({
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %s = stablehlo.add %a, %b : tensor<f32>
      stablehlo.return %s : tensor<f32>
    }) : (tensor<16x6xf32>) -> tensor<16x6xf32>
    return %y : tensor<16x6xf32>
  }

  // CHECK-LABEL: func.func private @the_rows_of_all_products_are_whole
  func.func private @the_rows_of_all_products_are_whole(%x: tensor<16x8xf32>, %w: tensor<8x6xf32>, %h: tensor<16x4xf32>, %v: tensor<4x6xf32>) -> tensor<16x6xf32> {
    // CHECK: %[[W0:.*]] = stablehlo.slice %arg1 [0:8, 0:3]
    // CHECK: %[[C0:.*]] = stablehlo.dot_general %arg0, %[[W0]]
    // CHECK: %[[V0:.*]] = stablehlo.slice %arg3 [0:4, 0:3]
    // CHECK: %[[D0:.*]] = stablehlo.dot_general %arg2, %[[V0]]
    // CHECK: %[[P0:.*]] = stablehlo.add %[[C0]], %[[D0]] : tensor<16x3xf32>
    // CHECK: %[[B:.*]]:3 = stablehlo.optimization_barrier %arg0, %arg2, %[[P0]]
    // CHECK: "stablehlo.all_reduce"(%[[B]]#2)
    // CHECK: stablehlo.dot_general %[[B]]#0, %{{.*}} -> tensor<16x3xf32>
    // CHECK: stablehlo.dot_general %[[B]]#1, %{{.*}} -> tensor<16x3xf32>
    %c = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<16x8xf32>, tensor<8x6xf32>) -> tensor<16x6xf32>
    %d = stablehlo.dot_general %h, %v, contracting_dims = [1] x [0] : (tensor<16x4xf32>, tensor<4x6xf32>) -> tensor<16x6xf32>
    %p = stablehlo.add %c, %d : tensor<16x6xf32>
    %y = "stablehlo.all_reduce"(%p) <{replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>}> ({
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %s = stablehlo.add %a, %b : tensor<f32>
      stablehlo.return %s : tensor<f32>
    }) {shmap.overlap = {name = "columns", parts = 2 : i64}} : (tensor<16x6xf32>) -> tensor<16x6xf32>
    return %y : tensor<16x6xf32>
  }

  // CHECK-LABEL: func.func private @what_is_cut_for_one_product_is_whole_for_another
  func.func private @what_is_cut_for_one_product_is_whole_for_another(%x: tensor<8x8xf32>, %w: tensor<8x8xf32>, %v: tensor<8x8xf32>) -> tensor<8x8xf32> {
    // CHECK-NEXT: stablehlo.dot_general
    // CHECK-NEXT: stablehlo.dot_general
    // CHECK-NEXT: stablehlo.add
    // CHECK-NEXT: "stablehlo.all_reduce"
    %c = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
    %d = stablehlo.dot_general %w, %v, contracting_dims = [1] x [0] : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
    %p = stablehlo.add %c, %d : tensor<8x8xf32>
    %y = "stablehlo.all_reduce"(%p) <{replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>}> ({
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %s = stablehlo.add %a, %b : tensor<f32>
      stablehlo.return %s : tensor<f32>
    }) {shmap.overlap = {name = "columns", parts = 2 : i64}} : (tensor<8x8xf32>) -> tensor<8x8xf32>
    return %y : tensor<8x8xf32>
  }

  // CHECK-LABEL: func.func private @a_maximum_is_not_a_sum
  func.func private @a_maximum_is_not_a_sum(%x: tensor<16x8xf32>, %w: tensor<8x6xf32>) -> tensor<16x6xf32> {
    // CHECK-NEXT: stablehlo.dot_general
    // CHECK-NEXT: "stablehlo.all_reduce"
    %p = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<16x8xf32>, tensor<8x6xf32>) -> tensor<16x6xf32>
    %y = "stablehlo.all_reduce"(%p) <{replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>}> ({
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %s = stablehlo.maximum %a, %b : tensor<f32>
      stablehlo.return %s : tensor<f32>
    }) {shmap.overlap = {name = "columns", parts = 2 : i64}} : (tensor<16x6xf32>) -> tensor<16x6xf32>
    return %y : tensor<16x6xf32>
  }

  // CHECK-LABEL: func.func private @the_product_is_used_twice
  func.func private @the_product_is_used_twice(%x: tensor<16x8xf32>, %w: tensor<8x6xf32>) -> (tensor<16x6xf32>, tensor<16x6xf32>) {
    // CHECK-NEXT: stablehlo.dot_general
    // CHECK-NEXT: "stablehlo.all_reduce"
    %p = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<16x8xf32>, tensor<8x6xf32>) -> tensor<16x6xf32>
    %y = "stablehlo.all_reduce"(%p) <{replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>}> ({
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %s = stablehlo.add %a, %b : tensor<f32>
      stablehlo.return %s : tensor<f32>
    }) {shmap.overlap = {name = "columns", parts = 2 : i64}} : (tensor<16x6xf32>) -> tensor<16x6xf32>
    return %y, %p : tensor<16x6xf32>, tensor<16x6xf32>
  }

  // CHECK-LABEL: func.func private @no_free_dimension_is_that_many_chunks
  func.func private @no_free_dimension_is_that_many_chunks(%x: tensor<16x8xf32>, %w: tensor<8x6xf32>) -> tensor<16x6xf32> {
    // CHECK-NEXT: stablehlo.dot_general
    // CHECK-NEXT: "stablehlo.all_reduce"
    %p = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<16x8xf32>, tensor<8x6xf32>) -> tensor<16x6xf32>
    %y = "stablehlo.all_reduce"(%p) <{replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>}> ({
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %s = stablehlo.add %a, %b : tensor<f32>
      stablehlo.return %s : tensor<f32>
    }) {shmap.overlap = {name = "columns", parts = 5 : i64}} : (tensor<16x6xf32>) -> tensor<16x6xf32>
    return %y : tensor<16x6xf32>
  }
}
