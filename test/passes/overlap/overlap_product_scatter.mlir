// RUN: shmap-opt %s --shmap-overlap-product-scatter | FileCheck %s

// CHECK-LABEL: module @all_axes_are_manual
module @all_axes_are_manual {
  sdy.mesh @mesh = <["i"=4, "j"=2]>
  func.func public @main() attributes {sdy.manual_axes = #sdy<manual_axes{"i", "j"}>} {
    return
  }

  // CHECK-LABEL: func.func private @two_partial_sums_on_the_way
  func.func private @two_partial_sums_on_the_way(%x: tensor<16x8xf32>, %w: tensor<8x6xf32>) -> tensor<4x6xf32> {
    // CHECK-NOT: reduce_scatter
    // CHECK: %[[T:.*]] = stablehlo.dynamic_slice %{{.*}}, sizes = [4]
    // CHECK-COUNT-2: call @[[PRODUCT:shmap_product]](%{{.*}}, %arg0, %[[T]], %arg1)
    // CHECK-COUNT-2: call @[[STEP:shmap_step]](
    // CHECK: %[[R:.*]] = "stablehlo.collective_permute"(%{{.*}}) <{source_target_pairs = dense<{{\[\[}}0, 6], [1, 7], [2, 0], [3, 1], [4, 2], [5, 3], [6, 4], [7, 5]]>
    // CHECK: %[[SUM:.*]] = call @[[ADD:shmap_add]](%[[R]], %{{.*}}, %arg0, %[[T]], %arg1)
    // CHECK: %[[PUT:.*]] = stablehlo.dynamic_update_slice %{{.*}}, %[[SUM]]
    // CHECK: %[[R:.*]] = "stablehlo.collective_permute"(%{{.*}}) <{source_target_pairs = dense<{{\[\[}}0, 2], [1, 3], [2, 4], [3, 5], [4, 6], [5, 7], [6, 0], [7, 1]]>
    // CHECK: %[[LAST:.*]]:2 = call @[[ORDERED:shmap_add_0]](%[[R]], %{{.*}}, %[[PUT]], %arg0, %[[T]], %arg1)
    // CHECK: stablehlo.dynamic_update_slice %[[LAST]]#1, %[[LAST]]#0
    // CHECK-NEXT: return

    // CHECK: func.func private @[[ORDERED]](
    // CHECK: %[[B:.*]]:3 = stablehlo.optimization_barrier %arg0, %arg4, %arg3
    // CHECK: call @[[PRODUCT]](%arg1, %arg2, %[[B]]#1, %arg5, %arg6)
    // CHECK: stablehlo.add %[[B]]#0
    // CHECK: return %{{.*}}, %[[B]]#2

    // CHECK: func.func private @[[STEP]](
    // CHECK: %[[R:.*]] = "stablehlo.collective_permute"(%arg0) <{source_target_pairs = dense<{{\[\[}}0, 6]
    // CHECK: call @[[ADD]](%[[R]],
    // CHECK: %[[R:.*]] = "stablehlo.collective_permute"(%arg1) <{source_target_pairs = dense<{{\[\[}}0, 2]
    // CHECK: call @[[ADD]](%[[R]],

    // CHECK: func.func private @[[ADD]](
    // CHECK: %[[B:.*]]:2 = stablehlo.optimization_barrier %arg0, %arg3
    // CHECK: call @[[PRODUCT]](%arg1, %arg2, %[[B]]#1, %arg4, %arg5)
    // CHECK: stablehlo.add %[[B]]#0

    // CHECK: func.func private @[[PRODUCT]](
    // CHECK: %[[S:.*]] = stablehlo.dynamic_slice %arg3, %arg0, sizes = [1]
    // CHECK: %[[M:.*]] = stablehlo.reshape %[[S]]
    // CHECK: %[[SIZE:.*]] = stablehlo.constant dense<4>
    // CHECK: %[[START:.*]] = stablehlo.multiply %[[M]], %[[SIZE]]
    // CHECK: stablehlo.add %[[START]], %arg1
    // CHECK: %[[D:.*]] = stablehlo.dynamic_slice %arg2, %{{.*}}, sizes = [2, 8]
    // CHECK: stablehlo.dot_general %[[D]], %arg4
    %p = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<16x8xf32>, tensor<8x6xf32>) -> tensor<16x6xf32>
    %y = "stablehlo.reduce_scatter"(%p) <{replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>, scatter_dimension = 0 : i64}> ({
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %s = stablehlo.add %a, %b : tensor<f32>
      stablehlo.return %s : tensor<f32>
    }) {shmap.overlap = {name = "partial-sums", parts = 2 : i64}} : (tensor<16x6xf32>) -> tensor<4x6xf32>
    return %y : tensor<4x6xf32>
  }

  // CHECK-LABEL: func.func private @sums_of_16_bits_are_added_in_32
  func.func private @sums_of_16_bits_are_added_in_32(%x: tensor<16x8xbf16>, %w: tensor<8x6xbf16>) -> tensor<4x6xbf16> {
    // CHECK: call @[[PRODUCT:.*]](%{{.*}}, %arg0, %{{.*}}, %arg1) {{.*}} -> tensor<2x6xf32>
    // CHECK: stablehlo.convert %{{.*}} : (tensor<2x6xf32>) -> tensor<2x6xbf16>
    // CHECK: collective_permute{{.*}} -> tensor<2x6xbf16>
    // CHECK: stablehlo.add %{{.*}} : tensor<2x6xf32>
    // CHECK: func.func private @[[PRODUCT]](
    // CHECK: stablehlo.dot_general {{.*}} -> tensor<2x6xf32>
    %p = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<16x8xbf16>, tensor<8x6xbf16>) -> tensor<16x6xbf16>
    %y = "stablehlo.reduce_scatter"(%p) <{replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>, scatter_dimension = 0 : i64}> ({
    ^bb0(%a: tensor<bf16>, %b: tensor<bf16>):
      %s = stablehlo.add %a, %b : tensor<bf16>
      stablehlo.return %s : tensor<bf16>
    }) {shmap.overlap = {name = "partial-sums", parts = 2 : i64}} : (tensor<16x6xbf16>) -> tensor<4x6xbf16>
    return %y : tensor<4x6xbf16>
  }

  // CHECK-LABEL: func.func private @products_are_added_before_they_are_rounded
  func.func private @products_are_added_before_they_are_rounded(%x: tensor<16x8xbf16>, %h: tensor<4x16xbf16>, %w: tensor<8x6xbf16>, %v: tensor<4x6xbf16>) -> tensor<4x6xbf16> {
    // CHECK: call @[[PRODUCT:.*]](%{{.*}}, %arg0, %arg1, %{{.*}}, %arg2, %arg3) {{.*}} -> tensor<2x6xf32>
    // CHECK: %[[B:.*]]:3 = stablehlo.optimization_barrier %{{.*}}, %arg3, %arg4
    // CHECK: call @[[PRODUCT]](%{{.*}}, %{{.*}}, %[[B]]#1, %[[B]]#2,
    // CHECK: func.func private @[[PRODUCT]](
    // CHECK: %[[X:.*]] = stablehlo.dynamic_slice %arg2, %{{.*}}, sizes = [2, 8]
    // CHECK: %[[P:.*]] = stablehlo.dot_general %[[X]], %{{.*}} -> tensor<2x6xf32>
    // CHECK: %[[H:.*]] = stablehlo.dynamic_slice %arg3, %{{.*}}, sizes = [4, 2]
    // CHECK: %[[Q:.*]] = stablehlo.dot_general %[[H]], %{{.*}} -> tensor<2x6xf32>
    // CHECK: stablehlo.add %[[P]], %[[Q]] : tensor<2x6xf32>
    %c = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<16x8xbf16>, tensor<8x6xbf16>) -> tensor<16x6xbf16>
    %d = stablehlo.dot_general %h, %v, contracting_dims = [0] x [0] : (tensor<4x16xbf16>, tensor<4x6xbf16>) -> tensor<16x6xbf16>
    %p = stablehlo.add %c, %d : tensor<16x6xbf16>
    %y = "stablehlo.reduce_scatter"(%p) <{replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>, scatter_dimension = 0 : i64}> ({
    ^bb0(%a: tensor<bf16>, %b: tensor<bf16>):
      %s = stablehlo.add %a, %b : tensor<bf16>
      stablehlo.return %s : tensor<bf16>
    }) {shmap.overlap = {name = "partial-sums", parts = 2 : i64}} : (tensor<16x6xbf16>) -> tensor<4x6xbf16>
    return %y : tensor<4x6xbf16>
  }

  // CHECK-LABEL: func.func private @an_argument_is_not_a_product
  func.func private @an_argument_is_not_a_product(%x: tensor<16x8xbf16>, %w: tensor<8x6xbf16>, %d: tensor<16x6xbf16>) -> tensor<4x6xbf16> {
    // CHECK: "stablehlo.reduce_scatter"
    %c = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<16x8xbf16>, tensor<8x6xbf16>) -> tensor<16x6xbf16>
    %p = stablehlo.add %c, %d : tensor<16x6xbf16>
    %y = "stablehlo.reduce_scatter"(%p) <{replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>, scatter_dimension = 0 : i64}> ({
    ^bb0(%a: tensor<bf16>, %b: tensor<bf16>):
      %s = stablehlo.add %a, %b : tensor<bf16>
      stablehlo.return %s : tensor<bf16>
    }) {shmap.overlap = {name = "partial-sums", parts = 2 : i64}} : (tensor<16x6xbf16>) -> tensor<4x6xbf16>
    return %y : tensor<4x6xbf16>
  }

  // CHECK-LABEL: func.func private @rows_are_taken_before_heads_are_joined
  func.func private @rows_are_taken_before_heads_are_joined(%x: tensor<2x1048576x4xf32>, %w: tensor<8x6xf32>) -> tensor<262144x6xf32> {
    // CHECK-NOT: stablehlo.transpose
    // CHECK: call @[[PRODUCT:.*]](%{{.*}}, %arg0, %{{.*}}, %arg1)
    // CHECK: func.func private @[[PRODUCT]](
    // CHECK: %[[X:.*]] = stablehlo.dynamic_slice %arg2, %{{.*}}, sizes = [2, 131072, 4]
    // CHECK: %[[T:.*]] = stablehlo.transpose %[[X]], dims = [1, 0, 2] : (tensor<2x131072x4xf32>) -> tensor<131072x2x4xf32>
    // CHECK: %[[R:.*]] = stablehlo.reshape %[[T]] : (tensor<131072x2x4xf32>) -> tensor<131072x8xf32>
    // CHECK: stablehlo.dot_general %[[R]], %arg4
    %t = stablehlo.transpose %x, dims = [1, 0, 2] : (tensor<2x1048576x4xf32>) -> tensor<1048576x2x4xf32>
    %h = stablehlo.reshape %t : (tensor<1048576x2x4xf32>) -> tensor<1048576x8xf32>
    %p = stablehlo.dot_general %h, %w, contracting_dims = [1] x [0] : (tensor<1048576x8xf32>, tensor<8x6xf32>) -> tensor<1048576x6xf32>
    %y = "stablehlo.reduce_scatter"(%p) <{replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>, scatter_dimension = 0 : i64}> ({
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %s = stablehlo.add %a, %b : tensor<f32>
      stablehlo.return %s : tensor<f32>
    }) {shmap.overlap = {name = "partial-sums", parts = 2 : i64}} : (tensor<1048576x6xf32>) -> tensor<262144x6xf32>
    return %y : tensor<262144x6xf32>
  }

  // CHECK-LABEL: func.func private @rows_of_a_transpose
  func.func private @rows_of_a_transpose(%x: tensor<8x1048576xf32>, %w: tensor<8x6xf32>) -> tensor<262144x6xf32> {
    // CHECK: %[[T:.*]] = stablehlo.transpose
    // CHECK: call @{{.*}}(%{{.*}}, %[[T]], %{{.*}}, %arg1)
    %t = stablehlo.transpose %x, dims = [1, 0] : (tensor<8x1048576xf32>) -> tensor<1048576x8xf32>
    %p = stablehlo.dot_general %t, %w, contracting_dims = [1] x [0] : (tensor<1048576x8xf32>, tensor<8x6xf32>) -> tensor<1048576x6xf32>
    %y = "stablehlo.reduce_scatter"(%p) <{replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>, scatter_dimension = 0 : i64}> ({
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %s = stablehlo.add %a, %b : tensor<f32>
      stablehlo.return %s : tensor<f32>
    }) {shmap.overlap = {name = "partial-sums", parts = 2 : i64}} : (tensor<1048576x6xf32>) -> tensor<262144x6xf32>
    return %y : tensor<262144x6xf32>
  }

  // CHECK-LABEL: func.func private @heads_that_something_else_reads
  func.func private @heads_that_something_else_reads(%x: tensor<2x1048576x4xf32>, %w: tensor<8x6xf32>) -> (tensor<262144x6xf32>, tensor<1048576x8xf32>) {
    // CHECK: %[[H:.*]] = stablehlo.reshape
    // CHECK: call @{{.*}}(%{{.*}}, %[[H]], %{{.*}}, %arg1)
    %t = stablehlo.transpose %x, dims = [1, 0, 2] : (tensor<2x1048576x4xf32>) -> tensor<1048576x2x4xf32>
    %h = stablehlo.reshape %t : (tensor<1048576x2x4xf32>) -> tensor<1048576x8xf32>
    %p = stablehlo.dot_general %h, %w, contracting_dims = [1] x [0] : (tensor<1048576x8xf32>, tensor<8x6xf32>) -> tensor<1048576x6xf32>
    %y = "stablehlo.reduce_scatter"(%p) <{replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>, scatter_dimension = 0 : i64}> ({
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %s = stablehlo.add %a, %b : tensor<f32>
      stablehlo.return %s : tensor<f32>
    }) {shmap.overlap = {name = "partial-sums", parts = 2 : i64}} : (tensor<1048576x6xf32>) -> tensor<262144x6xf32>
    return %y, %h : tensor<262144x6xf32>, tensor<1048576x8xf32>
  }

  // CHECK-LABEL: func.func private @rows_that_are_joined_with_others
  func.func private @rows_that_are_joined_with_others(%x: tensor<2x1048576x4xf32>, %w: tensor<8x6xf32>) -> tensor<262144x6xf32> {
    // CHECK: %[[H:.*]] = stablehlo.reshape %{{.*}} : (tensor<8388608xf32>)
    // CHECK: call @{{.*}}(%{{.*}}, %[[H]], %{{.*}}, %arg1)
    %t = stablehlo.transpose %x, dims = [1, 0, 2] : (tensor<2x1048576x4xf32>) -> tensor<1048576x2x4xf32>
    %j = stablehlo.reshape %t : (tensor<1048576x2x4xf32>) -> tensor<8388608xf32>
    %h = stablehlo.reshape %j : (tensor<8388608xf32>) -> tensor<1048576x8xf32>
    %p = stablehlo.dot_general %h, %w, contracting_dims = [1] x [0] : (tensor<1048576x8xf32>, tensor<8x6xf32>) -> tensor<1048576x6xf32>
    %y = "stablehlo.reduce_scatter"(%p) <{replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>, scatter_dimension = 0 : i64}> ({
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %s = stablehlo.add %a, %b : tensor<f32>
      stablehlo.return %s : tensor<f32>
    }) {shmap.overlap = {name = "partial-sums", parts = 2 : i64}} : (tensor<1048576x6xf32>) -> tensor<262144x6xf32>
    return %y : tensor<262144x6xf32>
  }

  // CHECK-LABEL: func.func private @heads_of_a_small_array_are_joined_before
  func.func private @heads_of_a_small_array_are_joined_before(%x: tensor<2x16x4xf32>, %w: tensor<8x6xf32>) -> tensor<4x6xf32> {
    // CHECK: %[[H:.*]] = stablehlo.reshape
    // CHECK: call @{{.*}}(%{{.*}}, %[[H]], %{{.*}}, %arg1)
    %t = stablehlo.transpose %x, dims = [1, 0, 2] : (tensor<2x16x4xf32>) -> tensor<16x2x4xf32>
    %h = stablehlo.reshape %t : (tensor<16x2x4xf32>) -> tensor<16x8xf32>
    %p = stablehlo.dot_general %h, %w, contracting_dims = [1] x [0] : (tensor<16x8xf32>, tensor<8x6xf32>) -> tensor<16x6xf32>
    %y = "stablehlo.reduce_scatter"(%p) <{replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>, scatter_dimension = 0 : i64}> ({
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %s = stablehlo.add %a, %b : tensor<f32>
      stablehlo.return %s : tensor<f32>
    }) {shmap.overlap = {name = "partial-sums", parts = 2 : i64}} : (tensor<16x6xf32>) -> tensor<4x6xf32>
    return %y : tensor<4x6xf32>
  }

  // CHECK-LABEL: func.func private @what_is_computed_from_products_is_rounded_as_before
  func.func private @what_is_computed_from_products_is_rounded_as_before(%x: tensor<16x8xbf16>, %w: tensor<8x6xbf16>) -> tensor<4x6xbf16> {
    // CHECK: stablehlo.dot_general {{.*}} -> tensor<2x6xbf16>
    // CHECK-NEXT: stablehlo.tanh %{{.*}} : tensor<2x6xbf16>
    %p = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<16x8xbf16>, tensor<8x6xbf16>) -> tensor<16x6xbf16>
    %h = stablehlo.tanh %p : tensor<16x6xbf16>
    %y = "stablehlo.reduce_scatter"(%h) <{replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>, scatter_dimension = 0 : i64}> ({
    ^bb0(%a: tensor<bf16>, %b: tensor<bf16>):
      %s = stablehlo.add %a, %b : tensor<bf16>
      stablehlo.return %s : tensor<bf16>
    }) {shmap.overlap = {name = "partial-sums", parts = 2 : i64}} : (tensor<16x6xbf16>) -> tensor<4x6xbf16>
    return %y : tensor<4x6xbf16>
  }

  // CHECK-LABEL: func.func private @columns_in_two_chunks
  func.func private @columns_in_two_chunks(%x: tensor<16x8xf32>, %w: tensor<8x6xf32>) -> tensor<4x6xf32> {
    // CHECK: stablehlo.slice %arg1 [0:8, 0:3]
    // CHECK: %[[P:.*]] = stablehlo.dot_general
    // CHECK: %[[B:.*]]:2 = stablehlo.optimization_barrier %arg0, %[[P]]
    // CHECK: "stablehlo.reduce_scatter"(%[[B]]#1)
    // CHECK: stablehlo.slice %arg1 [0:8, 3:6]
    // CHECK: stablehlo.dot_general %[[B]]#0
    // CHECK: stablehlo.reduce_scatter
    // CHECK: stablehlo.concatenate
    %p = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<16x8xf32>, tensor<8x6xf32>) -> tensor<16x6xf32>
    %y = "stablehlo.reduce_scatter"(%p) <{replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>, scatter_dimension = 0 : i64}> ({
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %s = stablehlo.add %a, %b : tensor<f32>
      stablehlo.return %s : tensor<f32>
    }) {shmap.overlap = {name = "columns", parts = 2 : i64, in_place = false}} : (tensor<16x6xf32>) -> tensor<4x6xf32>
    return %y : tensor<4x6xf32>
  }

  // CHECK-LABEL: func.func private @the_last_to_read_a_large_array_comes_first
  func.func private @the_last_to_read_a_large_array_comes_first(%x: tensor<16x8xf32>, %w: tensor<8x6xf32>, %u: tensor<4096x8xf32>) -> (tensor<4x6xf32>, tensor<8x4096xf32>) {
    // CHECK: %[[V:.*]] = stablehlo.dot_general {{.*}} -> tensor<4096x4096xf32>
    // CHECK-NEXT: %[[Q:.*]] = stablehlo.dot_general %[[V]], %arg2, {{.*}} -> tensor<4096x8xf32>
    // CHECK-NEXT: %[[T:.*]] = stablehlo.transpose %[[Q]]
    // CHECK-NEXT: %[[B:.*]]:2 = stablehlo.optimization_barrier %arg0, %[[T]]
    // CHECK: %[[P:.*]] = stablehlo.dot_general %[[B]]#0, {{.*}} -> tensor<16x3xf32>
    // CHECK: stablehlo.optimization_barrier %[[B]]#0, %[[P]]
    // CHECK: return %{{.*}}, %[[T]]
    %v = stablehlo.dot_general %u, %u, contracting_dims = [1] x [1] : (tensor<4096x8xf32>, tensor<4096x8xf32>) -> tensor<4096x4096xf32>
    %p = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<16x8xf32>, tensor<8x6xf32>) -> tensor<16x6xf32>
    %y = "stablehlo.reduce_scatter"(%p) <{replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>, scatter_dimension = 0 : i64}> ({
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %s = stablehlo.add %a, %b : tensor<f32>
      stablehlo.return %s : tensor<f32>
    }) {shmap.overlap = {name = "columns", parts = 2 : i64, in_place = false, ordered = true}} : (tensor<16x6xf32>) -> tensor<4x6xf32>
    %q = stablehlo.dot_general %v, %u, contracting_dims = [1] x [0] : (tensor<4096x4096xf32>, tensor<4096x8xf32>) -> tensor<4096x8xf32>
    %t = stablehlo.transpose %q, dims = [1, 0] : (tensor<4096x8xf32>) -> tensor<8x4096xf32>
    return %y, %t : tensor<4x6xf32>, tensor<8x4096xf32>
  }

  // CHECK-LABEL: func.func private @what_needs_the_sum_stays_after_it
  func.func private @what_needs_the_sum_stays_after_it(%x: tensor<16x8xf32>, %w: tensor<8x6xf32>, %u: tensor<4096x8xf32>) -> tensor<6x4096xf32> {
    // CHECK: %[[P:.*]] = stablehlo.dot_general %arg0, {{.*}} -> tensor<16x3xf32>
    // CHECK: stablehlo.optimization_barrier %arg0, %[[P]]
    // CHECK: stablehlo.concatenate
    // CHECK: stablehlo.dot_general {{.*}} -> tensor<6x4096xf32>
    %v = stablehlo.dot_general %u, %u, contracting_dims = [1] x [1] : (tensor<4096x8xf32>, tensor<4096x8xf32>) -> tensor<4096x4096xf32>
    %p = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<16x8xf32>, tensor<8x6xf32>) -> tensor<16x6xf32>
    %y = "stablehlo.reduce_scatter"(%p) <{replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>, scatter_dimension = 0 : i64}> ({
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %s = stablehlo.add %a, %b : tensor<f32>
      stablehlo.return %s : tensor<f32>
    }) {shmap.overlap = {name = "columns", parts = 2 : i64, in_place = false, ordered = true}} : (tensor<16x6xf32>) -> tensor<4x6xf32>
    %z = stablehlo.slice %v [0:4, 0:4096] : (tensor<4096x4096xf32>) -> tensor<4x4096xf32>
    %q = stablehlo.dot_general %y, %z, contracting_dims = [0] x [0] : (tensor<4x6xf32>, tensor<4x4096xf32>) -> tensor<6x4096xf32>
    return %q : tensor<6x4096xf32>
  }

  // CHECK-LABEL: func.func private @what_chunks_and_others_read_is_stored_once
  func.func private @what_chunks_and_others_read_is_stored_once(%x: tensor<16x8xf32>, %w: tensor<8x6xf32>) -> (tensor<4x6xf32>, tensor<16x16xf32>) {
    // CHECK: %[[D:.*]] = stablehlo.multiply
    // CHECK-NEXT: %[[B:.*]] = stablehlo.optimization_barrier %[[D]]
    // CHECK: stablehlo.dot_general %[[B]], %{{.*}} -> tensor<16x3xf32>
    // CHECK: stablehlo.dot_general %[[B]], %[[B]]
    %m = stablehlo.dot_general %x, %x, contracting_dims = [1] x [1] : (tensor<16x8xf32>, tensor<16x8xf32>) -> tensor<16x16xf32>
    %d = stablehlo.multiply %m, %m : tensor<16x16xf32>
    %v = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<16x8xf32>, tensor<8x6xf32>) -> tensor<16x6xf32>
    %p = stablehlo.dot_general %d, %v, contracting_dims = [1] x [0] : (tensor<16x16xf32>, tensor<16x6xf32>) -> tensor<16x6xf32>
    %y = "stablehlo.reduce_scatter"(%p) <{replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>, scatter_dimension = 0 : i64}> ({
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %s = stablehlo.add %a, %b : tensor<f32>
      stablehlo.return %s : tensor<f32>
    }) {shmap.overlap = {name = "columns", parts = 2 : i64, in_place = false, ordered = true}} : (tensor<16x6xf32>) -> tensor<4x6xf32>
    %q = stablehlo.dot_general %d, %d, contracting_dims = [1] x [0] : (tensor<16x16xf32>, tensor<16x16xf32>) -> tensor<16x16xf32>
    return %y, %q : tensor<4x6xf32>, tensor<16x16xf32>
  }

  // CHECK-LABEL: func.func private @what_is_computed_from_an_array_that_others_read
  func.func private @what_is_computed_from_an_array_that_others_read(%x: tensor<16x8xf32>, %w: tensor<16x6xf32>) -> (tensor<4x6xf32>, tensor<16x16xf32>) {
    // CHECK: stablehlo.multiply
    // CHECK-NEXT: stablehlo.slice
    %m = stablehlo.dot_general %x, %x, contracting_dims = [1] x [1] : (tensor<16x8xf32>, tensor<16x8xf32>) -> tensor<16x16xf32>
    %d = stablehlo.multiply %m, %m : tensor<16x16xf32>
    %p = stablehlo.dot_general %d, %w, contracting_dims = [1] x [0] : (tensor<16x16xf32>, tensor<16x6xf32>) -> tensor<16x6xf32>
    %y = "stablehlo.reduce_scatter"(%p) <{replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>, scatter_dimension = 0 : i64}> ({
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %s = stablehlo.add %a, %b : tensor<f32>
      stablehlo.return %s : tensor<f32>
    }) {shmap.overlap = {name = "columns", parts = 2 : i64, in_place = false, ordered = true}} : (tensor<16x6xf32>) -> tensor<4x6xf32>
    %q = stablehlo.dot_general %d, %m, contracting_dims = [1] x [0] : (tensor<16x16xf32>, tensor<16x16xf32>) -> tensor<16x16xf32>
    return %y, %q : tensor<4x6xf32>, tensor<16x16xf32>
  }

  // CHECK-LABEL: func.func private @a_transposed_product
  func.func private @a_transposed_product(%x: tensor<16x8xf32>, %w: tensor<8x6xf32>) -> tensor<6x4xf32> {
    // CHECK-NOT: reduce_scatter
    // CHECK: stablehlo.transpose %{{.*}} : (tensor<2x6xf32>) -> tensor<6x2xf32>
    %p = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<16x8xf32>, tensor<8x6xf32>) -> tensor<16x6xf32>
    %t = stablehlo.transpose %p, dims = [1, 0] : (tensor<16x6xf32>) -> tensor<6x16xf32>
    %y = "stablehlo.reduce_scatter"(%t) <{replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>, scatter_dimension = 1 : i64}> ({
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %s = stablehlo.add %a, %b : tensor<f32>
      stablehlo.return %s : tensor<f32>
    }) {shmap.overlap = {name = "partial-sums", parts = 2 : i64}} : (tensor<6x16xf32>) -> tensor<6x4xf32>
    return %y : tensor<6x4xf32>
  }

  // CHECK-LABEL: func.func private @a_maximum_is_not_a_sum
  func.func private @a_maximum_is_not_a_sum(%x: tensor<16x8xf32>, %w: tensor<8x6xf32>) -> tensor<4x6xf32> {
    // CHECK-NEXT: stablehlo.dot_general
    // CHECK-NEXT: "stablehlo.reduce_scatter"
    %p = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<16x8xf32>, tensor<8x6xf32>) -> tensor<16x6xf32>
    %y = "stablehlo.reduce_scatter"(%p) <{replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>, scatter_dimension = 0 : i64}> ({
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %s = stablehlo.maximum %a, %b : tensor<f32>
      stablehlo.return %s : tensor<f32>
    }) {shmap.overlap = {name = "partial-sums", parts = 2 : i64}} : (tensor<16x6xf32>) -> tensor<4x6xf32>
    return %y : tensor<4x6xf32>
  }

  // CHECK-LABEL: func.func private @the_product_is_used_twice
  func.func private @the_product_is_used_twice(%x: tensor<16x8xf32>, %w: tensor<8x6xf32>) -> (tensor<4x6xf32>, tensor<16x6xf32>) {
    // CHECK-NEXT: stablehlo.dot_general
    // CHECK-NEXT: "stablehlo.reduce_scatter"
    %p = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<16x8xf32>, tensor<8x6xf32>) -> tensor<16x6xf32>
    %y = "stablehlo.reduce_scatter"(%p) <{replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>, scatter_dimension = 0 : i64}> ({
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %s = stablehlo.add %a, %b : tensor<f32>
      stablehlo.return %s : tensor<f32>
    }) {shmap.overlap = {name = "partial-sums", parts = 2 : i64}} : (tensor<16x6xf32>) -> tensor<4x6xf32>
    return %y, %p : tensor<4x6xf32>, tensor<16x6xf32>
  }

  // CHECK-LABEL: func.func private @blocks_are_not_that_many_pieces
  func.func private @blocks_are_not_that_many_pieces(%x: tensor<12x8xf32>, %w: tensor<8x6xf32>) -> tensor<3x6xf32> {
    // CHECK-NEXT: stablehlo.dot_general
    // CHECK-NEXT: "stablehlo.reduce_scatter"
    %p = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<12x8xf32>, tensor<8x6xf32>) -> tensor<12x6xf32>
    %y = "stablehlo.reduce_scatter"(%p) <{replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>, scatter_dimension = 0 : i64}> ({
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %s = stablehlo.add %a, %b : tensor<f32>
      stablehlo.return %s : tensor<f32>
    }) {shmap.overlap = {name = "partial-sums", parts = 2 : i64}} : (tensor<12x6xf32>) -> tensor<3x6xf32>
    return %y : tensor<3x6xf32>
  }
}
