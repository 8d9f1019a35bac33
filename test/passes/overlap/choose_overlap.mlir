// RUN: shmap-opt %s --shmap-choose-overlap=effort=force --split-input-file | FileCheck %s
// RUN: shmap-opt %s '--shmap-choose-overlap=effort=force may_round=true' --split-input-file | FileCheck %s --check-prefix=ROUND

module @a_gathered_operand {
  sdy.mesh @mesh = <["i"=4]>
  // CHECK-LABEL: module @a_gathered_operand
  // CHECK: "stablehlo.all_gather"
  // CHECK-SAME: shmap.overlap = {barriers = true, empty = "zeros", in_place = true, name = "ring"
  // CHECK-NEXT: stablehlo.dot_general
  func.func public @main(%x: tensor<4x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"i"}, {}]>}, %w: tensor<8x6xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>}) -> (tensor<16x6xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>}) attributes {sdy.manual_axes = #sdy<manual_axes{"i"}>} {
    %g = "stablehlo.all_gather"(%x) <{all_gather_dim = 0 : i64, replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>}> : (tensor<4x8xf32>) -> tensor<16x8xf32>
    %y = stablehlo.dot_general %g, %w, contracting_dims = [1] x [0] : (tensor<16x8xf32>, tensor<8x6xf32>) -> tensor<16x6xf32>
    return %y : tensor<16x6xf32>
  }
}

// -----

module @sums_of_bf16_go_round_as_f32_or_are_rounded {
  sdy.mesh @mesh = <["i"=4]>
  // CHECK-LABEL: module @sums_of_bf16_go_round_as_f32_or_are_rounded
  // CHECK: shmap.overlap = {{{.*}}name = "partial-sums"{{.*}}wide = true}
  // ROUND-LABEL: module @sums_of_bf16_go_round_as_f32_or_are_rounded
  // ROUND: shmap.overlap = {barriers = true, empty = "zeros", in_place = true, name = "partial-sums"
  // ROUND-SAME: wide = false
  func.func public @main(%x: tensor<16x2xbf16> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"i"}]>}, %w: tensor<2x6xbf16> {sdy.sharding = #sdy.sharding<@mesh, [{"i"}, {}]>}) -> (tensor<4x6xbf16> {sdy.sharding = #sdy.sharding<@mesh, [{"i"}, {}]>}) attributes {sdy.manual_axes = #sdy<manual_axes{"i"}>} {
    %y = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<16x2xbf16>, tensor<2x6xbf16>) -> tensor<16x6xbf16>
    %s = "stablehlo.reduce_scatter"(%y) <{scatter_dimension = 0 : i64, replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>}> ({
    ^bb0(%a: tensor<bf16>, %b: tensor<bf16>):
      %c = stablehlo.add %a, %b : tensor<bf16>
      stablehlo.return %c : tensor<bf16>
    }) : (tensor<16x6xbf16>) -> tensor<4x6xbf16>
    return %s : tensor<4x6xbf16>
  }
}

// -----

module @nothing_is_multiplied {
  sdy.mesh @mesh = <["i"=4]>
  // CHECK-LABEL: module @nothing_is_multiplied
  // CHECK-NOT: shmap.overlap
  func.func public @main(%x: tensor<4x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"i"}, {}]>}) -> (tensor<16x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>}) attributes {sdy.manual_axes = #sdy<manual_axes{"i"}>} {
    %g = "stablehlo.all_gather"(%x) <{all_gather_dim = 0 : i64, replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>}> : (tensor<4x8xf32>) -> tensor<16x8xf32>
    return %g : tensor<16x8xf32>
  }
}

// -----

module @functions_that_compute_in_pieces_are_inlined {
  sdy.mesh @mesh = <["i"=4]>
  // CHECK-LABEL: module @functions_that_compute_in_pieces_are_inlined
  // CHECK: "stablehlo.all_gather"
  // CHECK-NEXT: %[[Y:.*]] = stablehlo.dot_general
  // CHECK-NEXT: %[[T:.*]] = stablehlo.tanh %[[Y]]
  // CHECK-NEXT: %[[M:.*]] = stablehlo.multiply %[[Y]], %[[T]]
  // CHECK-NEXT: call @summed(%[[M]])
  // CHECK-NOT: @gated
  func.func public @main(%x: tensor<4x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"i"}, {}]>}, %w: tensor<8x6xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>}) -> (tensor<6xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}]>}) attributes {sdy.manual_axes = #sdy<manual_axes{"i"}>} {
    %g = "stablehlo.all_gather"(%x) <{all_gather_dim = 0 : i64, replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>}> : (tensor<4x8xf32>) -> tensor<16x8xf32>
    %y = stablehlo.dot_general %g, %w, contracting_dims = [1] x [0] : (tensor<16x8xf32>, tensor<8x6xf32>) -> tensor<16x6xf32>
    %z = func.call @gated(%y) : (tensor<16x6xf32>) -> tensor<16x6xf32>
    %s = func.call @summed(%z) : (tensor<16x6xf32>) -> tensor<6xf32>
    return %s : tensor<6xf32>
  }
  func.func private @gated(%x: tensor<16x6xf32>) -> tensor<16x6xf32> {
    %g = func.call @gate(%x) : (tensor<16x6xf32>) -> tensor<16x6xf32>
    %y = stablehlo.multiply %x, %g : tensor<16x6xf32>
    return %y : tensor<16x6xf32>
  }
  func.func private @gate(%x: tensor<16x6xf32>) -> tensor<16x6xf32> {
    %y = stablehlo.tanh %x : tensor<16x6xf32>
    return %y : tensor<16x6xf32>
  }
  // CHECK: func.func private @summed
  func.func private @summed(%x: tensor<16x6xf32>) -> tensor<6xf32> {
    %zero = stablehlo.constant dense<0.0> : tensor<f32>
    %y = stablehlo.reduce(%x init: %zero) applies stablehlo.add across dimensions = [0] : (tensor<16x6xf32>, tensor<f32>) -> tensor<6xf32>
    return %y : tensor<6xf32>
  }
}

// -----

module @reshapes_are_moved_past_gathers_and_sums {
  sdy.mesh @mesh = <["i"=4]>
  // CHECK-LABEL: module @reshapes_are_moved_past_gathers_and_sums
  // CHECK: %[[FLAT:.*]] = stablehlo.reshape %arg0 : (tensor<2x4x8xf32>) -> tensor<8x8xf32>
  // CHECK: %[[ALL:.*]] = "stablehlo.all_gather"(%[[FLAT]])
  // CHECK-SAME: all_gather_dim = 0
  // CHECK-SAME: name = "ring"
  // CHECK: %[[Y:.*]] = stablehlo.dot_general %[[ALL]], %arg1
  // CHECK: %[[S:.*]] = "stablehlo.reduce_scatter"(%[[Y]])
  // CHECK-SAME: scatter_dimension = 0
  // CHECK: (tensor<32x6xf32>) -> tensor<8x6xf32>
  // CHECK: stablehlo.reshape %[[S]] : (tensor<8x6xf32>) -> tensor<2x4x6xf32>
  func.func public @main(%x: tensor<2x4x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"i"}, {}, {}]>}, %w: tensor<8x6xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"i"}, {}]>}) -> (tensor<2x4x6xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"i"}, {}, {}]>}) attributes {sdy.manual_axes = #sdy<manual_axes{"i"}>} {
    %g = "stablehlo.all_gather"(%x) <{all_gather_dim = 0 : i64, replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>}> : (tensor<2x4x8xf32>) -> tensor<8x4x8xf32>
    %f = stablehlo.reshape %g : (tensor<8x4x8xf32>) -> tensor<32x8xf32>
    %y = stablehlo.dot_general %f, %w, contracting_dims = [1] x [0] : (tensor<32x8xf32>, tensor<8x6xf32>) -> tensor<32x6xf32>
    %r = stablehlo.reshape %y : (tensor<32x6xf32>) -> tensor<8x4x6xf32>
    %s = "stablehlo.reduce_scatter"(%r) <{scatter_dimension = 0 : i64, replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>}> ({
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %c = stablehlo.add %a, %b : tensor<f32>
      stablehlo.return %c : tensor<f32>
    }) : (tensor<8x4x6xf32>) -> tensor<2x4x6xf32>
    return %s : tensor<2x4x6xf32>
  }
}

// -----

module @reshapes_are_moved_past_products {
  sdy.mesh @mesh = <["i"=4]>
  // CHECK-LABEL: module @reshapes_are_moved_past_products
  // CHECK: %[[ALL:.*]] = "stablehlo.all_gather"(%arg0)
  // CHECK-SAME: name = "ring"
  // CHECK: %[[Y:.*]] = stablehlo.dot_general %[[ALL]], %arg1, contracting_dims = [2] x [0]
  // CHECK-SAME: -> tensor<3x8x6xf32>
  // CHECK: %[[B:.*]] = stablehlo.broadcast_in_dim %arg2, dims = [2] : (tensor<6xf32>) -> tensor<3x8x6xf32>
  // CHECK: %[[Z:.*]] = stablehlo.add %[[Y]], %[[B]] : tensor<3x8x6xf32>
  // CHECK: %[[R:.*]] = stablehlo.reshape %[[Z]] : (tensor<3x8x6xf32>) -> tensor<24x6xf32>
  // CHECK: stablehlo.reduce(%[[R]] init: {{.*}}) applies stablehlo.add across dimensions = [0]
  // CHECK: stablehlo.reduce(%[[R]] init: {{.*}}) applies stablehlo.add across dimensions = [1]
  // ROUND-LABEL: module @reshapes_are_moved_past_products
  // ROUND: %[[Z:.*]] = stablehlo.add {{.*}} : tensor<3x8x6xf32>
  // ROUND: %[[R:.*]] = stablehlo.reshape %[[Z]] : (tensor<3x8x6xf32>) -> tensor<24x6xf32>
  // ROUND: stablehlo.reduce(%[[Z]] init: {{.*}}) applies stablehlo.add across dimensions = [0, 1]
  // ROUND: stablehlo.reduce(%[[R]] init: {{.*}}) applies stablehlo.add across dimensions = [1]
  func.func public @main(%x: tensor<3x2x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"i"}, {}]>}, %w: tensor<8x6xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>}, %b: tensor<6xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}]>}) -> (tensor<24x6xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>}, tensor<6xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}]>}, tensor<24xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}]>}) attributes {sdy.manual_axes = #sdy<manual_axes{"i"}>} {
    %g = "stablehlo.all_gather"(%x) <{all_gather_dim = 1 : i64, replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>}> : (tensor<3x2x8xf32>) -> tensor<3x8x8xf32>
    %f = stablehlo.reshape %g : (tensor<3x8x8xf32>) -> tensor<24x8xf32>
    %y = stablehlo.dot_general %f, %w, contracting_dims = [1] x [0] : (tensor<24x8xf32>, tensor<8x6xf32>) -> tensor<24x6xf32>
    %c = stablehlo.broadcast_in_dim %b, dims = [1] : (tensor<6xf32>) -> tensor<24x6xf32>
    %z = stablehlo.add %y, %c : tensor<24x6xf32>
    %zero = stablehlo.constant dense<0.0> : tensor<f32>
    %s = stablehlo.reduce(%z init: %zero) applies stablehlo.add across dimensions = [0] : (tensor<24x6xf32>, tensor<f32>) -> tensor<6xf32>
    %t = stablehlo.reduce(%z init: %zero) applies stablehlo.add across dimensions = [1] : (tensor<24x6xf32>, tensor<f32>) -> tensor<24xf32>
    return %z, %s, %t : tensor<24x6xf32>, tensor<6xf32>, tensor<24xf32>
  }
}

// -----

module @an_array_that_others_read_is_gathered_once {
  sdy.mesh @mesh = <["i"=4]>
  // CHECK-LABEL: module @an_array_that_others_read_is_gathered_once
  // CHECK: "stablehlo.all_gather"(%arg0)
  // CHECK-NOT: "stablehlo.all_gather"
  // CHECK: stablehlo.dot_general {{.*}} -> tensor<8x3x6xf32>
  // CHECK: return
  func.func public @main(%x: tensor<2x3x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"i"}, {}, {}]>}, %w: tensor<8x6xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>}) -> (tensor<24x6xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>}, tensor<8x3x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}, {}]>}) attributes {sdy.manual_axes = #sdy<manual_axes{"i"}>} {
    %g = "stablehlo.all_gather"(%x) <{all_gather_dim = 0 : i64, replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>}> : (tensor<2x3x8xf32>) -> tensor<8x3x8xf32>
    %f = stablehlo.reshape %g : (tensor<8x3x8xf32>) -> tensor<24x8xf32>
    %y = stablehlo.dot_general %f, %w, contracting_dims = [1] x [0] : (tensor<24x8xf32>, tensor<8x6xf32>) -> tensor<24x6xf32>
    return %y, %g : tensor<24x6xf32>, tensor<8x3x8xf32>
  }
}

// -----

module @rows_stay_together_where_each_device_would_have_one {
  sdy.mesh @mesh = <["i"=4]>
  // CHECK-LABEL: module @rows_stay_together_where_each_device_would_have_one
  // CHECK: %[[Y:.*]] = stablehlo.dot_general {{.*}} -> tensor<24x6xf32>
  // CHECK: "stablehlo.reduce_scatter"(%[[Y]])
  // CHECK: (tensor<24x6xf32>) -> tensor<6x6xf32>
  func.func public @main(%x: tensor<4x6x2xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}, {"i"}]>}, %w: tensor<2x6xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"i"}, {}]>}) -> (tensor<6x6xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"i"}, {}]>}) attributes {sdy.manual_axes = #sdy<manual_axes{"i"}>} {
    %y = stablehlo.dot_general %x, %w, contracting_dims = [2] x [0] : (tensor<4x6x2xf32>, tensor<2x6xf32>) -> tensor<4x6x6xf32>
    %r = stablehlo.reshape %y : (tensor<4x6x6xf32>) -> tensor<24x6xf32>
    %s = "stablehlo.reduce_scatter"(%r) <{scatter_dimension = 0 : i64, replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>}> ({
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %c = stablehlo.add %a, %b : tensor<f32>
      stablehlo.return %c : tensor<f32>
    }) : (tensor<24x6xf32>) -> tensor<6x6xf32>
    return %s : tensor<6x6xf32>
  }
}
