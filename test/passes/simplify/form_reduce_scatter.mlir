// RUN: shmap-opt %s --shmap-form-reduce-scatter --split-input-file | FileCheck %s

// CHECK-LABEL: module @all_axes_are_manual
module @all_axes_are_manual {
  sdy.mesh @mesh = <["i"=4, "j"=2]>
  func.func public @main() attributes {sdy.manual_axes = #sdy<manual_axes{"i", "j"}>} {
    return
  }

  // CHECK-LABEL: func.func private @the_own_block_of_a_sum
  func.func private @the_own_block_of_a_sum(%x: tensor<8x4xf32>) -> tensor<2x4xf32> {
    // CHECK: %[[R:.*]] = "stablehlo.reduce_scatter"(%arg0)
    // CHECK-SAME: axes = [#stablehlo.axis_ref<name = "i">]>, scatter_dimension = 0 : i64}>
    // CHECK: stablehlo.add
    // CHECK: (tensor<8x4xf32>) -> tensor<2x4xf32>
    // CHECK-NOT: stablehlo.dynamic_slice
    %i = stablehlo.custom_call @shmap.axis_index() {api_version = 4 : i32, backend_config = {axes = ["i"]}} : () -> tensor<i32>
    %two = stablehlo.constant dense<2> : tensor<i32>
    %zero = stablehlo.constant dense<0> : tensor<i32>
    %o = stablehlo.multiply %i, %two : tensor<i32>
    %0 = "stablehlo.all_reduce"(%x) <{replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>}> ({
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %s = stablehlo.add %a, %b : tensor<f32>
      stablehlo.return %s : tensor<f32>
    }) : (tensor<8x4xf32>) -> tensor<8x4xf32>
    %1 = stablehlo.dynamic_slice %0, %o, %zero, sizes = [2, 4] : (tensor<8x4xf32>, tensor<i32>, tensor<i32>) -> tensor<2x4xf32>
    return %1 : tensor<2x4xf32>
  }

  // CHECK-LABEL: func.func private @the_own_block_of_a_maximum
  func.func private @the_own_block_of_a_maximum(%x: tensor<8x4xf32>) -> tensor<2x4xf32> {
    // CHECK: %[[R:.*]] = "stablehlo.reduce_scatter"(%arg0)
    // CHECK-SAME: axes = [#stablehlo.axis_ref<name = "i">]>, scatter_dimension = 0 : i64}>
    // CHECK: stablehlo.maximum
    // CHECK: (tensor<8x4xf32>) -> tensor<2x4xf32>
    // CHECK-NOT: stablehlo.dynamic_slice
    %i = stablehlo.custom_call @shmap.axis_index() {api_version = 4 : i32, backend_config = {axes = ["i"]}} : () -> tensor<i32>
    %two = stablehlo.constant dense<2> : tensor<i32>
    %zero = stablehlo.constant dense<0> : tensor<i32>
    %o = stablehlo.multiply %i, %two : tensor<i32>
    %0 = "stablehlo.all_reduce"(%x) <{replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>}> ({
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %s = stablehlo.maximum %a, %b : tensor<f32>
      stablehlo.return %s : tensor<f32>
    }) : (tensor<8x4xf32>) -> tensor<8x4xf32>
    %1 = stablehlo.dynamic_slice %0, %o, %zero, sizes = [2, 4] : (tensor<8x4xf32>, tensor<i32>, tensor<i32>) -> tensor<2x4xf32>
    return %1 : tensor<2x4xf32>
  }

  // CHECK-LABEL: func.func private @another_dimension
  func.func private @another_dimension(%x: tensor<8x4xf32>) -> tensor<8x2xf32> {
    // CHECK: %[[R:.*]] = "stablehlo.reduce_scatter"(%arg0)
    // CHECK-SAME: axes = [#stablehlo.axis_ref<name = "j">]>, scatter_dimension = 1 : i64}>
    // CHECK: stablehlo.add
    // CHECK: (tensor<8x4xf32>) -> tensor<8x2xf32>
    // CHECK-NOT: stablehlo.dynamic_slice
    %i = stablehlo.custom_call @shmap.axis_index() {api_version = 4 : i32, backend_config = {axes = ["j"]}} : () -> tensor<i32>
    %two = stablehlo.constant dense<2> : tensor<i32>
    %zero = stablehlo.constant dense<0> : tensor<i32>
    %o = stablehlo.multiply %i, %two : tensor<i32>
    %0 = "stablehlo.all_reduce"(%x) <{replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "j">]>}> ({
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %s = stablehlo.add %a, %b : tensor<f32>
      stablehlo.return %s : tensor<f32>
    }) : (tensor<8x4xf32>) -> tensor<8x4xf32>
    %1 = stablehlo.dynamic_slice %0, %zero, %o, sizes = [8, 2] : (tensor<8x4xf32>, tensor<i32>, tensor<i32>) -> tensor<8x2xf32>
    return %1 : tensor<8x2xf32>
  }

  // CHECK-LABEL: func.func private @the_order_is_that_of_the_slices
  func.func private @the_order_is_that_of_the_slices(%x: tensor<8x4xi32>) -> tensor<1x4xi32> {
    // CHECK: %[[R:.*]] = "stablehlo.reduce_scatter"(%arg0)
    // CHECK-SAME: axes = [#stablehlo.axis_ref<name = "j">, #stablehlo.axis_ref<name = "i">]>, scatter_dimension = 0 : i64}>
    // CHECK: stablehlo.add
    // CHECK: (tensor<8x4xi32>) -> tensor<1x4xi32>
    // CHECK-NOT: stablehlo.dynamic_slice
    %i = stablehlo.custom_call @shmap.axis_index() {api_version = 4 : i32, backend_config = {axes = ["j", "i"]}} : () -> tensor<i32>
    %zero = stablehlo.constant dense<0> : tensor<i32>
    %0 = "stablehlo.all_reduce"(%x) <{replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">, #stablehlo.axis_ref<name = "j">]>}> ({
    ^bb0(%a: tensor<i32>, %b: tensor<i32>):
      %s = stablehlo.add %a, %b : tensor<i32>
      stablehlo.return %s : tensor<i32>
    }) : (tensor<8x4xi32>) -> tensor<8x4xi32>
    %1 = stablehlo.dynamic_slice %0, %i, %zero, sizes = [1, 4] : (tensor<8x4xi32>, tensor<i32>, tensor<i32>) -> tensor<1x4xi32>
    return %1 : tensor<1x4xi32>
  }

  // CHECK-LABEL: func.func private @numbers_that_are_rounded_in_another_order
  func.func private @numbers_that_are_rounded_in_another_order(%x: tensor<8x4xf32>) -> tensor<1x4xf32> {
    // CHECK: stablehlo.all_reduce
    // CHECK: stablehlo.dynamic_slice
    %i = stablehlo.custom_call @shmap.axis_index() {api_version = 4 : i32, backend_config = {axes = ["j", "i"]}} : () -> tensor<i32>
    %zero = stablehlo.constant dense<0> : tensor<i32>
    %0 = "stablehlo.all_reduce"(%x) <{replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">, #stablehlo.axis_ref<name = "j">]>}> ({
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %s = stablehlo.add %a, %b : tensor<f32>
      stablehlo.return %s : tensor<f32>
    }) : (tensor<8x4xf32>) -> tensor<8x4xf32>
    %1 = stablehlo.dynamic_slice %0, %i, %zero, sizes = [1, 4] : (tensor<8x4xf32>, tensor<i32>, tensor<i32>) -> tensor<1x4xf32>
    return %1 : tensor<1x4xf32>
  }

  // CHECK-LABEL: func.func private @several_equal_slices
  func.func private @several_equal_slices(%x: tensor<8x4xf32>) -> (tensor<2x4xf32>, tensor<2x4xf32>) {
    // CHECK: %[[R:.*]] = "stablehlo.reduce_scatter"(%arg0)
    // CHECK-SAME: axes = [#stablehlo.axis_ref<name = "i">]>, scatter_dimension = 0 : i64}>
    // CHECK: stablehlo.add
    // CHECK: (tensor<8x4xf32>) -> tensor<2x4xf32>
    // CHECK-NOT: stablehlo.dynamic_slice
    // CHECK: return %[[R]], %[[R]]
    %i = stablehlo.custom_call @shmap.axis_index() {api_version = 4 : i32, backend_config = {axes = ["i"]}} : () -> tensor<i32>
    %two = stablehlo.constant dense<2> : tensor<i32>
    %zero = stablehlo.constant dense<0> : tensor<i32>
    %o = stablehlo.multiply %i, %two : tensor<i32>
    %0 = "stablehlo.all_reduce"(%x) <{replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>}> ({
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %s = stablehlo.add %a, %b : tensor<f32>
      stablehlo.return %s : tensor<f32>
    }) : (tensor<8x4xf32>) -> tensor<8x4xf32>
    %1 = stablehlo.dynamic_slice %0, %o, %zero, sizes = [2, 4] : (tensor<8x4xf32>, tensor<i32>, tensor<i32>) -> tensor<2x4xf32>
    %2 = stablehlo.dynamic_slice %0, %o, %zero, sizes = [2, 4] : (tensor<8x4xf32>, tensor<i32>, tensor<i32>) -> tensor<2x4xf32>
    return %1, %2 : tensor<2x4xf32>, tensor<2x4xf32>
  }

  // CHECK-LABEL: func.func private @a_sum_that_is_also_used_whole
  func.func private @a_sum_that_is_also_used_whole(%x: tensor<8x4xf32>) -> (tensor<2x4xf32>, tensor<8x4xf32>) {
    // CHECK: stablehlo.all_reduce
    // CHECK: stablehlo.dynamic_slice
    %i = stablehlo.custom_call @shmap.axis_index() {api_version = 4 : i32, backend_config = {axes = ["i"]}} : () -> tensor<i32>
    %two = stablehlo.constant dense<2> : tensor<i32>
    %zero = stablehlo.constant dense<0> : tensor<i32>
    %o = stablehlo.multiply %i, %two : tensor<i32>
    %0 = "stablehlo.all_reduce"(%x) <{replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>}> ({
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %s = stablehlo.add %a, %b : tensor<f32>
      stablehlo.return %s : tensor<f32>
    }) : (tensor<8x4xf32>) -> tensor<8x4xf32>
    %1 = stablehlo.dynamic_slice %0, %o, %zero, sizes = [2, 4] : (tensor<8x4xf32>, tensor<i32>, tensor<i32>) -> tensor<2x4xf32>
    return %1, %0 : tensor<2x4xf32>, tensor<8x4xf32>
  }

  // CHECK-LABEL: func.func private @slices_of_two_dimensions
  func.func private @slices_of_two_dimensions(%x: tensor<8x4xf32>) -> (tensor<2x4xf32>, tensor<8x1xf32>) {
    // CHECK: stablehlo.all_reduce
    // CHECK: stablehlo.dynamic_slice
    %i = stablehlo.custom_call @shmap.axis_index() {api_version = 4 : i32, backend_config = {axes = ["i"]}} : () -> tensor<i32>
    %two = stablehlo.constant dense<2> : tensor<i32>
    %zero = stablehlo.constant dense<0> : tensor<i32>
    %o = stablehlo.multiply %i, %two : tensor<i32>
    %c = stablehlo.custom_call @shmap.axis_index() {api_version = 4 : i32, backend_config = {axes = ["i"]}} : () -> tensor<i32>
    %0 = "stablehlo.all_reduce"(%x) <{replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>}> ({
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %s = stablehlo.add %a, %b : tensor<f32>
      stablehlo.return %s : tensor<f32>
    }) : (tensor<8x4xf32>) -> tensor<8x4xf32>
    %1 = stablehlo.dynamic_slice %0, %o, %zero, sizes = [2, 4] : (tensor<8x4xf32>, tensor<i32>, tensor<i32>) -> tensor<2x4xf32>
    %2 = stablehlo.dynamic_slice %0, %zero, %c, sizes = [8, 1] : (tensor<8x4xf32>, tensor<i32>, tensor<i32>) -> tensor<8x1xf32>
    return %1, %2 : tensor<2x4xf32>, tensor<8x1xf32>
  }

  // CHECK-LABEL: func.func private @fewer_axes_than_the_sum
  func.func private @fewer_axes_than_the_sum(%x: tensor<8x4xf32>) -> tensor<2x4xf32> {
    // CHECK: stablehlo.all_reduce
    // CHECK: stablehlo.dynamic_slice
    %i = stablehlo.custom_call @shmap.axis_index() {api_version = 4 : i32, backend_config = {axes = ["i"]}} : () -> tensor<i32>
    %two = stablehlo.constant dense<2> : tensor<i32>
    %zero = stablehlo.constant dense<0> : tensor<i32>
    %o = stablehlo.multiply %i, %two : tensor<i32>
    %0 = "stablehlo.all_reduce"(%x) <{replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">, #stablehlo.axis_ref<name = "j">]>}> ({
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %s = stablehlo.add %a, %b : tensor<f32>
      stablehlo.return %s : tensor<f32>
    }) : (tensor<8x4xf32>) -> tensor<8x4xf32>
    %1 = stablehlo.dynamic_slice %0, %o, %zero, sizes = [2, 4] : (tensor<8x4xf32>, tensor<i32>, tensor<i32>) -> tensor<2x4xf32>
    return %1 : tensor<2x4xf32>
  }

  // CHECK-LABEL: func.func private @the_block_of_another_device
  func.func private @the_block_of_another_device(%x: tensor<8x4xf32>) -> tensor<2x4xf32> {
    // CHECK: stablehlo.all_reduce
    // CHECK: stablehlo.dynamic_slice
    %i = stablehlo.custom_call @shmap.axis_index() {api_version = 4 : i32, backend_config = {axes = ["i"]}} : () -> tensor<i32>
    %two = stablehlo.constant dense<2> : tensor<i32>
    %zero = stablehlo.constant dense<0> : tensor<i32>
    %six = stablehlo.constant dense<6> : tensor<i32>
    %p = stablehlo.multiply %i, %two : tensor<i32>
    %o = stablehlo.subtract %six, %p : tensor<i32>
    %0 = "stablehlo.all_reduce"(%x) <{replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>}> ({
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %s = stablehlo.add %a, %b : tensor<f32>
      stablehlo.return %s : tensor<f32>
    }) : (tensor<8x4xf32>) -> tensor<8x4xf32>
    %1 = stablehlo.dynamic_slice %0, %o, %zero, sizes = [2, 4] : (tensor<8x4xf32>, tensor<i32>, tensor<i32>) -> tensor<2x4xf32>
    return %1 : tensor<2x4xf32>
  }

  // CHECK-LABEL: func.func private @a_slice_in_a_branch
  func.func private @a_slice_in_a_branch(%x: tensor<8x4xf32>, %p: tensor<i1>) -> tensor<2x4xf32> {
    // CHECK: stablehlo.all_reduce
    // CHECK: stablehlo.dynamic_slice
    %i = stablehlo.custom_call @shmap.axis_index() {api_version = 4 : i32, backend_config = {axes = ["i"]}} : () -> tensor<i32>
    %two = stablehlo.constant dense<2> : tensor<i32>
    %zero = stablehlo.constant dense<0> : tensor<i32>
    %o = stablehlo.multiply %i, %two : tensor<i32>
    %0 = "stablehlo.all_reduce"(%x) <{replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>}> ({
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %s = stablehlo.add %a, %b : tensor<f32>
      stablehlo.return %s : tensor<f32>
    }) : (tensor<8x4xf32>) -> tensor<8x4xf32>
    %2 = "stablehlo.if"(%p) ({
      %1 = stablehlo.dynamic_slice %0, %o, %zero, sizes = [2, 4] : (tensor<8x4xf32>, tensor<i32>, tensor<i32>) -> tensor<2x4xf32>
      stablehlo.return %1 : tensor<2x4xf32>
    }, {
      %3 = stablehlo.constant dense<0.0> : tensor<2x4xf32>
      stablehlo.return %3 : tensor<2x4xf32>
    }) : (tensor<i1>) -> tensor<2x4xf32>
    return %2 : tensor<2x4xf32>
  }
}

// -----

// CHECK-LABEL: module @one_axis_is_automatic
module @one_axis_is_automatic {
  sdy.mesh @mesh = <["i"=4, "j"=2]>
  func.func public @main() attributes {sdy.manual_axes = #sdy<manual_axes{"i"}>} {
    return
  }

  // CHECK-LABEL: func.func private @automatic_axes_would_be_gathered
  func.func private @automatic_axes_would_be_gathered(%x: tensor<8x4xf32>) -> tensor<2x4xf32> {
    // CHECK: stablehlo.all_reduce
    // CHECK: stablehlo.dynamic_slice
    %i = stablehlo.custom_call @shmap.axis_index() {api_version = 4 : i32, backend_config = {axes = ["i"]}} : () -> tensor<i32>
    %two = stablehlo.constant dense<2> : tensor<i32>
    %zero = stablehlo.constant dense<0> : tensor<i32>
    %o = stablehlo.multiply %i, %two : tensor<i32>
    %0 = "stablehlo.all_reduce"(%x) <{replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>}> ({
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %s = stablehlo.add %a, %b : tensor<f32>
      stablehlo.return %s : tensor<f32>
    }) : (tensor<8x4xf32>) -> tensor<8x4xf32>
    %1 = stablehlo.dynamic_slice %0, %o, %zero, sizes = [2, 4] : (tensor<8x4xf32>, tensor<i32>, tensor<i32>) -> tensor<2x4xf32>
    return %1 : tensor<2x4xf32>
  }

  // CHECK-LABEL: func.func private @the_own_block_of_one_dimension_and_half_of_another
  func.func private @the_own_block_of_one_dimension_and_half_of_another(%x: tensor<8x4xf32>) -> tensor<2x2xf32> {
    // CHECK: stablehlo.all_reduce
    // CHECK: %[[PART:.*]] = stablehlo.dynamic_slice
    // CHECK-NEXT: return %[[PART]]
    %i = stablehlo.custom_call @shmap.axis_index() {api_version = 4 : i32, backend_config = {axes = ["i"]}} : () -> tensor<i32>
    %two = stablehlo.constant dense<2> : tensor<i32>
    %o = stablehlo.multiply %i, %two : tensor<i32>
    %0 = "stablehlo.all_reduce"(%x) <{replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>}> ({
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %s = stablehlo.add %a, %b : tensor<f32>
      stablehlo.return %s : tensor<f32>
    }) : (tensor<8x4xf32>) -> tensor<8x4xf32>
    %1 = stablehlo.dynamic_slice %0, %o, %two, sizes = [2, 2] : (tensor<8x4xf32>, tensor<i32>, tensor<i32>) -> tensor<2x2xf32>
    return %1 : tensor<2x2xf32>
  }
}
