// RUN: shmap-opt %s --shmap-import-manual-computation --shmap-verify --split-input-file | FileCheck %s

// Groups in the order of their members, channels, and the arithmetic with which JAX writes positions.
module @blocks_are_arguments attributes {mhlo.num_partitions = 8 : i32, mhlo.num_replicas = 1 : i32} {
  sdy.mesh @mesh = <["i"=4, "j"=2]> {stablehlo.mesh = {axes = []}}
  sdy.mesh @mesh_0 = <["i"=4, "j"=2]>
  // CHECK-LABEL: module @blocks_are_arguments {
  // CHECK-NEXT: sdy.mesh @mesh = <["i"=4, "j"=2]>
  // CHECK-NEXT: func.func public @main(%arg0: tensor<2x8xf32> {jax.result_info = "x", sdy.sharding = #sdy.sharding<@mesh, [{"i"}, {"j"}]>})
  // CHECK-SAME: -> (tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"j"}]>}, tensor<1xi32> {sdy.sharding = #sdy.sharding<@mesh, [{"j", "i"}]>})
  // CHECK-SAME: attributes {sdy.manual_axes = #sdy<manual_axes{"i", "j"}>}
  func.func public @main(%x: tensor<8x16xf32> {jax.result_info = "x"}) -> (tensor<8x16xf32>, tensor<8xi32>) {
    %0:2 = sdy.manual_computation(%x) in_shardings=[<@mesh, [{"i"}, {"j"}]>] out_shardings=[<@mesh, [{}, {"j"}]>, <@mesh, [{"j", "i"}]>] manual_axes={"i", "j"} (%b: tensor<2x8xf32>) {
      // CHECK-NEXT: "stablehlo.all_reduce"(%arg0) <{replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "j">]>}>
      %1 = "stablehlo.all_reduce"(%b) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, replica_groups = dense<[[0, 1], [2, 3], [4, 5], [6, 7]]> : tensor<4x2xi64>, use_global_device_ids}> ({
      ^bb0(%l: tensor<f32>, %r: tensor<f32>):
        %s = stablehlo.add %l, %r : tensor<f32>
        stablehlo.return %s : tensor<f32>
      }) : (tensor<2x8xf32>) -> tensor<2x8xf32>
      // CHECK: "stablehlo.all_gather"({{.*}}) <{all_gather_dim = 0 : i64, replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>}>
      %2 = "stablehlo.all_gather"(%1) <{all_gather_dim = 0 : i64, channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh_0, axes = [#stablehlo.axis_ref<name = "i">]>, use_global_device_ids}> : (tensor<2x8xf32>) -> tensor<8x8xf32>
      // CHECK-NEXT: %[[INDEX:.*]] = stablehlo.custom_call @shmap.axis_index() {api_version = 4 : i32, backend_config = {axes = ["j", "i"]}} : () -> tensor<i32>
      // CHECK-NEXT: stablehlo.reshape %[[INDEX]]
      // CHECK-NEXT: return
      %p = stablehlo.partition_id : tensor<ui32>
      %two = stablehlo.constant dense<2> : tensor<ui32>
      %i = stablehlo.divide %p, %two : tensor<ui32>
      %i32 = stablehlo.convert %i : (tensor<ui32>) -> tensor<i32>
      %j = stablehlo.remainder %p, %two : tensor<ui32>
      %j32 = stablehlo.convert %j : (tensor<ui32>) -> tensor<i32>
      %four = stablehlo.constant dense<4> : tensor<i32>
      %j4 = stablehlo.multiply %j32, %four : tensor<i32>
      %ji = stablehlo.add %i32, %j4 : tensor<i32>
      %ji1 = stablehlo.reshape %ji : (tensor<i32>) -> tensor<1xi32>
      sdy.return %2, %ji1 : tensor<8x8xf32>, tensor<1xi32>
    } : (tensor<8x16xf32>) -> (tensor<8x16xf32>, tensor<8xi32>)
    return %0#0, %0#1 : tensor<8x16xf32>, tensor<8xi32>
  }
}

// -----

module @groups_whose_members_are_in_another_order {
  sdy.mesh @mesh = <["i"=2, "j"=2]>
  // CHECK-LABEL: module @groups_whose_members_are_in_another_order
  func.func public @main(%x: tensor<8xf32>) -> (tensor<32xf32>, tensor<8xf32>) {
    %0:2 = sdy.manual_computation(%x) in_shardings=[<@mesh, [{"i", "j"}]>] out_shardings=[<@mesh, [{"i", "j"}]>, <@mesh, [{"i", "j"}]>] manual_axes={"i", "j"} (%b: tensor<2xf32>) {
      // CHECK: "stablehlo.all_gather"{{.*}} axes = [#stablehlo.axis_ref<name = "j">, #stablehlo.axis_ref<name = "i">]
      %1 = "stablehlo.all_gather"(%b) <{all_gather_dim = 0 : i64, channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, replica_groups = dense<[[0, 2, 1, 3]]> : tensor<1x4xi64>, use_global_device_ids}> : (tensor<2xf32>) -> tensor<8xf32>
      // An all_reduce does not depend on the order of its members.
      // CHECK: "stablehlo.all_reduce"{{.*}} axes = [#stablehlo.axis_ref<name = "i">, #stablehlo.axis_ref<name = "j">]
      %2 = "stablehlo.all_reduce"(%b) <{channel_handle = #stablehlo.channel_handle<handle = 2, type = 1>, replica_groups = dense<[[3, 0, 1, 2]]> : tensor<1x4xi64>, use_global_device_ids}> ({
      ^bb0(%l: tensor<f32>, %r: tensor<f32>):
        %s = stablehlo.add %l, %r : tensor<f32>
        stablehlo.return %s : tensor<f32>
      }) : (tensor<2xf32>) -> tensor<2xf32>
      sdy.return %1, %2 : tensor<8xf32>, tensor<2xf32>
    } : (tensor<8xf32>) -> (tensor<32xf32>, tensor<8xf32>)
    return %0#0, %0#1 : tensor<32xf32>, tensor<8xf32>
  }
}

// -----

module @groups_that_are_no_product_of_axes_stay_lists {
  sdy.mesh @mesh = <["i"=4]>
  // CHECK-LABEL: module @groups_that_are_no_product_of_axes_stay_lists
  func.func public @main(%x: tensor<8xf32>) -> tensor<16xf32> {
    %0 = sdy.manual_computation(%x) in_shardings=[<@mesh, [{"i"}]>] out_shardings=[<@mesh, [{"i"}]>] manual_axes={"i"} (%b: tensor<2xf32>) {
      // CHECK: "stablehlo.all_gather"(%arg0) <{all_gather_dim = 0 : i64, replica_groups = dense<{{\[}}[0, 3], [1, 2]]> : tensor<2x2xi64>}>
      %1 = "stablehlo.all_gather"(%b) <{all_gather_dim = 0 : i64, channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, replica_groups = dense<[[0, 3], [1, 2]]> : tensor<2x2xi64>, use_global_device_ids}> : (tensor<2xf32>) -> tensor<4xf32>
      sdy.return %1 : tensor<4xf32>
    } : (tensor<8xf32>) -> tensor<16xf32>
    return %0 : tensor<16xf32>
  }
}

// -----

// XLA's partitioner writes positions as tables, and offsets of blocks as well.
module @tables_of_positions {
  sdy.mesh @mesh = <["i"=4, "j"=2]>
  // CHECK-LABEL: module @tables_of_positions
  func.func public @main(%x: tensor<8xf32>) -> tensor<8xf32> {
    %0 = sdy.manual_computation(%x) in_shardings=[<@mesh, [{}]>] out_shardings=[<@mesh, [{"i"}]>] manual_axes={"i", "j"} (%b: tensor<8xf32>) {
      // CHECK: %[[I:.*]] = stablehlo.custom_call @shmap.axis_index() {{.*}}axes = ["i"]
      // CHECK-NEXT: %[[TWO:.*]] = stablehlo.constant dense<2>
      // CHECK-NEXT: %[[OFFSET:.*]] = stablehlo.multiply %[[I]], %[[TWO]]
      // CHECK-NEXT: stablehlo.dynamic_slice %arg0, %[[OFFSET]]
      %p = stablehlo.partition_id : tensor<ui32>
      %blocks = stablehlo.constant dense<[0, 0, 1, 1, 2, 2, 3, 3]> : tensor<8xui32>
      %k = stablehlo.dynamic_slice %blocks, %p, sizes = [1] : (tensor<8xui32>, tensor<ui32>) -> tensor<1xui32>
      %block = stablehlo.reshape %k : (tensor<1xui32>) -> tensor<ui32>
      %offsets = stablehlo.constant dense<[0, 2, 4, 6]> : tensor<4xi32>
      %o = stablehlo.dynamic_slice %offsets, %block, sizes = [1] : (tensor<4xi32>, tensor<ui32>) -> tensor<1xi32>
      %offset = stablehlo.reshape %o : (tensor<1xi32>) -> tensor<i32>
      %1 = stablehlo.dynamic_slice %b, %offset, sizes = [2] : (tensor<8xf32>, tensor<i32>) -> tensor<2xf32>
      sdy.return %1 : tensor<2xf32>
    } : (tensor<8xf32>) -> tensor<8xf32>
    return %0 : tensor<8xf32>
  }
}

// -----

// Numbers that 32 bits do not have are computed in the type of the table.
module @tables_of_64_bits {
  sdy.mesh @mesh = <["i"=4]>
  // CHECK-LABEL: module @tables_of_64_bits
  func.func public @main(%x: tensor<4xi64>) -> tensor<4xi64> {
    %0 = sdy.manual_computation(%x) in_shardings=[<@mesh, [{"i"}]>] out_shardings=[<@mesh, [{"i"}]>] manual_axes={"i"} (%b: tensor<1xi64>) {
      // CHECK: %[[I:.*]] = stablehlo.custom_call @shmap.axis_index() {{.*}}axes = ["i"]
      // CHECK-NEXT: %[[WIDE:.*]] = stablehlo.convert %[[I]] : (tensor<i32>) -> tensor<i64>
      // CHECK-NEXT: %[[STEP:.*]] = stablehlo.constant dense<3000000000> : tensor<i64>
      // CHECK-NEXT: %[[STEPS:.*]] = stablehlo.multiply %[[WIDE]], %[[STEP]] : tensor<i64>
      // CHECK-NEXT: %[[START:.*]] = stablehlo.constant dense<5000000000> : tensor<i64>
      // CHECK-NEXT: stablehlo.add %[[STEPS]], %[[START]] : tensor<i64>
      %p = stablehlo.partition_id : tensor<ui32>
      %table = stablehlo.constant dense<[5000000000, 8000000000, 11000000000, 14000000000]> : tensor<4xi64>
      %k = stablehlo.dynamic_slice %table, %p, sizes = [1] : (tensor<4xi64>, tensor<ui32>) -> tensor<1xi64>
      %1 = stablehlo.add %b, %k : tensor<1xi64>
      sdy.return %1 : tensor<1xi64>
    } : (tensor<4xi64>) -> tensor<4xi64>
    return %0 : tensor<4xi64>
  }
}

// -----

module @tables_of_large_unsigned_numbers {
  sdy.mesh @mesh = <["i"=4]>
  // CHECK-LABEL: module @tables_of_large_unsigned_numbers
  func.func public @main(%x: tensor<4xui32>) -> tensor<4xui32> {
    %0 = sdy.manual_computation(%x) in_shardings=[<@mesh, [{"i"}]>] out_shardings=[<@mesh, [{"i"}]>] manual_axes={"i"} (%b: tensor<1xui32>) {
      // CHECK: %[[I:.*]] = stablehlo.custom_call @shmap.axis_index() {{.*}}axes = ["i"]
      // CHECK-NEXT: %[[UNSIGNED:.*]] = stablehlo.convert %[[I]] : (tensor<i32>) -> tensor<ui32>
      // CHECK: stablehlo.constant dense<2147483648> : tensor<ui32>
      %p = stablehlo.partition_id : tensor<ui32>
      %table = stablehlo.constant dense<[2147483648, 2147483655, 2147483662, 2147483669]> : tensor<4xui32>
      %k = stablehlo.dynamic_slice %table, %p, sizes = [1] : (tensor<4xui32>, tensor<ui32>) -> tensor<1xui32>
      %1 = stablehlo.add %b, %k : tensor<1xui32>
      sdy.return %1 : tensor<1xui32>
    } : (tensor<4xui32>) -> tensor<4xui32>
    return %0 : tensor<4xui32>
  }
}

// -----

// A table that is no multiple of an index stays, and is looked up with the index along all axes.
module @tables_of_other_numbers {
  sdy.mesh @mesh = <["i"=4]>
  // CHECK-LABEL: module @tables_of_other_numbers
  func.func public @main(%x: tensor<8xi32>) -> tensor<8xi32> {
    %0 = sdy.manual_computation(%x) in_shardings=[<@mesh, [{"i"}]>] out_shardings=[<@mesh, [{"i"}]>] manual_axes={"i"} (%b: tensor<2xi32>) {
      // CHECK: %[[I:.*]] = stablehlo.custom_call @shmap.axis_index() {{.*}}axes = ["i"]
      // CHECK-NEXT: %[[P:.*]] = stablehlo.convert %[[I]] : (tensor<i32>) -> tensor<ui32>
      // CHECK: stablehlo.dynamic_slice {{.*}}, %[[P]], sizes = [1]
      %p = stablehlo.partition_id : tensor<ui32>
      %primes = stablehlo.constant dense<[2, 3, 5, 7]> : tensor<4xi32>
      %k = stablehlo.dynamic_slice %primes, %p, sizes = [1] : (tensor<4xi32>, tensor<ui32>) -> tensor<1xi32>
      %r = stablehlo.broadcast_in_dim %k, dims = [0] : (tensor<1xi32>) -> tensor<2xi32>
      %1 = stablehlo.add %b, %r : tensor<2xi32>
      sdy.return %1 : tensor<2xi32>
    } : (tensor<8xi32>) -> tensor<8xi32>
    return %0 : tensor<8xi32>
  }
}

// -----

// Elementwise operations outside of regions run on blocks; the constants among them are split.
module @several_regions_and_elementwise_operations {
  sdy.mesh @mesh = <["i"=4]>
  // CHECK-LABEL: module @several_regions_and_elementwise_operations
  // CHECK: @main(%arg0: tensor<2xf32> {{.*}}[{"i"}]
  func.func public @main(%x: tensor<8xf32>) -> tensor<8xf32> {
    // CHECK-NEXT: %[[SIN:.*]] = stablehlo.sine %arg0 : tensor<2xf32>
    %0 = stablehlo.sine %x : tensor<8xf32>
    // CHECK-NEXT: %[[EXP:.*]] = stablehlo.exponential %[[SIN]] : tensor<2xf32>
    %1 = sdy.manual_computation(%0) in_shardings=[<@mesh, [{"i"}]>] out_shardings=[<@mesh, [{"i"}]>] manual_axes={"i"} (%b: tensor<2xf32>) {
      %e = stablehlo.exponential %b : tensor<2xf32>
      sdy.return %e : tensor<2xf32>
    } : (tensor<8xf32>) -> tensor<8xf32>
    // CHECK: %[[TWO:.*]] = stablehlo.constant dense<2.000000e+00> : tensor<2xf32>
    // CHECK: %[[TWICE:.*]] = stablehlo.multiply %[[EXP]], %[[TWO]] : tensor<2xf32>
    %two = stablehlo.constant dense<2.0> : tensor<8xf32>
    %2 = stablehlo.multiply %1, %two : tensor<8xf32>
    // CHECK: %[[ONES:.*]] = stablehlo.broadcast_in_dim %{{.*}}, dims = [] : (tensor<f32>) -> tensor<2xf32>
    // CHECK: stablehlo.add %[[TWICE]], %[[ONES]] : tensor<2xf32>
    %one = stablehlo.constant dense<1.0> : tensor<f32>
    %ones = stablehlo.broadcast_in_dim %one, dims = [] : (tensor<f32>) -> tensor<8xf32>
    %3 = stablehlo.add %2, %ones : tensor<8xf32>
    // CHECK-NEXT: stablehlo.negate
    %4 = sdy.manual_computation(%3) in_shardings=[<@mesh, [{"i"}]>] out_shardings=[<@mesh, [{"i"}]>] manual_axes={"i"} (%b: tensor<2xf32>) {
      %n = stablehlo.negate %b : tensor<2xf32>
      sdy.return %n : tensor<2xf32>
    } : (tensor<8xf32>) -> tensor<8xf32>
    return %4 : tensor<8xf32>
  }
}

// -----

module @complex_constants {
  sdy.mesh @mesh = <["i"=4]>
  // CHECK-LABEL: module @complex_constants
  func.func public @main(%x: tensor<8xcomplex<f32>>) -> tensor<8xcomplex<f32>> {
    // CHECK: stablehlo.constant dense<(1.000000e+00,2.000000e+00)> : tensor<2xcomplex<f32>>
    // CHECK: stablehlo.constant dense<(0.000000e+00,3.000000e+00)> : tensor<2xcomplex<f32>>
    // CHECK-NOT: sdy.constant
    %c = stablehlo.constant dense<(1.0,2.0)> : tensor<8xcomplex<f32>>
    %d = sdy.constant dense<(0.0,3.0)> : tensor<8xcomplex<f32>>
    %0 = stablehlo.add %x, %c : tensor<8xcomplex<f32>>
    %1 = stablehlo.multiply %0, %d : tensor<8xcomplex<f32>>
    %2 = sdy.manual_computation(%1) in_shardings=[<@mesh, [{"i"}]>] out_shardings=[<@mesh, [{"i"}]>] manual_axes={"i"} (%b: tensor<2xcomplex<f32>>) {
      %m = stablehlo.sine %b : tensor<2xcomplex<f32>>
      sdy.return %m : tensor<2xcomplex<f32>>
    } : (tensor<8xcomplex<f32>>) -> tensor<8xcomplex<f32>>
    return %2 : tensor<8xcomplex<f32>>
  }
}

// -----

// What every device holds, every device can compute with.
module @operations_on_whole_arrays {
  sdy.mesh @mesh = <["i"=4]>
  // CHECK-LABEL: module @operations_on_whole_arrays
  // CHECK: @main(%arg0: tensor<8x4xf32> {{.*}}[{}, {}]>}) -> (tensor<2x8xf32> {{.*}}[{"i"}, {}]
  func.func public @main(%x: tensor<8x4xf32>) -> tensor<8x8xf32> {
    // CHECK: stablehlo.transpose %arg0
    %0 = stablehlo.transpose %x, dims = [1, 0] : (tensor<8x4xf32>) -> tensor<4x8xf32>
    %1 = sdy.manual_computation(%0) in_shardings=[<@mesh, [{}, {}]>] out_shardings=[<@mesh, [{"i"}, {}]>] manual_axes={"i"} (%b: tensor<4x8xf32>) {
      %s = stablehlo.slice %b [0:2, 0:8] : (tensor<4x8xf32>) -> tensor<2x8xf32>
      sdy.return %s : tensor<2x8xf32>
    } : (tensor<4x8xf32>) -> tensor<8x8xf32>
    return %1 : tensor<8x8xf32>
  }
}

// -----

module @regions_in_loops_and_functions {
  sdy.mesh @mesh = <["i"=4]>
  // CHECK-LABEL: module @regions_in_loops_and_functions
  // CHECK: @main(%arg0: tensor<2xf32>
  func.func public @main(%x: tensor<8xf32>) -> tensor<8xf32> {
    %zero = stablehlo.constant dense<0> : tensor<i32>
    // CHECK: stablehlo.while({{.*}}) : tensor<i32>, tensor<2xf32>
    %0:2 = stablehlo.while(%k = %zero, %y = %x) : tensor<i32>, tensor<8xf32>
    cond {
      %n = stablehlo.constant dense<3> : tensor<i32>
      %more = stablehlo.compare LT, %k, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %more : tensor<i1>
    } do {
      // CHECK: stablehlo.exponential {{.*}} : tensor<2xf32>
      // CHECK-NOT: call
      %z = func.call @layer(%y) : (tensor<8xf32>) -> tensor<8xf32>
      %one = stablehlo.constant dense<1> : tensor<i32>
      %next = stablehlo.add %k, %one : tensor<i32>
      stablehlo.return %next, %z : tensor<i32>, tensor<8xf32>
    }
    return %0#1 : tensor<8xf32>
  }
  // CHECK-NOT: @layer
  func.func private @layer(%x: tensor<8xf32>) -> tensor<8xf32> {
    %0 = sdy.manual_computation(%x) in_shardings=[<@mesh, [{"i"}]>] out_shardings=[<@mesh, [{"i"}]>] manual_axes={"i"} (%b: tensor<2xf32>) {
      %e = stablehlo.exponential %b : tensor<2xf32>
      sdy.return %e : tensor<2xf32>
    } : (tensor<8xf32>) -> tensor<8xf32>
    return %0 : tensor<8xf32>
  }
}

// -----

// In a region that is manual over some axes, positions are hidden in a region over the others.
module @automatic_axes {
  sdy.mesh @mesh = <["i"=4, "j"=2]>
  // CHECK-LABEL: module @automatic_axes
  // CHECK: @main(%arg0: tensor<2x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"i"}, {}]>}) -> (tensor<4xi32> {sdy.sharding = #sdy.sharding<@mesh, [{}]>}) attributes {sdy.manual_axes = #sdy<manual_axes{"i"}>}
  func.func public @main(%x: tensor<8x16xf32>) -> tensor<4xi32> {
    %0 = sdy.manual_computation(%x) in_shardings=[<@mesh, [{"i", ?}, {"j", ?}]>] out_shardings=[<@mesh, [{?}]>] manual_axes={"i"} (%b: tensor<2x16xf32>) {
      // CHECK-NEXT: %[[I:.*]] = stablehlo.custom_call @shmap.axis_index() {{.*}}axes = ["i"]
      // CHECK-NEXT: stablehlo.broadcast_in_dim %[[I]]
      %1 = sdy.manual_computation() in_shardings=[] out_shardings=[<@mesh, []>] manual_axes={"j"} () {
        %p = stablehlo.partition_id : tensor<ui32>
        %two = stablehlo.constant dense<2> : tensor<ui32>
        %q = stablehlo.divide %p, %two : tensor<ui32>
        %i = stablehlo.convert %q : (tensor<ui32>) -> tensor<i32>
        sdy.return %i : tensor<i32>
      } : () -> tensor<i32>
      %2 = stablehlo.broadcast_in_dim %1, dims = [] : (tensor<i32>) -> tensor<4xi32>
      sdy.return %2 : tensor<4xi32>
    } : (tensor<8x16xf32>) -> tensor<4xi32>
    return %0 : tensor<4xi32>
  }
}

// -----

module @regions_inside_stay_as_they_are {
  sdy.mesh @mesh = <["i"=4, "j"=2]>
  // CHECK-LABEL: module @regions_inside_stay_as_they_are
  func.func public @main(%x: tensor<8x16xf32>) -> tensor<8x16xf32> {
    // CHECK: sdy.manual_computation(%arg0) in_shardings=[<mesh<["i"=4, "j"=2]>, [{}, {"j"}]>]
    // CHECK: stablehlo.partition_id
    // CHECK: channel_handle
    %0 = sdy.manual_computation(%x) in_shardings=[<@mesh, [{"i"}, {}]>] out_shardings=[<@mesh, [{"i"}, {}]>] manual_axes={"i"} (%b: tensor<2x16xf32>) {
      %1 = sdy.manual_computation(%b) in_shardings=[<@mesh, [{}, {"j"}]>] out_shardings=[<@mesh, [{}, {"j"}]>] manual_axes={"j"} (%c: tensor<2x8xf32>) {
        %p = stablehlo.partition_id : tensor<ui32>
        %f = stablehlo.convert %p : (tensor<ui32>) -> tensor<f32>
        %g = stablehlo.broadcast_in_dim %f, dims = [] : (tensor<f32>) -> tensor<2x8xf32>
        %2 = "stablehlo.collective_permute"(%c) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, source_target_pairs = dense<[[0, 1]]> : tensor<1x2xi64>}> : (tensor<2x8xf32>) -> tensor<2x8xf32>
        %3 = stablehlo.add %2, %g : tensor<2x8xf32>
        sdy.return %3 : tensor<2x8xf32>
      } : (tensor<2x16xf32>) -> tensor<2x16xf32>
      sdy.return %1 : tensor<2x16xf32>
    } : (tensor<8x16xf32>) -> tensor<8x16xf32>
    return %0 : tensor<8x16xf32>
  }
}

// -----

// Tokens have no sharding. An argument that no region takes is split as its own sharding says.
module @tokens_and_unused_arguments {
  sdy.mesh @mesh = <["i"=4]>
  // CHECK-LABEL: module @tokens_and_unused_arguments
  // CHECK: @main(%arg0: !stablehlo.token {jax.token = true}, %arg1: tensor<2xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"i"}]>}, %arg2: tensor<8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}]>})
  // CHECK-SAME: -> (!stablehlo.token, tensor<2xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"i"}]>})
  func.func public @main(%t: !stablehlo.token {jax.token = true}, %x: tensor<8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"i"}]>}, %y: tensor<8xf32>) -> (!stablehlo.token, tensor<8xf32>) {
    %0 = sdy.manual_computation(%t) in_shardings=[<@mesh, []>] out_shardings=[<@mesh, []>] manual_axes={"i"} (%u: !stablehlo.token) {
      // CHECK-NEXT: stablehlo.custom_call @tell(%arg0)
      %v = stablehlo.custom_call @tell(%u) {has_side_effect = true} : (!stablehlo.token) -> !stablehlo.token
      sdy.return %v : !stablehlo.token
    } : (!stablehlo.token) -> !stablehlo.token
    return %0, %x : !stablehlo.token, tensor<8xf32>
  }
}

// -----

module @unreduced_results {
  sdy.mesh @mesh = <["i"=4, "j"=2]>
  // CHECK-LABEL: module @unreduced_results
  // CHECK: -> (tensor<2xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"j"}], unreduced={"i"}>})
  func.func public @main(%x: tensor<4xf32>) -> tensor<4xf32> {
    %0 = sdy.manual_computation(%x) in_shardings=[<@mesh, [{"j"}]>] out_shardings=[<@mesh, [{"j"}], unreduced={"i"}>] manual_axes={"i", "j"} (%b: tensor<2xf32>) {
      sdy.return %b : tensor<2xf32>
    } : (tensor<4xf32>) -> tensor<4xf32>
    return %0 : tensor<4xf32>
  }
}

// -----

module @functions_outside_of_regions {
  sdy.mesh @mesh = <["i"=4]>
  // CHECK-LABEL: module @functions_outside_of_regions
  // CHECK: stablehlo.sine %arg0 : tensor<2xf32>
  // CHECK-NOT: @sine
  func.func public @main(%x: tensor<8xf32>) -> tensor<8xf32> {
    %0 = call @sine(%x) : (tensor<8xf32>) -> tensor<8xf32>
    %1 = sdy.manual_computation(%0) in_shardings=[<@mesh, [{"i"}]>] out_shardings=[<@mesh, [{"i"}]>] manual_axes={"i"} (%b: tensor<2xf32>) {
      sdy.return %b : tensor<2xf32>
    } : (tensor<8xf32>) -> tensor<8xf32>
    return %1 : tensor<8xf32>
  }
  func.func private @sine(%x: tensor<8xf32>) -> tensor<8xf32> {
    %0 = stablehlo.sine %x : tensor<8xf32>
    return %0 : tensor<8xf32>
  }
}

// -----

// Full arrays that regions, or operations on whole arrays, want split in another way.
module @splits_that_change {
  sdy.mesh @mesh = <["i"=4]>
  // CHECK-LABEL: module @splits_that_change
  // CHECK: @main(%[[X:.*]]: tensor<2x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"i"}, {}]>})
  func.func public @main(%x: tensor<8x8xf32>) -> (tensor<8x8xf32>, tensor<8x8xf32>) {
    %0 = sdy.manual_computation(%x) in_shardings=[<@mesh, [{"i"}, {}]>] out_shardings=[<@mesh, [{"i"}, {}]>] manual_axes={"i"} (%b: tensor<2x8xf32>) {
      // CHECK-NEXT: %[[ROWS:.*]] = stablehlo.negate %[[X]] : tensor<2x8xf32>
      %1 = stablehlo.negate %b : tensor<2x8xf32>
      sdy.return %1 : tensor<2x8xf32>
    } : (tensor<8x8xf32>) -> tensor<8x8xf32>
    // CHECK-NEXT: %[[COLUMNS:.*]] = "stablehlo.all_to_all"(%[[ROWS]]) <{concat_dimension = 0 : i64, replica_groups = {{.*}} axes = [#stablehlo.axis_ref<name = "i">]>, split_count = 4 : i64, split_dimension = 1 : i64}> : (tensor<2x8xf32>) -> tensor<8x2xf32>
    %2 = sdy.manual_computation(%0) in_shardings=[<@mesh, [{}, {"i"}]>] out_shardings=[<@mesh, [{}, {"i"}]>] manual_axes={"i"} (%b: tensor<8x2xf32>) {
      // CHECK-NEXT: stablehlo.abs %[[COLUMNS]]
      %3 = stablehlo.abs %b : tensor<8x2xf32>
      sdy.return %3 : tensor<8x2xf32>
    } : (tensor<8x8xf32>) -> tensor<8x8xf32>
    // CHECK-NEXT: %[[WHOLE:.*]] = "stablehlo.all_gather"(%[[ROWS]]) <{all_gather_dim = 0 : i64, {{.*}}}> : (tensor<2x8xf32>) -> tensor<8x8xf32>
    // CHECK-NEXT: %[[REVERSED:.*]] = stablehlo.reverse %[[WHOLE]]
    %4 = stablehlo.reverse %0, dims = [0] : tensor<8x8xf32>
    // CHECK-NEXT: %[[INDEX:.*]] = stablehlo.custom_call @shmap.axis_index()
    // CHECK: %[[START:.*]] = stablehlo.multiply %[[INDEX]]
    // CHECK: %[[OWN:.*]] = stablehlo.dynamic_slice %[[REVERSED]], %{{.*}}, %[[START]], sizes = [8, 2]
    %5 = sdy.manual_computation(%4) in_shardings=[<@mesh, [{}, {"i"}]>] out_shardings=[<@mesh, [{}, {"i"}]>] manual_axes={"i"} (%b: tensor<8x2xf32>) {
      // CHECK-NEXT: stablehlo.negate %[[OWN]]
      %6 = stablehlo.negate %b : tensor<8x2xf32>
      sdy.return %6 : tensor<8x2xf32>
    } : (tensor<8x8xf32>) -> tensor<8x8xf32>
    return %2, %5 : tensor<8x8xf32>, tensor<8x8xf32>
  }
}

// -----

module @constants_that_differ_between_blocks {
  sdy.mesh @mesh = <["i"=4]>
  // CHECK-LABEL: module @constants_that_differ_between_blocks
  func.func public @main() -> tensor<4xf32> {
    // CHECK: %[[ALL:.*]] = stablehlo.constant dense<[1.000000e+00, 2.000000e+00, 3.000000e+00, 4.000000e+00]>
    // CHECK: stablehlo.dynamic_slice %[[ALL]], %{{.*}}, sizes = [1]
    %0 = stablehlo.constant dense<[1.0, 2.0, 3.0, 4.0]> : tensor<4xf32>
    %1 = sdy.manual_computation(%0) in_shardings=[<@mesh, [{"i"}]>] out_shardings=[<@mesh, [{"i"}]>] manual_axes={"i"} (%b: tensor<1xf32>) {
      sdy.return %b : tensor<1xf32>
    } : (tensor<4xf32>) -> tensor<4xf32>
    return %1 : tensor<4xf32>
  }
}

// -----

// The only public function becomes @main. Shardy's collectives say how full arrays are split, and sum
// blocks; over automatic axes they constrain.
module @collectives_of_shardy {
  sdy.mesh @mesh = <["i"=4, "j"=2]>
  // CHECK-LABEL: module @collectives_of_shardy {
  // CHECK: func.func public @main(%arg0: tensor<2x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"i"}, {}]>})
  // CHECK-SAME: -> (tensor<2x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>})
  // CHECK-NEXT: %[[SUM:.*]] = "stablehlo.all_reduce"(%arg0) <{replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>}>
  // CHECK: stablehlo.add
  // CHECK: sdy.sharding_constraint %[[SUM]]
  // CHECK-NOT: sdy.all
  // CHECK-NOT: sdy.prop
  func.func public @step(%x: tensor<8x8xf32>) -> tensor<2x8xf32> {
    %y = sdy.all_slice [{"i"}, {}] %x out_sharding=<@mesh, [{"i"}, {}]> : tensor<8x8xf32>
    %w = sdy.propagation_barrier %y allowed_direction=FORWARD : tensor<8x8xf32>
    %0 = sdy.manual_computation(%w) in_shardings=[<@mesh, [{"i"}, {}]>] out_shardings=[<@mesh, [{}, {}]>] manual_axes={"i"} (%b: tensor<2x8xf32>) {
      %1 = sdy.all_reduce {"i"} %b out_sharding=<@mesh, [{}, {}]> : tensor<2x8xf32>
      %2 = sdy.all_slice [{}, {"j"}] %1 out_sharding=<@mesh, [{}, {"j"}]> : tensor<2x8xf32>
      sdy.return %2 : tensor<2x8xf32>
    } : (tensor<8x8xf32>) -> tensor<2x8xf32>
    return %0 : tensor<2x8xf32>
  }
}

// -----

// What a file holds apart from its operations cannot be read: the table stays.
module @tables_that_cannot_be_read {
  sdy.mesh @mesh = <["i"=4]>
  // CHECK-LABEL: module @tables_that_cannot_be_read
  func.func public @main(%x: tensor<4xi32>) -> tensor<4xi32> {
    // CHECK: %[[WHOLE:.*]] = stablehlo.constant dense_resource<numbers> : tensor<4xi32>
    // CHECK: stablehlo.dynamic_slice %[[WHOLE]]
    %whole = stablehlo.constant dense_resource<numbers> : tensor<4xi32>
    %y = stablehlo.add %x, %whole : tensor<4xi32>
    %0 = sdy.manual_computation(%y) in_shardings=[<@mesh, [{"i"}]>] out_shardings=[<@mesh, [{"i"}]>] manual_axes={"i"} (%b: tensor<1xi32>) {
      // CHECK: %[[INDEX:.*]] = stablehlo.custom_call @shmap.axis_index()
      // CHECK-NEXT: %[[P:.*]] = stablehlo.convert %[[INDEX]] : (tensor<i32>) -> tensor<ui32>
      // CHECK: %[[TABLE:.*]] = stablehlo.constant dense_resource<numbers> : tensor<4xi32>
      // CHECK-NEXT: stablehlo.dynamic_slice %[[TABLE]], %[[P]], sizes = [1]
      %p = stablehlo.partition_id : tensor<ui32>
      %table = stablehlo.constant dense_resource<numbers> : tensor<4xi32>
      %k = stablehlo.dynamic_slice %table, %p, sizes = [1] : (tensor<4xi32>, tensor<ui32>) -> tensor<1xi32>
      %1 = stablehlo.add %b, %k : tensor<1xi32>
      sdy.return %1 : tensor<1xi32>
    } : (tensor<4xi32>) -> tensor<4xi32>
    return %0 : tensor<4xi32>
  }
}

{-#
  dialect_resources: {
    builtin: {
      numbers: "0x0400000000000000010000000200000003000000"
    }
  }
#-}

// -----

// A hint in the reduction of a collective, as JAX writes it beside automatic axes, is erased.
module @hint_in_a_reduction {
  // CHECK-LABEL: module @hint_in_a_reduction
  sdy.mesh @mesh = <["i"=4, "j"=2]>
  func.func public @main(%x: tensor<8x16xf32>) -> tensor<2x16xf32> {
    %0 = sdy.manual_computation(%x) in_shardings=[<@mesh, [{"i", ?}, {?}]>] out_shardings=[<@mesh, [{?}, {?}]>] manual_axes={"i"} (%b: tensor<2x16xf32>) {
      // CHECK: "stablehlo.all_reduce"
      // CHECK-NEXT: ^bb0
      // CHECK-NEXT: %[[SUM:.*]] = stablehlo.add
      // CHECK-NEXT: stablehlo.return %[[SUM]]
      %1 = "stablehlo.all_reduce"(%b) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, replica_groups = dense<[[0, 2, 4, 6], [1, 3, 5, 7]]> : tensor<2x4xi64>, use_global_device_ids}> ({
      ^bb0(%l: tensor<f32>, %r: tensor<f32>):
        %s = stablehlo.add %l, %r : tensor<f32>
        %t = sdy.sharding_constraint %s <@mesh, []> : tensor<f32>
        stablehlo.return %t : tensor<f32>
      }) : (tensor<2x16xf32>) -> tensor<2x16xf32>
      sdy.return %1 : tensor<2x16xf32>
    } : (tensor<8x16xf32>) -> tensor<2x16xf32>
    return %0 : tensor<2x16xf32>
  }
}
