// RUN: shmap-opt %s --shmap-elide-gathered-slices | FileCheck %s

module {
  sdy.mesh @mesh = <["i"=4, "j"=2]>
  func.func public @main() attributes {sdy.manual_axes = #sdy<manual_axes{"i", "j"}>} {
    return
  }

  // CHECK-LABEL: func.func private @the_own_block
  func.func private @the_own_block(%x: tensor<2x3xf32>) -> tensor<2x3xf32> {
    // CHECK-NOT: stablehlo.all_gather
    // CHECK: return %arg0
    %i = stablehlo.custom_call @shmap.axis_index() {api_version = 4 : i32, backend_config = {axes = ["i"]}} : () -> tensor<i32>
    %two = stablehlo.constant dense<2> : tensor<i32>
    %zero = stablehlo.constant dense<0> : tensor<i32>
    %o = stablehlo.multiply %i, %two : tensor<i32>
    %0 = "stablehlo.all_gather"(%x) <{all_gather_dim = 0 : i64, replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>}> : (tensor<2x3xf32>) -> tensor<8x3xf32>
    %1 = stablehlo.dynamic_slice %0, %o, %zero, sizes = [2, 3] : (tensor<8x3xf32>, tensor<i32>, tensor<i32>) -> tensor<2x3xf32>
    return %1 : tensor<2x3xf32>
  }

  // CHECK-LABEL: func.func private @an_index_that_may_be_negative
  func.func private @an_index_that_may_be_negative(%x: tensor<2x3xf32>) -> tensor<2x3xf32> {
    // CHECK-NOT: stablehlo.all_gather
    // CHECK: return %arg0
    %i = stablehlo.custom_call @shmap.axis_index() {api_version = 4 : i32, backend_config = {axes = ["i"]}} : () -> tensor<i32>
    %two = stablehlo.constant dense<2> : tensor<i32>
    %zero = stablehlo.constant dense<0> : tensor<i32>
    %o = stablehlo.multiply %i, %two : tensor<i32>
    %n = stablehlo.constant dense<8> : tensor<i32>
    %neg = stablehlo.compare LT, %o, %zero : (tensor<i32>, tensor<i32>) -> tensor<i1>
    %w = stablehlo.add %o, %n : tensor<i32>
    %k = stablehlo.select %neg, %w, %o : tensor<i1>, tensor<i32>
    %0 = "stablehlo.all_gather"(%x) <{all_gather_dim = 0 : i64, replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>}> : (tensor<2x3xf32>) -> tensor<8x3xf32>
    %1 = stablehlo.dynamic_slice %0, %k, %zero, sizes = [2, 3] : (tensor<8x3xf32>, tensor<i32>, tensor<i32>) -> tensor<2x3xf32>
    return %1 : tensor<2x3xf32>
  }

  // CHECK-LABEL: func.func private @the_start_of_a_dimension_taken_whole_is_clamped
  func.func private @the_start_of_a_dimension_taken_whole_is_clamped(%x: tensor<2x3xf32>, %any: tensor<i32>) -> tensor<2x3xf32> {
    // CHECK-NOT: stablehlo.all_gather
    // CHECK: return %arg0
    %i = stablehlo.custom_call @shmap.axis_index() {api_version = 4 : i32, backend_config = {axes = ["i"]}} : () -> tensor<i32>
    %two = stablehlo.constant dense<2> : tensor<i32>
    %zero = stablehlo.constant dense<0> : tensor<i32>
    %o = stablehlo.multiply %i, %two : tensor<i32>
    %0 = "stablehlo.all_gather"(%x) <{all_gather_dim = 0 : i64, replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>}> : (tensor<2x3xf32>) -> tensor<8x3xf32>
    %1 = stablehlo.dynamic_slice %0, %o, %any, sizes = [2, 3] : (tensor<8x3xf32>, tensor<i32>, tensor<i32>) -> tensor<2x3xf32>
    return %1 : tensor<2x3xf32>
  }

  // CHECK-LABEL: func.func private @several_axes_in_the_order_of_the_groups
  func.func private @several_axes_in_the_order_of_the_groups(%x: tensor<2x3xf32>) -> tensor<2x3xf32> {
    // CHECK-NOT: stablehlo.all_gather
    // CHECK: return %arg0
    %i = stablehlo.custom_call @shmap.axis_index() {api_version = 4 : i32, backend_config = {axes = ["j", "i"]}} : () -> tensor<i32>
    %two = stablehlo.constant dense<2> : tensor<i32>
    %zero = stablehlo.constant dense<0> : tensor<i32>
    %o = stablehlo.multiply %i, %two : tensor<i32>
    %0 = "stablehlo.all_gather"(%x) <{all_gather_dim = 0 : i64, replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "j">, #stablehlo.axis_ref<name = "i">]>}> : (tensor<2x3xf32>) -> tensor<16x3xf32>
    %1 = stablehlo.dynamic_slice %0, %o, %zero, sizes = [2, 3] : (tensor<16x3xf32>, tensor<i32>, tensor<i32>) -> tensor<2x3xf32>
    return %1 : tensor<2x3xf32>
  }

  // CHECK-LABEL: func.func private @an_index_made_of_two
  func.func private @an_index_made_of_two(%x: tensor<2x3xf32>) -> tensor<2x3xf32> {
    // CHECK-NOT: stablehlo.all_gather
    // CHECK: return %arg0
    %i = stablehlo.custom_call @shmap.axis_index() {api_version = 4 : i32, backend_config = {axes = ["i"]}} : () -> tensor<i32>
    %j = stablehlo.custom_call @shmap.axis_index() {api_version = 4 : i32, backend_config = {axes = ["j"]}} : () -> tensor<i32>
    %two = stablehlo.constant dense<2> : tensor<i32>
    %four = stablehlo.constant dense<4> : tensor<i32>
    %zero = stablehlo.constant dense<0> : tensor<i32>
    %p = stablehlo.multiply %i, %four : tensor<i32>
    %q = stablehlo.multiply %j, %two : tensor<i32>
    %o = stablehlo.add %p, %q : tensor<i32>
    %0 = "stablehlo.all_gather"(%x) <{all_gather_dim = 0 : i64, replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">, #stablehlo.axis_ref<name = "j">]>}> : (tensor<2x3xf32>) -> tensor<16x3xf32>
    %1 = stablehlo.dynamic_slice %0, %o, %zero, sizes = [2, 3] : (tensor<16x3xf32>, tensor<i32>, tensor<i32>) -> tensor<2x3xf32>
    return %1 : tensor<2x3xf32>
  }

  // CHECK-LABEL: func.func private @an_index_whose_minor_axis_is_the_longer
  func.func private @an_index_whose_minor_axis_is_the_longer(%x: tensor<2x3xf32>) -> tensor<2x3xf32> {
    // CHECK-NOT: stablehlo.all_gather
    // CHECK: return %arg0
    %i = stablehlo.custom_call @shmap.axis_index() {api_version = 4 : i32, backend_config = {axes = ["i"]}} : () -> tensor<i32>
    %j = stablehlo.custom_call @shmap.axis_index() {api_version = 4 : i32, backend_config = {axes = ["j"]}} : () -> tensor<i32>
    %two = stablehlo.constant dense<2> : tensor<i32>
    %eight = stablehlo.constant dense<8> : tensor<i32>
    %zero = stablehlo.constant dense<0> : tensor<i32>
    %p = stablehlo.multiply %j, %eight : tensor<i32>
    %q = stablehlo.multiply %i, %two : tensor<i32>
    %o = stablehlo.add %p, %q : tensor<i32>
    %0 = "stablehlo.all_gather"(%x) <{all_gather_dim = 0 : i64, replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "j">, #stablehlo.axis_ref<name = "i">]>}> : (tensor<2x3xf32>) -> tensor<16x3xf32>
    %1 = stablehlo.dynamic_slice %0, %o, %zero, sizes = [2, 3] : (tensor<16x3xf32>, tensor<i32>, tensor<i32>) -> tensor<2x3xf32>
    return %1 : tensor<2x3xf32>
  }

  // CHECK-LABEL: func.func private @an_index_counted_from_the_end
  func.func private @an_index_counted_from_the_end(%x: tensor<2x3xf32>) -> tensor<2x3xf32> {
    // CHECK-NOT: stablehlo.all_gather
    // CHECK: return %arg0
    %i = stablehlo.custom_call @shmap.axis_index() {api_version = 4 : i32, backend_config = {axes = ["i"]}} : () -> tensor<i32>
    %two = stablehlo.constant dense<2> : tensor<i32>
    %eight = stablehlo.constant dense<8> : tensor<i32>
    %zero = stablehlo.constant dense<0> : tensor<i32>
    %p = stablehlo.multiply %i, %two : tensor<i32>
    %left = stablehlo.subtract %eight, %p : tensor<i32>
    %o = stablehlo.subtract %eight, %left : tensor<i32>
    %0 = "stablehlo.all_gather"(%x) <{all_gather_dim = 0 : i64, replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>}> : (tensor<2x3xf32>) -> tensor<8x3xf32>
    %1 = stablehlo.dynamic_slice %0, %o, %zero, sizes = [2, 3] : (tensor<8x3xf32>, tensor<i32>, tensor<i32>) -> tensor<2x3xf32>
    return %1 : tensor<2x3xf32>
  }

  // CHECK-LABEL: func.func private @what_another_op_takes_at_the_own_index_stays
  func.func private @what_another_op_takes_at_the_own_index_stays(%x: tensor<2x3xf32>) -> tensor<2x3xf32> {
    // CHECK: stablehlo.all_gather
    %i = stablehlo.custom_call @shmap.axis_index() {api_version = 4 : i32, backend_config = {axes = ["i"]}} : () -> tensor<i32>
    %two = stablehlo.constant dense<2> : tensor<i32>
    %zero = stablehlo.constant dense<0> : tensor<i32>
    %o = stablehlo.multiply %i, %two : tensor<i32>
    %0 = "stablehlo.all_gather"(%x) <{all_gather_dim = 0 : i64, replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>}> : (tensor<2x3xf32>) -> tensor<8x3xf32>
    %1 = stablehlo.custom_call @cut(%0, %o, %zero) : (tensor<8x3xf32>, tensor<i32>, tensor<i32>) -> tensor<2x3xf32>
    return %1 : tensor<2x3xf32>
  }

  // CHECK-LABEL: func.func private @a_gather_that_is_used_otherwise_stays
  func.func private @a_gather_that_is_used_otherwise_stays(%x: tensor<2x3xf32>) -> (tensor<2x3xf32>, tensor<8x3xf32>) {
    // CHECK: %[[ALL:.*]] = "stablehlo.all_gather"
    // CHECK-NEXT: return %arg0, %[[ALL]]
    %i = stablehlo.custom_call @shmap.axis_index() {api_version = 4 : i32, backend_config = {axes = ["i"]}} : () -> tensor<i32>
    %two = stablehlo.constant dense<2> : tensor<i32>
    %zero = stablehlo.constant dense<0> : tensor<i32>
    %o = stablehlo.multiply %i, %two : tensor<i32>
    %0 = "stablehlo.all_gather"(%x) <{all_gather_dim = 0 : i64, replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>}> : (tensor<2x3xf32>) -> tensor<8x3xf32>
    %1 = stablehlo.dynamic_slice %0, %o, %zero, sizes = [2, 3] : (tensor<8x3xf32>, tensor<i32>, tensor<i32>) -> tensor<2x3xf32>
    return %1, %0 : tensor<2x3xf32>, tensor<8x3xf32>
  }

  // CHECK-LABEL: func.func private @the_block_of_another_device
  func.func private @the_block_of_another_device(%x: tensor<2x3xf32>) -> tensor<2x3xf32> {
    // CHECK: stablehlo.all_gather
    // CHECK: %[[OWN:.*]] = stablehlo.dynamic_slice
    // CHECK-NEXT: return %[[OWN]]
    %i = stablehlo.custom_call @shmap.axis_index() {api_version = 4 : i32, backend_config = {axes = ["i"]}} : () -> tensor<i32>
    %two = stablehlo.constant dense<2> : tensor<i32>
    %zero = stablehlo.constant dense<0> : tensor<i32>
    %six = stablehlo.constant dense<6> : tensor<i32>
    %p = stablehlo.multiply %i, %two : tensor<i32>
    %o = stablehlo.subtract %six, %p : tensor<i32>
    %0 = "stablehlo.all_gather"(%x) <{all_gather_dim = 0 : i64, replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>}> : (tensor<2x3xf32>) -> tensor<8x3xf32>
    %1 = stablehlo.dynamic_slice %0, %o, %zero, sizes = [2, 3] : (tensor<8x3xf32>, tensor<i32>, tensor<i32>) -> tensor<2x3xf32>
    return %1 : tensor<2x3xf32>
  }

  // CHECK-LABEL: func.func private @axes_in_another_order
  func.func private @axes_in_another_order(%x: tensor<2x3xf32>) -> tensor<2x3xf32> {
    // CHECK: stablehlo.all_gather
    // CHECK: %[[OWN:.*]] = stablehlo.dynamic_slice
    // CHECK-NEXT: return %[[OWN]]
    %i = stablehlo.custom_call @shmap.axis_index() {api_version = 4 : i32, backend_config = {axes = ["i", "j"]}} : () -> tensor<i32>
    %two = stablehlo.constant dense<2> : tensor<i32>
    %zero = stablehlo.constant dense<0> : tensor<i32>
    %o = stablehlo.multiply %i, %two : tensor<i32>
    %0 = "stablehlo.all_gather"(%x) <{all_gather_dim = 0 : i64, replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "j">, #stablehlo.axis_ref<name = "i">]>}> : (tensor<2x3xf32>) -> tensor<16x3xf32>
    %1 = stablehlo.dynamic_slice %0, %o, %zero, sizes = [2, 3] : (tensor<16x3xf32>, tensor<i32>, tensor<i32>) -> tensor<2x3xf32>
    return %1 : tensor<2x3xf32>
  }

  // CHECK-LABEL: func.func private @part_of_the_own_block
  func.func private @part_of_the_own_block(%x: tensor<2x3xf32>) -> tensor<1x3xf32> {
    // CHECK: stablehlo.all_gather
    // CHECK: %[[OWN:.*]] = stablehlo.dynamic_slice
    // CHECK-NEXT: return %[[OWN]]
    %i = stablehlo.custom_call @shmap.axis_index() {api_version = 4 : i32, backend_config = {axes = ["i"]}} : () -> tensor<i32>
    %two = stablehlo.constant dense<2> : tensor<i32>
    %zero = stablehlo.constant dense<0> : tensor<i32>
    %o = stablehlo.multiply %i, %two : tensor<i32>
    %0 = "stablehlo.all_gather"(%x) <{all_gather_dim = 0 : i64, replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>}> : (tensor<2x3xf32>) -> tensor<8x3xf32>
    %1 = stablehlo.dynamic_slice %0, %o, %zero, sizes = [1, 3] : (tensor<8x3xf32>, tensor<i32>, tensor<i32>) -> tensor<1x3xf32>
    return %1 : tensor<1x3xf32>
  }

  // CHECK-LABEL: func.func private @an_index_that_cannot_be_told
  func.func private @an_index_that_cannot_be_told(%x: tensor<2x3xf32>, %o: tensor<i32>) -> tensor<2x3xf32> {
    // CHECK: stablehlo.all_gather
    // CHECK: %[[OWN:.*]] = stablehlo.dynamic_slice
    // CHECK-NEXT: return %[[OWN]]
    %zero = stablehlo.constant dense<0> : tensor<i32>
    %0 = "stablehlo.all_gather"(%x) <{all_gather_dim = 0 : i64, replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>}> : (tensor<2x3xf32>) -> tensor<8x3xf32>
    %1 = stablehlo.dynamic_slice %0, %o, %zero, sizes = [2, 3] : (tensor<8x3xf32>, tensor<i32>, tensor<i32>) -> tensor<2x3xf32>
    return %1 : tensor<2x3xf32>
  }

  // CHECK-LABEL: func.func private @another_dimension
  func.func private @another_dimension(%x: tensor<2x8xf32>) -> tensor<8x2xf32> {
    // CHECK: stablehlo.all_gather
    // CHECK: %[[OWN:.*]] = stablehlo.dynamic_slice
    // CHECK-NEXT: return %[[OWN]]
    %i = stablehlo.custom_call @shmap.axis_index() {api_version = 4 : i32, backend_config = {axes = ["i"]}} : () -> tensor<i32>
    %two = stablehlo.constant dense<2> : tensor<i32>
    %zero = stablehlo.constant dense<0> : tensor<i32>
    %o = stablehlo.multiply %i, %two : tensor<i32>
    %0 = "stablehlo.all_gather"(%x) <{all_gather_dim = 0 : i64, replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>}> : (tensor<2x8xf32>) -> tensor<8x8xf32>
    %1 = stablehlo.dynamic_slice %0, %zero, %o, sizes = [8, 2] : (tensor<8x8xf32>, tensor<i32>, tensor<i32>) -> tensor<8x2xf32>
    return %1 : tensor<8x2xf32>
  }

  // CHECK-LABEL: func.func private @the_own_block_of_one_dimension_and_half_of_another
  func.func private @the_own_block_of_one_dimension_and_half_of_another(%x: tensor<2x4xf32>) -> tensor<2x2xf32> {
    // CHECK: stablehlo.all_gather
    // CHECK: %[[PART:.*]] = stablehlo.dynamic_slice
    // CHECK-NEXT: return %[[PART]]
    %i = stablehlo.custom_call @shmap.axis_index() {api_version = 4 : i32, backend_config = {axes = ["i"]}} : () -> tensor<i32>
    %two = stablehlo.constant dense<2> : tensor<i32>
    %o = stablehlo.multiply %i, %two : tensor<i32>
    %0 = "stablehlo.all_gather"(%x) <{all_gather_dim = 0 : i64, replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>}> : (tensor<2x4xf32>) -> tensor<8x4xf32>
    %1 = stablehlo.dynamic_slice %0, %o, %two, sizes = [2, 2] : (tensor<8x4xf32>, tensor<i32>, tensor<i32>) -> tensor<2x2xf32>
    return %1 : tensor<2x2xf32>
  }

  // CHECK-LABEL: func.func private @a_start_that_cannot_be_read
  func.func private @a_start_that_cannot_be_read(%x: tensor<4xf32>) -> tensor<4xf32> {
    // CHECK: stablehlo.all_gather
    // CHECK: %[[PART:.*]] = stablehlo.dynamic_slice
    // CHECK-NEXT: return %[[PART]]
    %start = stablehlo.constant dense_resource<number> : tensor<i32>
    %0 = "stablehlo.all_gather"(%x) <{all_gather_dim = 0 : i64, replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>}> : (tensor<4xf32>) -> tensor<16xf32>
    %1 = stablehlo.dynamic_slice %0, %start, sizes = [4] : (tensor<16xf32>, tensor<i32>) -> tensor<4xf32>
    return %1 : tensor<4xf32>
  }
}

{-#
  dialect_resources: {
    builtin: {
      number: "0x0400000001000000"
    }
  }
#-}
