// RUN: shmap-opt %s --shmap-check-replication --mlir-print-ir-after-all --split-input-file 2>&1 | FileCheck %s

// A module that is accepted comes out as it was.
// CHECK: IR Dump After shmap-check-replication
// CHECK-LABEL: module @a_sum_is_equal_along_its_axes
module @a_sum_is_equal_along_its_axes {
  sdy.mesh @mesh = <["i"=4, "j"=2]>
  func.func public @main(%x: tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"i"}]>}) -> (tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}]>}) attributes {sdy.manual_axes = #sdy<manual_axes{"i", "j"}>} {
    %0 = "stablehlo.all_reduce"(%x) <{replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>}> ({
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %s = stablehlo.add %a, %b : tensor<f32>
      stablehlo.return %s : tensor<f32>
    }) : (tensor<4xf32>) -> tensor<4xf32>
    return %0 : tensor<4xf32>
  }
}

// -----

// CHECK-LABEL: module @what_is_gathered_is_equal_along_its_axes
module @what_is_gathered_is_equal_along_its_axes {
  sdy.mesh @mesh = <["i"=4, "j"=2]>
  func.func public @main(%x: tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"i"}]>}) -> (tensor<32xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}]>}) attributes {sdy.manual_axes = #sdy<manual_axes{"i", "j"}>} {
    %0 = "stablehlo.all_gather"(%x) <{all_gather_dim = 0 : i64, replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "j">, #stablehlo.axis_ref<name = "i">]>}> : (tensor<4xf32>) -> tensor<32xf32>
    return %0 : tensor<32xf32>
  }
}

// -----

// CHECK-LABEL: module @what_is_mentioned_may_vary
module @what_is_mentioned_may_vary {
  sdy.mesh @mesh = <["i"=4, "j"=2]>
  func.func public @main(%x: tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"i"}]>}) -> (tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"j", "i"}]>}) attributes {sdy.manual_axes = #sdy<manual_axes{"i", "j"}>} {
    %0 = stablehlo.negate %x : tensor<4xf32>
    return %0 : tensor<4xf32>
  }
}

// -----

// CHECK-LABEL: module @an_axis_of_size_one_hides_nothing
module @an_axis_of_size_one_hides_nothing {
  sdy.mesh @mesh = <["i"=1, "j"=8]>
  func.func public @main(%x: tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"i"}]>}) -> (tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}]>}) attributes {sdy.manual_axes = #sdy<manual_axes{"i", "j"}>} {
    %0 = stablehlo.negate %x : tensor<4xf32>
    return %0 : tensor<4xf32>
  }
}

// -----

// CHECK-LABEL: module @automatic_and_outer_axes_are_not_ours_to_check
module @automatic_and_outer_axes_are_not_ours_to_check {
  sdy.mesh @mesh = <["i"=4, "j"=2]>
  func.func public @main(%x: tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}]>}) -> (tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}]>}) attributes {sdy.manual_axes = #sdy<manual_axes{"j"}>, shmap.outer_manual_axes = ["i"]} {
    %0 = stablehlo.negate %x : tensor<4xf32>
    return %0 : tensor<4xf32>
  }
}

// -----

// CHECK-LABEL: module @results_without_elements_are_equal
module @results_without_elements_are_equal {
  sdy.mesh @mesh = <["i"=4, "j"=2]>
  func.func public @main(%x: tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"i"}]>}) -> (tensor<0xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}]>}) attributes {sdy.manual_axes = #sdy<manual_axes{"i", "j"}>} {
    %0 = stablehlo.slice %x [0:0] : (tensor<4xf32>) -> tensor<0xf32>
    return %0 : tensor<0xf32>
  }
}

// -----

// Every pair of groups holds the blocks of both places along "i" and "j", so that nothing varies.
// CHECK-LABEL: module @a_sum_in_groups_that_mix_two_axes
module @a_sum_in_groups_that_mix_two_axes {
  sdy.mesh @mesh = <["i"=2, "j"=2]>
  func.func public @main(%x: tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"i"}]>}) -> (tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}]>}) attributes {sdy.manual_axes = #sdy<manual_axes{"i", "j"}>} {
    %0 = "stablehlo.all_reduce"(%x) <{replica_groups = dense<[[0, 3], [1, 2]]> : tensor<2x2xi64>}> ({
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %s = stablehlo.add %a, %b : tensor<f32>
      stablehlo.return %s : tensor<f32>
    }) : (tensor<4xf32>) -> tensor<4xf32>
    return %0 : tensor<4xf32>
  }
}

// -----

// CHECK-LABEL: module @a_permutation_from_equal_blocks_to_all_devices
module @a_permutation_from_equal_blocks_to_all_devices {
  sdy.mesh @mesh = <["i"=2, "j"=2]>
  func.func public @main(%x: tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"i"}]>}) -> (tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"i"}]>}) attributes {sdy.manual_axes = #sdy<manual_axes{"i", "j"}>} {
    %0 = "stablehlo.collective_permute"(%x) <{source_target_pairs = dense<[[0, 1], [1, 0], [2, 3], [3, 2]]> : tensor<4x2xi64>}> : (tensor<4xf32>) -> tensor<4xf32>
    return %0 : tensor<4xf32>
  }
}

// -----

// CHECK-LABEL: module @a_broadcast_is_equal_along_its_axes
module @a_broadcast_is_equal_along_its_axes {
  sdy.mesh @mesh = <["i"=4, "j"=2]>
  func.func public @main(%x: tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"i"}]>}) -> (tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}]>}) attributes {sdy.manual_axes = #sdy<manual_axes{"i", "j"}>} {
    %0 = "stablehlo.collective_broadcast"(%x) <{replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>}> : (tensor<4xf32>) -> tensor<4xf32>
    return %0 : tensor<4xf32>
  }
}

// -----

// CHECK-LABEL: module @a_loop_that_carries_equal_values
module @a_loop_that_carries_equal_values {
  sdy.mesh @mesh = <["i"=4, "j"=2]>
  func.func public @main(%x: tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"i"}]>}) -> (tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}]>}) attributes {sdy.manual_axes = #sdy<manual_axes{"i", "j"}>} {
    %zero = stablehlo.constant dense<0> : tensor<i32>
    %start = stablehlo.constant dense<0.0> : tensor<4xf32>
    %n, %v = stablehlo.while(%k = %zero, %w = %start) : tensor<i32>, tensor<4xf32>
    cond {
      %limit = stablehlo.constant dense<3> : tensor<i32>
      %more = stablehlo.compare LT, %k, %limit : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %more : tensor<i1>
    } do {
      %one = stablehlo.constant dense<1> : tensor<i32>
      %next = stablehlo.add %k, %one : tensor<i32>
      %total = "stablehlo.all_reduce"(%x) <{replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>}> ({
      ^bb0(%a: tensor<f32>, %b: tensor<f32>):
        %s = stablehlo.add %a, %b : tensor<f32>
        stablehlo.return %s : tensor<f32>
      }) : (tensor<4xf32>) -> tensor<4xf32>
      %sum = stablehlo.add %w, %total : tensor<4xf32>
      stablehlo.return %next, %sum : tensor<i32>, tensor<4xf32>
    }
    return %v : tensor<4xf32>
  }
}

// -----

// CHECK-LABEL: module @a_carry_that_no_step_changes
module @a_carry_that_no_step_changes {
  sdy.mesh @mesh = <["i"=4, "j"=2]>
  func.func public @main(%x: tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"i"}]>}) -> (tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}]>}) attributes {sdy.manual_axes = #sdy<manual_axes{"i", "j"}>} {
    %i = stablehlo.custom_call @shmap.axis_index() {api_version = 4 : i32, backend_config = {axes = ["i"]}} : () -> tensor<i32>
    %start = stablehlo.constant dense<0.0> : tensor<4xf32>
    %n, %v = stablehlo.while(%k = %i, %w = %start) : tensor<i32>, tensor<4xf32>
    cond {
      %limit = stablehlo.constant dense<3> : tensor<i32>
      %more = stablehlo.compare LT, %k, %limit : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %more : tensor<i1>
    } do {
      %one = stablehlo.constant dense<1> : tensor<i32>
      %next = stablehlo.add %k, %one : tensor<i32>
      stablehlo.return %next, %w : tensor<i32>, tensor<4xf32>
    }
    return %v : tensor<4xf32>
  }
}

// -----

// CHECK-LABEL: module @branches_that_return_one_value
module @branches_that_return_one_value {
  sdy.mesh @mesh = <["i"=4, "j"=2]>
  func.func public @main(%x: tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"i"}]>}) -> (tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}]>}) attributes {sdy.manual_axes = #sdy<manual_axes{"i", "j"}>} {
    %i = stablehlo.custom_call @shmap.axis_index() {api_version = 4 : i32, backend_config = {axes = ["i"]}} : () -> tensor<i32>
    %0 = stablehlo.constant dense<0.0> : tensor<4xf32>
    %1 = "stablehlo.case"(%i) ({
      stablehlo.return %0 : tensor<4xf32>
    }, {
      stablehlo.return %0 : tensor<4xf32>
    }) : (tensor<i32>) -> tensor<4xf32>
    return %1 : tensor<4xf32>
  }
}

// -----

// CHECK-LABEL: module @branches_of_equal_values_by_an_equal_predicate
module @branches_of_equal_values_by_an_equal_predicate {
  sdy.mesh @mesh = <["i"=4, "j"=2]>
  func.func public @main(%x: tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"i"}]>}) -> (tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}]>}) attributes {sdy.manual_axes = #sdy<manual_axes{"i", "j"}>} {
    %p = stablehlo.constant dense<true> : tensor<i1>
    %1 = "stablehlo.if"(%p) ({
      %0 = "stablehlo.all_reduce"(%x) <{replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>}> ({
      ^bb0(%a: tensor<f32>, %b: tensor<f32>):
        %s = stablehlo.add %a, %b : tensor<f32>
        stablehlo.return %s : tensor<f32>
      }) : (tensor<4xf32>) -> tensor<4xf32>
      stablehlo.return %0 : tensor<4xf32>
    }, {
      %0 = stablehlo.constant dense<0.0> : tensor<4xf32>
      stablehlo.return %0 : tensor<4xf32>
    }) : (tensor<i1>) -> tensor<4xf32>
    return %1 : tensor<4xf32>
  }
}

// -----

// CHECK-LABEL: module @a_function_is_looked_at_for_each_call
module @a_function_is_looked_at_for_each_call {
  sdy.mesh @mesh = <["i"=4, "j"=2]>
  func.func public @main(%x: tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"i"}]>}) -> (tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}]>}) attributes {sdy.manual_axes = #sdy<manual_axes{"i", "j"}>} {
    %0 = "stablehlo.all_reduce"(%x) <{replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>}> ({
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %s = stablehlo.add %a, %b : tensor<f32>
      stablehlo.return %s : tensor<f32>
    }) : (tensor<4xf32>) -> tensor<4xf32>
    %1 = call @twice(%x) : (tensor<4xf32>) -> tensor<4xf32>
    %2 = call @twice(%0) : (tensor<4xf32>) -> tensor<4xf32>
    return %2 : tensor<4xf32>
  }
  func.func private @twice(%x: tensor<4xf32>) -> tensor<4xf32> {
    %0 = stablehlo.add %x, %x : tensor<4xf32>
    return %0 : tensor<4xf32>
  }
}

// -----

// CHECK-LABEL: module @a_call_of_a_numerical_library
module @a_call_of_a_numerical_library {
  sdy.mesh @mesh = <["i"=4, "j"=2]>
  func.func public @main(%x: tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"i"}]>}) -> (tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}]>}) attributes {sdy.manual_axes = #sdy<manual_axes{"i", "j"}>} {
    %0 = "stablehlo.all_reduce"(%x) <{replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>}> ({
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %s = stablehlo.add %a, %b : tensor<f32>
      stablehlo.return %s : tensor<f32>
    }) : (tensor<4xf32>) -> tensor<4xf32>
    %1 = stablehlo.custom_call @lapack_sgetrf_ffi(%0) : (tensor<4xf32>) -> tensor<4xf32>
    return %1 : tensor<4xf32>
  }
}

// -----

// CHECK-LABEL: module @tokens_carry_no_sharding
module @tokens_carry_no_sharding {
  sdy.mesh @mesh = <["i"=4, "j"=2]>
  func.func public @main(%token: !stablehlo.token) -> (!stablehlo.token, tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}]>}) attributes {sdy.manual_axes = #sdy<manual_axes{"i", "j"}>} {
    %c = stablehlo.constant dense<0.0> : tensor<4xf32>
    return %token, %c : !stablehlo.token, tensor<4xf32>
  }
}

// -----

// CHECK-LABEL: module @a_nested_region_ends_what_varies_along_its_axes
module @a_nested_region_ends_what_varies_along_its_axes {
  sdy.mesh @mesh = <["i"=4, "j"=2]>
  func.func public @main(%x: tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}]>}) -> (tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}]>}) attributes {sdy.manual_axes = #sdy<manual_axes{"i"}>} {
    %0 = sdy.manual_computation(%x) in_shardings=[<@mesh, [{"j"}]>] out_shardings=[<@mesh, [{"j"}]>] manual_axes={"j"} (%y: tensor<2xf32>) {
      %z = stablehlo.negate %y : tensor<2xf32>
      sdy.return %z : tensor<2xf32>
    } : (tensor<4xf32>) -> tensor<4xf32>
    return %0 : tensor<4xf32>
  }
}

// -----

// CHECK-LABEL: module @summands_may_differ_where_the_result_is_unreduced
module @summands_may_differ_where_the_result_is_unreduced {
  sdy.mesh @mesh = <["i"=4, "j"=2]>
  func.func public @main(%x: tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"i"}]>}) -> (tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}], unreduced={"i"}>}) attributes {sdy.manual_axes = #sdy<manual_axes{"i", "j"}>} {
    return %x : tensor<4xf32>
  }
}

// -----

// Both groups hold all blocks along "i", in another order, and send that of their first device.
// CHECK-LABEL: module @a_broadcast_in_groups_whose_first_devices_hold_one_block
module @a_broadcast_in_groups_whose_first_devices_hold_one_block {
  sdy.mesh @mesh = <["i"=3, "j"=2]>
  func.func public @main(%x: tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"i"}]>}) -> (tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}]>}) attributes {sdy.manual_axes = #sdy<manual_axes{"i", "j"}>} {
    %0 = "stablehlo.collective_broadcast"(%x) <{replica_groups = dense<[[0, 2, 4], [1, 5, 3]]> : tensor<2x3xi64>}> : (tensor<4xf32>) -> tensor<4xf32>
    return %0 : tensor<4xf32>
  }
}
