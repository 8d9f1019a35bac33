// RUN: shmap-opt %s --shmap-check-replication --split-input-file --verify-diagnostics

module @an_argument_that_is_split {
  sdy.mesh @mesh = <["i"=4, "j"=2]>
  // expected-error @+2 {{@main's result 0, tensor<4xf32>: may differ between devices along "i", which its sharding does not mention; mention the axis there, or make the blocks equal before they are returned, by an all_reduce or all_gather over "i"}}
  // expected-note @+1 {{it varies along "i" since argument 0, which devices along the axis hold parts of}}
  func.func public @main(%x: tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"i"}]>})
      -> (tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}]>})
      attributes {sdy.manual_axes = #sdy<manual_axes{"i", "j"}>} {
    return %x : tensor<4xf32>
  }
}

// -----

module @an_axis_index {
  sdy.mesh @mesh = <["i"=4, "j"=2]>
  func.func public @main(%x: tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}]>})
      -> (tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}]>})
      attributes {sdy.manual_axes = #sdy<manual_axes{"i", "j"}>} {
    // expected-note @+1 {{it varies along "i" since this custom_call}}
    %i = stablehlo.custom_call @shmap.axis_index() {api_version = 4 : i32, backend_config = {axes = ["i"]}} : () -> tensor<i32>
    %f = stablehlo.convert %i : (tensor<i32>) -> tensor<f32>
    // expected-error @+1 {{@main's result 0, tensor<4xf32>: may differ between devices along "i", which}}
    %0 = stablehlo.broadcast_in_dim %f, dims = [] : (tensor<f32>) -> tensor<4xf32>
    return %0 : tensor<4xf32>
  }
}

// -----

module @a_sum_over_another_axis {
  sdy.mesh @mesh = <["i"=4, "j"=2]>
  func.func public @main(%x: tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"i", "j"}]>})
      -> (tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}]>})
      attributes {sdy.manual_axes = #sdy<manual_axes{"i", "j"}>} {
    // expected-error @+1 {{@main's result 0, tensor<4xf32>: may differ between devices along "i", which}}
    %0 = "stablehlo.all_reduce"(%x) <{replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "j">]>}> ({
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %s = stablehlo.add %a, %b : tensor<f32>
      stablehlo.return %s : tensor<f32>
    }) : (tensor<4xf32>) -> tensor<4xf32>
    return %0 : tensor<4xf32>
  }
}

// -----

module @a_part_for_each_device {
  sdy.mesh @mesh = <["i"=4, "j"=2]>
  func.func public @main(%x: tensor<16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}]>})
      -> (tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}]>})
      attributes {sdy.manual_axes = #sdy<manual_axes{"i", "j"}>} {
    // expected-error @+2 {{@main's result 0, tensor<4xf32>: may differ between devices along "i", which}}
    // expected-note @+1 {{it varies along "i" since this reduce_scatter}}
    %0 = "stablehlo.reduce_scatter"(%x) <{scatter_dimension = 0 : i64, replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>}> ({
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %s = stablehlo.add %a, %b : tensor<f32>
      stablehlo.return %s : tensor<f32>
    }) : (tensor<16xf32>) -> tensor<4xf32>
    return %0 : tensor<4xf32>
  }
}

// -----

module @an_exchange_of_parts {
  sdy.mesh @mesh = <["i"=4, "j"=2]>
  func.func public @main(%x: tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}]>})
      -> (tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}]>})
      attributes {sdy.manual_axes = #sdy<manual_axes{"i", "j"}>} {
    // expected-error @+2 {{@main's result 0, tensor<4xf32>: may differ between devices along "i", which}}
    // expected-note @+1 {{it varies along "i" since this all_to_all}}
    %0 = "stablehlo.all_to_all"(%x) <{split_dimension = 0 : i64, concat_dimension = 0 : i64, split_count = 4 : i64, replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>}> : (tensor<4xf32>) -> tensor<4xf32>
    return %0 : tensor<4xf32>
  }
}

// -----

module @a_permutation_that_leaves_devices_without_data {
  sdy.mesh @mesh = <["i"=4]>
  func.func public @main(%x: tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}]>})
      -> (tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}]>})
      attributes {sdy.manual_axes = #sdy<manual_axes{"i"}>} {
    // expected-error @+2 {{@main's result 0, tensor<4xf32>: may differ between devices along "i", which}}
    // expected-note @+1 {{it varies along "i" since this collective_permute}}
    %0 = "stablehlo.collective_permute"(%x) <{source_target_pairs = dense<[[0, 2]]> : tensor<1x2xi64>}> : (tensor<4xf32>) -> tensor<4xf32>
    return %0 : tensor<4xf32>
  }
}

// -----

module @a_sum_in_groups_along_half_an_axis {
  sdy.mesh @mesh = <["i"=4]>
  func.func public @main(%x: tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"i"}]>})
      -> (tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}]>})
      attributes {sdy.manual_axes = #sdy<manual_axes{"i"}>} {
    // expected-error @+1 {{@main's result 0, tensor<4xf32>: may differ between devices along "i", which}}
    %0 = "stablehlo.all_reduce"(%x) <{replica_groups = dense<[[0, 1], [2, 3]]> : tensor<2x2xi64>}> ({
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %s = stablehlo.add %a, %b : tensor<f32>
      stablehlo.return %s : tensor<f32>
    }) : (tensor<4xf32>) -> tensor<4xf32>
    return %0 : tensor<4xf32>
  }
}

// -----

module @a_foreign_call {
  sdy.mesh @mesh = <["i"=4]>
  func.func public @main(%x: tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}]>})
      -> (tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}]>})
      attributes {sdy.manual_axes = #sdy<manual_axes{"i"}>} {
    // expected-error @+2 {{@main's result 0, tensor<4xf32>: may differ between devices along "i", which}}
    // expected-note @+1 {{it varies along "i" since this custom_call}}
    %0 = stablehlo.custom_call @my_kernel(%x) : (tensor<4xf32>) -> tensor<4xf32>
    return %0 : tensor<4xf32>
  }
}

// -----

module @a_call_of_a_library_with_effects {
  sdy.mesh @mesh = <["i"=4]>
  func.func public @main(%x: tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}]>})
      -> (tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}]>})
      attributes {sdy.manual_axes = #sdy<manual_axes{"i"}>} {
    // expected-error @+2 {{@main's result 0, tensor<4xf32>: may differ between devices along "i", which}}
    // expected-note @+1 {{it varies along "i" since this custom_call}}
    %0 = stablehlo.custom_call @lapack_sgetrf_ffi(%x) {has_side_effect = true} : (tensor<4xf32>) -> tensor<4xf32>
    return %0 : tensor<4xf32>
  }
}

// -----

module @random_numbers_of_the_device_s_own {
  sdy.mesh @mesh = <["i"=4]>
  func.func public @main(%x: tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}]>})
      -> (tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}]>})
      attributes {sdy.manual_axes = #sdy<manual_axes{"i"}>} {
    %lo = stablehlo.constant dense<0.0> : tensor<f32>
    %shape = stablehlo.constant dense<4> : tensor<1xi64>
    // expected-error @+2 {{@main's result 0, tensor<4xf32>: may differ between devices along "i", which}}
    // expected-note @+1 {{it varies along "i" since this rng}}
    %0 = stablehlo.rng %lo, %lo, %shape, distribution = UNIFORM : (tensor<f32>, tensor<f32>, tensor<1xi64>) -> tensor<4xf32>
    return %0 : tensor<4xf32>
  }
}

// -----

module @the_id_of_the_device {
  sdy.mesh @mesh = <["i"=4]>
  func.func public @main(%x: tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}]>})
      -> (tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}]>})
      attributes {sdy.manual_axes = #sdy<manual_axes{"i"}>} {
    // expected-note @+1 {{it varies along "i" since this partition_id}}
    %p = stablehlo.partition_id : tensor<ui32>
    %f = stablehlo.convert %p : (tensor<ui32>) -> tensor<f32>
    // expected-error @+1 {{@main's result 0, tensor<4xf32>: may differ between devices along "i", which}}
    %0 = stablehlo.broadcast_in_dim %f, dims = [] : (tensor<f32>) -> tensor<4xf32>
    return %0 : tensor<4xf32>
  }
}

// -----

module @a_value_that_a_reduction_captures {
  sdy.mesh @mesh = <["i"=4, "j"=2]>
  func.func public @main(%x: tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}]>})
      -> (tensor<f32> {sdy.sharding = #sdy.sharding<@mesh, []>})
      attributes {sdy.manual_axes = #sdy<manual_axes{"i", "j"}>} {
    // expected-note @+1 {{it varies along "i" since this custom_call}}
    %i = stablehlo.custom_call @shmap.axis_index() {api_version = 4 : i32, backend_config = {axes = ["i"]}} : () -> tensor<i32>
    %f = stablehlo.convert %i : (tensor<i32>) -> tensor<f32>
    %zero = stablehlo.constant dense<0.0> : tensor<f32>
    // expected-error @+1 {{@main's result 0, tensor<f32>: may differ between devices along "i", which}}
    %0 = stablehlo.reduce(%x init: %zero) across dimensions = [0] : (tensor<4xf32>, tensor<f32>) -> tensor<f32>
      reducer(%a: tensor<f32>, %b: tensor<f32>) {
        %s = stablehlo.add %a, %f : tensor<f32>
        stablehlo.return %s : tensor<f32>
      }
    return %0 : tensor<f32>
  }
}

// -----

module @a_step_of_a_loop {
  sdy.mesh @mesh = <["i"=4, "j"=2]>
  func.func public @main(%x: tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}]>})
      -> (tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}]>})
      attributes {sdy.manual_axes = #sdy<manual_axes{"i", "j"}>} {
    %zero = stablehlo.constant dense<0> : tensor<i32>
    // expected-error @+1 {{@main's result 0, tensor<4xf32>: may differ between devices along "i", which}}
    %n, %v = stablehlo.while(%k = %zero, %w = %x) : tensor<i32>, tensor<4xf32>
    cond {
      %limit = stablehlo.constant dense<3> : tensor<i32>
      %more = stablehlo.compare LT, %k, %limit : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %more : tensor<i1>
    } do {
      %one = stablehlo.constant dense<1> : tensor<i32>
      %next = stablehlo.add %k, %one : tensor<i32>
      // expected-note @+1 {{it varies along "i" since this custom_call}}
      %i = stablehlo.custom_call @shmap.axis_index() {api_version = 4 : i32, backend_config = {axes = ["i"]}} : () -> tensor<i32>
      %f = stablehlo.convert %i : (tensor<i32>) -> tensor<f32>
      %b = stablehlo.broadcast_in_dim %f, dims = [] : (tensor<f32>) -> tensor<4xf32>
      %sum = stablehlo.add %w, %b : tensor<4xf32>
      stablehlo.return %next, %sum : tensor<i32>, tensor<4xf32>
    }
    return %v : tensor<4xf32>
  }
}

// -----

module @the_number_of_steps {
  sdy.mesh @mesh = <["i"=4, "j"=2]>
  func.func public @main(%x: tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}]>})
      -> (tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}]>})
      attributes {sdy.manual_axes = #sdy<manual_axes{"i", "j"}>} {
    // expected-note @+1 {{it varies along "i" since this custom_call}}
    %i = stablehlo.custom_call @shmap.axis_index() {api_version = 4 : i32, backend_config = {axes = ["i"]}} : () -> tensor<i32>
    %zero = stablehlo.constant dense<0> : tensor<i32>
    // expected-error @+1 {{@main's result 0, tensor<4xf32>: may differ between devices along "i", which}}
    %n, %v = stablehlo.while(%k = %zero, %w = %x) : tensor<i32>, tensor<4xf32>
    cond {
      %limit = stablehlo.constant dense<3> : tensor<i32>
      %more = stablehlo.compare LT, %k, %i : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %more : tensor<i1>
    } do {
      %one = stablehlo.constant dense<1> : tensor<i32>
      %next = stablehlo.add %k, %one : tensor<i32>
      %sum = stablehlo.add %w, %w : tensor<4xf32>
      stablehlo.return %next, %sum : tensor<i32>, tensor<4xf32>
    }
    return %v : tensor<4xf32>
  }
}

// -----

module @the_predicate_of_branches {
  sdy.mesh @mesh = <["i"=4, "j"=2]>
  func.func public @main(%x: tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}]>})
      -> (tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}]>})
      attributes {sdy.manual_axes = #sdy<manual_axes{"i", "j"}>} {
    // expected-note @+1 {{it varies along "i" since this custom_call}}
    %i = stablehlo.custom_call @shmap.axis_index() {api_version = 4 : i32, backend_config = {axes = ["i"]}} : () -> tensor<i32>
    // expected-error @+1 {{@main's result 0, tensor<4xf32>: may differ between devices along "i", which}}
    %0 = "stablehlo.case"(%i) ({
      stablehlo.return %x : tensor<4xf32>
    }, {
      %1 = stablehlo.negate %x : tensor<4xf32>
      stablehlo.return %1 : tensor<4xf32>
    }) : (tensor<i32>) -> tensor<4xf32>
    return %0 : tensor<4xf32>
  }
}

// -----

module @one_of_the_branches {
  sdy.mesh @mesh = <["i"=4, "j"=2]>
  func.func public @main(%x: tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}]>})
      -> (tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}]>})
      attributes {sdy.manual_axes = #sdy<manual_axes{"i", "j"}>} {
    %p = stablehlo.constant dense<true> : tensor<i1>
    // expected-error @+1 {{@main's result 0, tensor<4xf32>: may differ between devices along "i", which}}
    %0 = "stablehlo.if"(%p) ({
      // expected-note @+1 {{it varies along "i" since this custom_call}}
      %i = stablehlo.custom_call @shmap.axis_index() {api_version = 4 : i32, backend_config = {axes = ["i"]}} : () -> tensor<i32>
      %f = stablehlo.convert %i : (tensor<i32>) -> tensor<f32>
      %1 = stablehlo.broadcast_in_dim %f, dims = [] : (tensor<f32>) -> tensor<4xf32>
      stablehlo.return %1 : tensor<4xf32>
    }, {
      stablehlo.return %x : tensor<4xf32>
    }) : (tensor<i1>) -> tensor<4xf32>
    return %0 : tensor<4xf32>
  }
}

// -----

module @a_call {
  sdy.mesh @mesh = <["i"=4, "j"=2]>
  func.func public @main(%x: tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}]>})
      -> (tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}]>})
      attributes {sdy.manual_axes = #sdy<manual_axes{"i", "j"}>} {
    // expected-note @+1 {{it varies along "i" since this custom_call}}
    %i = stablehlo.custom_call @shmap.axis_index() {api_version = 4 : i32, backend_config = {axes = ["i"]}} : () -> tensor<i32>
    // expected-error @+1 {{@main's result 0, tensor<4xf32>: may differ between devices along "i", which}}
    %0 = call @spread(%i) : (tensor<i32>) -> tensor<4xf32>
    return %0 : tensor<4xf32>
  }
  func.func private @spread(%i: tensor<i32>) -> tensor<4xf32> {
    %f = stablehlo.convert %i : (tensor<i32>) -> tensor<f32>
    %0 = stablehlo.broadcast_in_dim %f, dims = [] : (tensor<f32>) -> tensor<4xf32>
    return %0 : tensor<4xf32>
  }
}

// -----

module @a_source_inside_a_function {
  sdy.mesh @mesh = <["i"=4, "j"=2]>
  func.func public @main(%x: tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}]>})
      -> (tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}]>})
      attributes {sdy.manual_axes = #sdy<manual_axes{"i", "j"}>} {
    // expected-error @+1 {{@main's result 0, tensor<4xf32>: may differ between devices along "i", which}}
    %0 = call @index() : () -> tensor<4xf32>
    return %0 : tensor<4xf32>
  }
  func.func private @index() -> tensor<4xf32> {
    // expected-note @+1 {{it varies along "i" since this custom_call}}
    %i = stablehlo.custom_call @shmap.axis_index() {api_version = 4 : i32, backend_config = {axes = ["i"]}} : () -> tensor<i32>
    %f = stablehlo.convert %i : (tensor<i32>) -> tensor<f32>
    %0 = stablehlo.broadcast_in_dim %f, dims = [] : (tensor<f32>) -> tensor<4xf32>
    return %0 : tensor<4xf32>
  }
}

// -----

module @every_result_and_every_axis_at_once {
  sdy.mesh @mesh = <["i"=4, "j"=2, "k"=2]>
  func.func public @main(
      // expected-error @+3 {{@main's result 0, tensor<4xf32>: may differ between devices along "i", "j", which its sharding does not mention; mention the axes there}}
      // expected-note @+2 {{it varies along "i" since argument 0, which devices along the axis hold parts of}}
      // expected-note @+1 {{it varies along "j" since argument 0, which devices along the axis hold parts of}}
      %x: tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"i", "j", "k"}]>})
      -> (tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"k"}]>},
          tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"i", "j", "k"}]>},
          tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"j", "i"}]>})
      attributes {sdy.manual_axes = #sdy<manual_axes{"i", "j", "k"}>} {
    // expected-error @+1 {{@main's result 2, tensor<4xf32>: may differ between devices along "k", which}}
    %0 = stablehlo.negate %x : tensor<4xf32>
    return %x, %x, %0 : tensor<4xf32>, tensor<4xf32>, tensor<4xf32>
  }
}

// -----

module @main_is_not_in_body_form {
  sdy.mesh @mesh = <["i"=4]>
  // expected-error @+1 {{@main has no sdy.manual_axes, so it is not in body form}}
  func.func public @main() {
    return
  }
}

// -----

module @a_sum_in_groups_of_unequal_sizes {
  sdy.mesh @mesh = <["i"=3]>
  func.func public @main(%x: tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}]>})
      -> (tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}]>})
      attributes {sdy.manual_axes = #sdy<manual_axes{"i"}>} {
    // expected-error @+2 {{@main's result 0, tensor<4xf32>: may differ between devices along "i", which}}
    // expected-note @+1 {{it varies along "i" since this all_reduce}}
    %0 = "stablehlo.all_reduce"(%x) <{replica_groups = dense<[[0, 1], [2, -1]]> : tensor<2x2xi64>}> ({
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %s = stablehlo.add %a, %b : tensor<f32>
      stablehlo.return %s : tensor<f32>
    }) : (tensor<4xf32>) -> tensor<4xf32>
    return %0 : tensor<4xf32>
  }
}

// -----

module @summands_differ {
  sdy.mesh @mesh = <["i"=4]>
  // expected-error @+2 {{@main's result 0, tensor<4xf32>: may differ between devices along "i"}}
  // expected-note @+1 {{it varies along "i" since argument 0, which devices along the axis hold parts of}}
  func.func public @main(%x: tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}], unreduced={"i"}>}) -> (tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}]>}) attributes {sdy.manual_axes = #sdy<manual_axes{"i"}>} {
    return %x : tensor<4xf32>
  }
}

// -----

module @a_loop_of_varying_length_that_swaps_two_equal_carries {
  sdy.mesh @mesh = <["i"=4]>
  func.func public @main(%x: tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}]>}, %y: tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}]>})
      -> (tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}]>})
      attributes {sdy.manual_axes = #sdy<manual_axes{"i"}>} {
    %i = stablehlo.custom_call @shmap.axis_index() {api_version = 4 : i32, backend_config = {axes = ["i"]}} : () -> tensor<i32>
    %one = stablehlo.constant dense<1> : tensor<i32>
    %zero = stablehlo.constant dense<0> : tensor<i32>
    // expected-error @+1 {{@main's result 0, tensor<4xf32>: may differ between devices along "i"}}
    %r:3 = stablehlo.while(%n = %i, %p = %x, %q = %y) : tensor<i32>, tensor<4xf32>, tensor<4xf32>
    cond {
      %c = stablehlo.compare GT, %n, %zero : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %c : tensor<i1>
    } do {
      %m = stablehlo.subtract %n, %one : tensor<i32>
      stablehlo.return %m, %q, %p : tensor<i32>, tensor<4xf32>, tensor<4xf32>
    }
    return %r#1 : tensor<4xf32>
  }
}

// -----

module @branches_that_return_one_of_two_equal_values {
  sdy.mesh @mesh = <["i"=4]>
  func.func public @main(%x: tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}]>}, %y: tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}]>})
      -> (tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}]>})
      attributes {sdy.manual_axes = #sdy<manual_axes{"i"}>} {
    // expected-note @+1 {{it varies along "i" since this custom_call}}
    %i = stablehlo.custom_call @shmap.axis_index() {api_version = 4 : i32, backend_config = {axes = ["i"]}} : () -> tensor<i32>
    // expected-error @+1 {{@main's result 0, tensor<4xf32>: may differ between devices along "i"}}
    %0 = "stablehlo.case"(%i) ({
      stablehlo.return %x : tensor<4xf32>
    }, {
      stablehlo.return %y : tensor<4xf32>
    }) : (tensor<i32>) -> tensor<4xf32>
    return %0 : tensor<4xf32>
  }
}

// -----

module @a_function_without_a_body {
  sdy.mesh @mesh = <["i"=4]>
  func.func public @main(%x: tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}]>})
      -> (tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}]>})
      attributes {sdy.manual_axes = #sdy<manual_axes{"i"}>} {
    // expected-error @+2 {{@main's result 0, tensor<4xf32>: may differ between devices along "i"}}
    // expected-note @+1 {{it varies along "i" since this func.call}}
    %0 = call @elsewhere(%x) : (tensor<4xf32>) -> tensor<4xf32>
    return %0 : tensor<4xf32>
  }
  func.func private @elsewhere(tensor<4xf32>) -> tensor<4xf32>
}

// -----

module @an_exchange_of_parts_between_listed_devices {
  sdy.mesh @mesh = <["i"=4]>
  func.func public @main(%x: tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}]>})
      -> (tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}]>})
      attributes {sdy.manual_axes = #sdy<manual_axes{"i"}>} {
    // expected-error @+2 {{@main's result 0, tensor<4xf32>: may differ between devices along "i"}}
    // expected-note @+1 {{it varies along "i" since this all_to_all}}
    %0 = "stablehlo.all_to_all"(%x) <{split_dimension = 0 : i64, concat_dimension = 0 : i64, split_count = 4 : i64, replica_groups = dense<[[0, 1, 2, 3]]> : tensor<1x4xi64>}> : (tensor<4xf32>) -> tensor<4xf32>
    return %0 : tensor<4xf32>
  }
}
