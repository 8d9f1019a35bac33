// RUN: shmap-opt %s --shmap-import-custom-calls --shmap-verify --split-input-file | FileCheck %s

// As JAX writes it: the body in a function, and shardings in XLA's newer form.
module @a_body_in_a_function attributes {mhlo.num_partitions = 8 : i32, mhlo.num_replicas = 1 : i32} {
  // CHECK-LABEL: module @a_body_in_a_function {
  // CHECK-NEXT: sdy.mesh @mesh = <["axis_0"=4, "axis_1"=2]>
  // CHECK-NEXT: func.func public @main(%arg0: tensor<2x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"axis_0"}, {"axis_1"}]>})
  // CHECK-SAME: -> (tensor<2x8xf32> {jax.result_info = "result", sdy.sharding = #sdy.sharding<@mesh, [{"axis_1", "axis_0"}, {}]>})
  // CHECK-SAME: attributes {sdy.manual_axes = #sdy<manual_axes{"axis_0", "axis_1"}>}
  func.func public @main(%x: tensor<8x16xf32> {mhlo.sharding = "{replicated}"}) -> (tensor<16x8xf32> {jax.result_info = "result"}) {
    // CHECK-NEXT: %[[SUM:.*]] = "stablehlo.all_reduce"(%arg0) <{replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "axis_1">]>}>
    // CHECK: return %[[SUM]]
    // CHECK-NOT: @body
    %0 = stablehlo.custom_call @Sharding(%x) {mhlo.sharding = "{devices=[4,2]<=[8]}"} : (tensor<8x16xf32>) -> tensor<8x16xf32>
    %1 = stablehlo.custom_call @SPMDFullToShardShape(%0) {mhlo.sharding = "{manual}"} : (tensor<8x16xf32>) -> tensor<2x8xf32>
    %2 = call @body(%1) : (tensor<2x8xf32>) -> tensor<2x8xf32>
    %3 = stablehlo.custom_call @Sharding(%2) {mhlo.sharding = "{manual}"} : (tensor<2x8xf32>) -> tensor<2x8xf32>
    %4 = stablehlo.custom_call @SPMDShardToFullShape(%3) {mhlo.sharding = "{devices=[8,1]<=[4,2]T(1,0)}"} : (tensor<2x8xf32>) -> tensor<16x8xf32>
    return %4 : tensor<16x8xf32>
  }
  func.func private @body(%b: tensor<2x8xf32>) -> tensor<2x8xf32> {
    %0 = "stablehlo.all_reduce"(%b) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, replica_groups = dense<[[0, 1], [2, 3], [4, 5], [6, 7]]> : tensor<4x2xi64>, use_global_device_ids}> ({
    ^bb0(%l: tensor<f32>, %r: tensor<f32>):
      %s = stablehlo.add %l, %r : tensor<f32>
      stablehlo.return %s : tensor<f32>
    }) : (tensor<2x8xf32>) -> tensor<2x8xf32>
    return %0 : tensor<2x8xf32>
  }
}

// -----

// As torch_xla writes it: the body inline, and shardings as lists of devices.
module @lists_of_devices {
  // CHECK-LABEL: module @lists_of_devices
  // CHECK: sdy.mesh @mesh = <["axis_0"=2, "axis_1"=2]>
  // CHECK: @main(%arg0: tensor<4x2xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"axis_1"}, {"axis_0"}]>})
  // CHECK-SAME: -> (tensor<4x2xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"axis_1"}, {}]>})
  func.func @main(%x: tensor<8x4xf32>) -> tensor<8x2xf32> {
    // CHECK-NEXT: %[[SIN:.*]] = stablehlo.sine %arg0 : tensor<4x2xf32>
    // CHECK-NEXT: %[[SUM:.*]] = "stablehlo.all_reduce"(%[[SIN]]) <{replica_groups = {{.*}}"axis_0"
    %0 = stablehlo.custom_call @Sharding(%x) {mhlo.sharding = "{devices=[2,2]0,2,1,3}"} : (tensor<8x4xf32>) -> tensor<8x4xf32>
    %1 = stablehlo.sine %0 : tensor<8x4xf32>
    %2 = stablehlo.custom_call @Sharding(%1) {mhlo.sharding = "{devices=[2,2]0,2,1,3}"} : (tensor<8x4xf32>) -> tensor<8x4xf32>
    %3 = stablehlo.custom_call @SPMDFullToShardShape(%2) {mhlo.sharding = "{manual}"} : (tensor<8x4xf32>) -> tensor<4x2xf32>
    %4 = "stablehlo.all_reduce"(%3) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, replica_groups = dense<[[0, 2], [1, 3]]> : tensor<2x2xi64>, use_global_device_ids}> ({
    ^bb0(%l: tensor<f32>, %r: tensor<f32>):
      %s = stablehlo.add %l, %r : tensor<f32>
      stablehlo.return %s : tensor<f32>
    }) : (tensor<4x2xf32>) -> tensor<4x2xf32>
    // CHECK: return
    %5 = stablehlo.custom_call @Sharding(%4) {mhlo.sharding = "{manual}"} : (tensor<4x2xf32>) -> tensor<4x2xf32>
    %6 = stablehlo.custom_call @SPMDShardToFullShape(%5) {mhlo.sharding = "{devices=[2,1,2]0,2,1,3 last_tile_dim_replicate}"} : (tensor<4x2xf32>) -> tensor<8x2xf32>
    return %6 : tensor<8x2xf32>
  }
}

// -----

// The mesh by which groups are named is the module's, if the shardings are products of its axes.
module @the_mesh_of_the_groups {
  // CHECK-LABEL: module @the_mesh_of_the_groups
  // CHECK: sdy.mesh @mesh = <["data"=2, "seq"=1, "model"=4]>
  // CHECK: @main(%arg0: tensor<8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"data"}]>})
  func.func public @main(%x: tensor<16xf32> {mhlo.sharding = "{devices=[2,4]<=[8] last_tile_dim_replicate}"}) -> tensor<16xf32> {
    %1 = stablehlo.custom_call @SPMDFullToShardShape(%x) {mhlo.sharding = "{manual}"} : (tensor<16xf32>) -> tensor<8xf32>
    %2 = "stablehlo.all_reduce"(%1) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, replica_groups = #stablehlo.replica_group_mesh_axes<mesh = #stablehlo.mesh<axes=[<name = "data", size = 2>, <name = "seq", size = 1>, <name = "model", size = 4>]>, axes = [#stablehlo.axis_ref<name = "model">]>, use_global_device_ids}> ({
    ^bb0(%l: tensor<f32>, %r: tensor<f32>):
      %s = stablehlo.add %l, %r : tensor<f32>
      stablehlo.return %s : tensor<f32>
    }) : (tensor<8xf32>) -> tensor<8xf32>
    %3 = stablehlo.custom_call @SPMDShardToFullShape(%2) {mhlo.sharding = "{devices=[2,4]<=[8] last_tile_dim_replicate}"} : (tensor<8xf32>) -> tensor<16xf32>
    return %3 : tensor<16xf32>
  }
}

// -----

// Nothing is split here; positions and the number of partitions make the mesh.
module @a_mesh_of_positions attributes {mhlo.num_partitions = 12 : i32} {
  // CHECK-LABEL: module @a_mesh_of_positions
  // CHECK: sdy.mesh @mesh = <["axis_0"=2, "axis_1"=3, "axis_2"=2]>
  func.func public @main(%x: tensor<4xi32>) -> tensor<4xi32> {
    // CHECK: axis_index() {{.*}}axes = ["axis_1"]
    %0 = stablehlo.custom_call @Sharding(%x) {mhlo.sharding = "{replicated}"} : (tensor<4xi32>) -> tensor<4xi32>
    %1 = stablehlo.custom_call @SPMDFullToShardShape(%0) {mhlo.sharding = "{manual}"} : (tensor<4xi32>) -> tensor<4xi32>
    %p = stablehlo.partition_id : tensor<ui32>
    %two = stablehlo.constant dense<2> : tensor<ui32>
    %three = stablehlo.constant dense<3> : tensor<ui32>
    %q = stablehlo.divide %p, %two : tensor<ui32>
    %r = stablehlo.remainder %q, %three : tensor<ui32>
    %i = stablehlo.convert %r : (tensor<ui32>) -> tensor<i32>
    %b = stablehlo.broadcast_in_dim %i, dims = [] : (tensor<i32>) -> tensor<4xi32>
    %y = stablehlo.add %1, %b : tensor<4xi32>
    %3 = stablehlo.custom_call @SPMDShardToFullShape(%y) {mhlo.sharding = "{replicated}"} : (tensor<4xi32>) -> tensor<4xi32>
    return %3 : tensor<4xi32>
  }
}

// -----

// Manual over some axes: positions are hidden in a function, as JAX writes them.
module @automatic_axes {
  // CHECK-LABEL: module @automatic_axes
  // CHECK: @main(%arg0: tensor<2x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"axis_0"}, {}]>}) -> (tensor<i32> {sdy.sharding = #sdy.sharding<@mesh, []>}) attributes {sdy.manual_axes = #sdy<manual_axes{"axis_0"}>}
  func.func public @main(%x: tensor<8x16xf32>) -> tensor<i32> {
    // CHECK-NEXT: %[[I:.*]] = stablehlo.custom_call @shmap.axis_index() {{.*}}axes = ["axis_0"]
    // CHECK-NEXT: return %[[I]]
    // CHECK-NOT: func.func
    %0 = stablehlo.custom_call @Sharding(%x) {backend_config = "unspecified_dims=[0,1]", mhlo.sharding = "{devices=[4,1,2]<=[8] last_tile_dim_replicate}"} : (tensor<8x16xf32>) -> tensor<8x16xf32>
    %1 = stablehlo.custom_call @SPMDFullToShardShape(%0) {backend_config = "unspecified_dims=[0,1]", mhlo.sharding = "{devices=[1,1,4,2]<=[8] last_tile_dims={manual, replicated}}"} : (tensor<8x16xf32>) -> tensor<2x16xf32>
    %2 = call @body(%1) : (tensor<2x16xf32>) -> tensor<i32>
    %3 = stablehlo.custom_call @Sharding(%2) {mhlo.sharding = "{devices=[4,2]<=[8] last_tile_dims={manual, replicated}}"} : (tensor<i32>) -> tensor<i32>
    %4 = stablehlo.custom_call @SPMDShardToFullShape(%3) {mhlo.sharding = "{replicated}"} : (tensor<i32>) -> tensor<i32>
    return %4 : tensor<i32>
  }
  func.func private @body(%b: tensor<2x16xf32>) -> tensor<i32> {
    %2 = call @position() : () -> tensor<i32>
    %3 = stablehlo.custom_call @Sharding(%2) {mhlo.sharding = "{manual}"} : (tensor<i32>) -> tensor<i32>
    %4 = stablehlo.custom_call @SPMDShardToFullShape(%3) {mhlo.sharding = "{devices=[4,2]<=[8] last_tile_dims={manual, replicated}}"} : (tensor<i32>) -> tensor<i32>
    return %4 : tensor<i32>
  }
  func.func private @position() -> tensor<i32> {
    %p = stablehlo.partition_id : tensor<ui32>
    %two = stablehlo.constant dense<2> : tensor<ui32>
    %q = stablehlo.divide %p, %two : tensor<ui32>
    %i = stablehlo.convert %q : (tensor<ui32>) -> tensor<i32>
    return %i : tensor<i32>
  }
}

// -----

module @regions_inside_stay_as_they_are {
  // CHECK-LABEL: module @regions_inside_stay_as_they_are
  // CHECK: @main(%arg0: tensor<2x16xf32> {{.*}}{sdy.manual_axes = #sdy<manual_axes{"axis_0"}>}
  func.func public @main(%x: tensor<8x16xf32>) -> tensor<8x16xf32> {
    // CHECK: @SPMDFullToShardShape
    // CHECK: call @inner
    // CHECK: @SPMDShardToFullShape
    %0 = stablehlo.custom_call @Sharding(%x) {mhlo.sharding = "{devices=[4,1,2]<=[8] last_tile_dim_replicate}"} : (tensor<8x16xf32>) -> tensor<8x16xf32>
    %1 = stablehlo.custom_call @SPMDFullToShardShape(%0) {mhlo.sharding = "{devices=[1,1,4,2]<=[8] last_tile_dims={manual, replicated}}"} : (tensor<8x16xf32>) -> tensor<2x16xf32>
    %2 = call @outer(%1) : (tensor<2x16xf32>) -> tensor<2x16xf32>
    %3 = stablehlo.custom_call @Sharding(%2) {mhlo.sharding = "{devices=[1,1,4,2]<=[8] last_tile_dims={manual, replicated}}"} : (tensor<2x16xf32>) -> tensor<2x16xf32>
    %4 = stablehlo.custom_call @SPMDShardToFullShape(%3) {mhlo.sharding = "{devices=[4,1,2]<=[8] last_tile_dim_replicate}"} : (tensor<2x16xf32>) -> tensor<8x16xf32>
    return %4 : tensor<8x16xf32>
  }
  func.func private @outer(%b: tensor<2x16xf32>) -> tensor<2x16xf32> {
    %0 = stablehlo.custom_call @Sharding(%b) {mhlo.sharding = "{devices=[1,2,4]<=[4,2]T(1,0) last_tile_dims={manual}}"} : (tensor<2x16xf32>) -> tensor<2x16xf32>
    %1 = stablehlo.custom_call @SPMDFullToShardShape(%0) {mhlo.sharding = "{manual}"} : (tensor<2x16xf32>) -> tensor<2x8xf32>
    %2 = call @inner(%1) : (tensor<2x8xf32>) -> tensor<2x8xf32>
    %3 = stablehlo.custom_call @Sharding(%2) {mhlo.sharding = "{manual}"} : (tensor<2x8xf32>) -> tensor<2x8xf32>
    %4 = stablehlo.custom_call @SPMDShardToFullShape(%3) {mhlo.sharding = "{devices=[1,2,4]<=[4,2]T(1,0) last_tile_dims={manual}}"} : (tensor<2x8xf32>) -> tensor<2x16xf32>
    return %4 : tensor<2x16xf32>
  }
  // CHECK: func.func private @inner
  // CHECK: stablehlo.partition_id
  // CHECK: channel_handle
  func.func private @inner(%c: tensor<2x8xf32>) -> tensor<2x8xf32> {
    %p = stablehlo.partition_id : tensor<ui32>
    %f = stablehlo.convert %p : (tensor<ui32>) -> tensor<f32>
    %g = stablehlo.broadcast_in_dim %f, dims = [] : (tensor<f32>) -> tensor<2x8xf32>
    %0 = "stablehlo.collective_permute"(%c) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, source_target_pairs = dense<[[0, 1]]> : tensor<1x2xi64>}> : (tensor<2x8xf32>) -> tensor<2x8xf32>
    %1 = stablehlo.add %0, %g : tensor<2x8xf32>
    return %1 : tensor<2x8xf32>
  }
}

// -----

module @unreduced_results {
  // CHECK-LABEL: module @unreduced_results
  // CHECK: -> (tensor<2xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"axis_1"}], unreduced={"axis_0"}>})
  func.func public @main(%x: tensor<4xf32>) -> tensor<4xf32> {
    %0 = stablehlo.custom_call @Sharding(%x) {mhlo.sharding = "{devices=[2,4]<=[4,2]T(1,0) last_tile_dim_replicate}"} : (tensor<4xf32>) -> tensor<4xf32>
    %1 = stablehlo.custom_call @SPMDFullToShardShape(%0) {mhlo.sharding = "{manual}"} : (tensor<4xf32>) -> tensor<2xf32>
    %2 = stablehlo.custom_call @Sharding(%1) {mhlo.sharding = "{manual}"} : (tensor<2xf32>) -> tensor<2xf32>
    %3 = stablehlo.custom_call @SPMDShardToFullShape(%2) {mhlo.sharding = "{devices=[2,4]<=[4,2]T(1,0) last_tile_dims={unreduced}}"} : (tensor<2xf32>) -> tensor<4xf32>
    return %3 : tensor<4xf32>
  }
}

// -----

// torch_xla lets replicated parameters, and what it computes from them, enter a region without a call.
module @a_replicated_parameter_in_a_region {
  // CHECK-LABEL: module @a_replicated_parameter_in_a_region
  // CHECK: @main(%[[X:.*]]: tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"axis_0"}]>}, %[[BIAS:.*]]: tensor<f32> {sdy.sharding = #sdy.sharding<@mesh, []>})
  func.func @main(%x: tensor<8xf32>, %bias: tensor<f32> {mhlo.sharding = "{replicated}"}) -> tensor<8xf32> {
    %0 = stablehlo.custom_call @Sharding(%x) {mhlo.sharding = "{devices=[2]0,1}"} : (tensor<8xf32>) -> tensor<8xf32>
    %1 = stablehlo.custom_call @SPMDFullToShardShape(%0) {mhlo.sharding = "{manual}"} : (tensor<8xf32>) -> tensor<4xf32>
    // CHECK-NEXT: %[[ALL:.*]] = stablehlo.broadcast_in_dim %[[BIAS]], dims = [] : (tensor<f32>) -> tensor<4xf32>
    // CHECK-NEXT: stablehlo.add %[[X]], %[[ALL]] : tensor<4xf32>
    %2 = stablehlo.broadcast_in_dim %bias, dims = [] : (tensor<f32>) -> tensor<4xf32>
    %3 = stablehlo.add %1, %2 : tensor<4xf32>
    %4 = stablehlo.custom_call @Sharding(%3) {mhlo.sharding = "{manual}"} : (tensor<4xf32>) -> tensor<4xf32>
    %5 = stablehlo.custom_call @SPMDShardToFullShape(%4) {mhlo.sharding = "{devices=[2]0,1}"} : (tensor<4xf32>) -> tensor<8xf32>
    return %5 : tensor<8xf32>
  }
}

// -----

// A hint in the reduction of a collective, as JAX writes it beside automatic axes, is erased.
module @hint_in_a_reduction attributes {mhlo.num_partitions = 8 : i32} {
  // CHECK-LABEL: module @hint_in_a_reduction
  func.func public @main(%x: tensor<8x16xf32>) -> tensor<2x16xf32> {
    %0 = stablehlo.custom_call @Sharding(%x) {backend_config = "unspecified_dims=[0,1]", mhlo.sharding = "{devices=[4,1,2]<=[8] last_tile_dim_replicate}"} : (tensor<8x16xf32>) -> tensor<8x16xf32>
    %1 = stablehlo.custom_call @SPMDFullToShardShape(%0) {backend_config = "unspecified_dims=[0,1]", mhlo.sharding = "{devices=[1,1,4,2]<=[8] last_tile_dims={manual, replicated}}"} : (tensor<8x16xf32>) -> tensor<2x16xf32>
    // CHECK: "stablehlo.all_reduce"
    // CHECK-NEXT: ^bb0
    // CHECK-NEXT: %[[SUM:.*]] = stablehlo.add
    // CHECK-NEXT: stablehlo.return %[[SUM]]
    %2 = "stablehlo.all_reduce"(%1) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, replica_groups = dense<[[0, 2, 4, 6], [1, 3, 5, 7]]> : tensor<2x4xi64>, use_global_device_ids}> ({
    ^bb0(%l: tensor<f32>, %r: tensor<f32>):
      %s = stablehlo.add %l, %r : tensor<f32>
      %t = stablehlo.custom_call @Sharding(%s) {backend_config = "", mhlo.sharding = "{devices=[4,2]<=[8] last_tile_dims={manual, replicated}}"} : (tensor<f32>) -> tensor<f32>
      stablehlo.return %t : tensor<f32>
    }) : (tensor<2x16xf32>) -> tensor<2x16xf32>
    %3 = stablehlo.custom_call @Sharding(%2) {backend_config = "unspecified_dims=[0,1]", mhlo.sharding = "{devices=[1,1,4,2]<=[8] last_tile_dims={manual, replicated}}"} : (tensor<2x16xf32>) -> tensor<2x16xf32>
    %4 = stablehlo.custom_call @SPMDShardToFullShape(%3) {backend_config = "unspecified_dims=[0,1]", mhlo.sharding = "{replicated}"} : (tensor<2x16xf32>) -> tensor<2x16xf32>
    return %4 : tensor<2x16xf32>
  }
}
