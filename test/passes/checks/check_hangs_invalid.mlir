// RUN: shmap-opt %s --shmap-check-hangs --split-input-file --verify-diagnostics

module @some_devices_do_not_take_the_branch {
  sdy.mesh @mesh = <["i"=4, "j"=2]>
  // expected-note @+1 {{the predicate varies along "i" since argument 0, which devices along the axis hold parts of}}
  func.func public @main(%x: tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"i"}]>}, %n: tensor<i1> {sdy.sharding = #sdy.sharding<@mesh, []>}) -> (tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"i", "j"}]>}) attributes {sdy.manual_axes = #sdy<manual_axes{"i", "j"}>} {
    %z = stablehlo.constant dense<0.0> : tensor<f32>
    %t = stablehlo.reduce(%x init: %z) applies stablehlo.add across dimensions = [0] : (tensor<4xf32>, tensor<f32>) -> tensor<f32>
    %c = stablehlo.compare GT, %t, %z : (tensor<f32>, tensor<f32>) -> tensor<i1>
    // expected-note @+1 {{the if is here}}
    %0 = "stablehlo.if"(%c) ({
      // expected-error @+1 {{all_reduce over "i" is inside of an if whose predicate varies along "i": devices that reach it wait for those that do not; run it outside, or decide the same way on all devices along "i"}}
      %1 = "stablehlo.all_reduce"(%x) <{replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>}> ({
      ^bb0(%a: tensor<f32>, %b: tensor<f32>):
        %s = stablehlo.add %a, %b : tensor<f32>
        stablehlo.return %s : tensor<f32>
      }) : (tensor<4xf32>) -> tensor<4xf32>
      stablehlo.return %1 : tensor<4xf32>
    }, {
      stablehlo.return %x : tensor<4xf32>
    }) : (tensor<i1>) -> tensor<4xf32>
    return %0 : tensor<4xf32>
  }
}

// -----

module @the_position_decides {
  sdy.mesh @mesh = <["i"=4, "j"=2]>
  func.func public @main(%x: tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"i"}]>}, %n: tensor<i1> {sdy.sharding = #sdy.sharding<@mesh, []>}) -> (tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"i", "j"}]>}) attributes {sdy.manual_axes = #sdy<manual_axes{"i", "j"}>} {
    // expected-note @+1 {{the predicate varies along "i" since this custom_call}}
    %i = stablehlo.custom_call @shmap.axis_index() {api_version = 4 : i32, backend_config = {axes = ["i"]}} : () -> tensor<i32>
    %z = stablehlo.constant dense<2> : tensor<i32>
    %c = stablehlo.compare LT, %i, %z : (tensor<i32>, tensor<i32>) -> tensor<i1>
    // expected-note @+1 {{the if is here}}
    %0 = "stablehlo.if"(%c) ({
      // expected-error @+1 {{all_reduce over "i" is inside of an if whose predicate varies along "i": devices that reach it wait for those that do not; run it outside, or decide the same way on all devices along "i"}}
      %1 = "stablehlo.all_reduce"(%x) <{replica_groups = dense<[[0, 2, 4, 6], [1, 3, 5, 7]]> : tensor<2x4xi64>}> ({
      ^bb0(%a: tensor<f32>, %b: tensor<f32>):
        %s = stablehlo.add %a, %b : tensor<f32>
        stablehlo.return %s : tensor<f32>
      }) : (tensor<4xf32>) -> tensor<4xf32>
      stablehlo.return %1 : tensor<4xf32>
    }, {
      stablehlo.return %x : tensor<4xf32>
    }) : (tensor<i1>) -> tensor<4xf32>
    return %0 : tensor<4xf32>
  }
}

// -----

module @a_permute_waits_for_all_devices {
  sdy.mesh @mesh = <["i"=4, "j"=2]>
  func.func public @main(%x: tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"i"}]>}, %n: tensor<i1> {sdy.sharding = #sdy.sharding<@mesh, []>}) -> (tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"i", "j"}]>}) attributes {sdy.manual_axes = #sdy<manual_axes{"i", "j"}>} {
    // expected-note @+1 {{the predicate varies along "i" since this custom_call}}
    %i = stablehlo.custom_call @shmap.axis_index() {api_version = 4 : i32, backend_config = {axes = ["i"]}} : () -> tensor<i32>
    %z = stablehlo.constant dense<2> : tensor<i32>
    %c = stablehlo.compare LT, %i, %z : (tensor<i32>, tensor<i32>) -> tensor<i1>
    // expected-note @+1 {{the if is here}}
    %0 = "stablehlo.if"(%c) ({
      // expected-error @+1 {{collective_permute over "i", "j" is inside of an if whose predicate varies along "i": devices that reach it wait for those that do not; run it outside, or decide the same way on all devices along "i"}}
      %1 = "stablehlo.collective_permute"(%x) <{source_target_pairs = dense<[[0, 1], [1, 0]]> : tensor<2x2xi64>}> : (tensor<4xf32>) -> tensor<4xf32>
      stablehlo.return %1 : tensor<4xf32>
    }, {
      stablehlo.return %x : tensor<4xf32>
    }) : (tensor<i1>) -> tensor<4xf32>
    return %0 : tensor<4xf32>
  }
}

// -----

module @some_devices_leave_the_loop_earlier {
  sdy.mesh @mesh = <["i"=4, "j"=2]>
  func.func public @main(%x: tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"i"}]>}, %n: tensor<i1> {sdy.sharding = #sdy.sharding<@mesh, []>}) -> (tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"i", "j"}]>}) attributes {sdy.manual_axes = #sdy<manual_axes{"i", "j"}>} {
    %z = stablehlo.constant dense<0> : tensor<i32>
    %one = stablehlo.constant dense<1> : tensor<i32>
    // expected-note @+1 {{the condition varies along "i" since this custom_call}}
    %m = stablehlo.custom_call @shmap.axis_index() {api_version = 4 : i32, backend_config = {axes = ["i"]}} : () -> tensor<i32>
    // expected-note @+1 {{the while is here}}
    %0:2 = stablehlo.while(%k = %z, %y = %x) : tensor<i32>, tensor<4xf32>
    cond {
      %c = stablehlo.compare LT, %k, %m : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %c : tensor<i1>
    } do {
      // expected-error @+1 {{all_reduce over "i", "j" is inside of a while whose number of steps varies along "i": devices that reach it wait for those that do not; let all devices along "i" take the same number of steps}}
      %1 = "stablehlo.all_reduce"(%y) <{replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">, #stablehlo.axis_ref<name = "j">]>}> ({
      ^bb0(%a: tensor<f32>, %b: tensor<f32>):
        %s = stablehlo.add %a, %b : tensor<f32>
        stablehlo.return %s : tensor<f32>
      }) : (tensor<4xf32>) -> tensor<4xf32>
      %2 = stablehlo.add %k, %one : tensor<i32>
      stablehlo.return %2, %1 : tensor<i32>, tensor<4xf32>
    }
    return %0#1 : tensor<4xf32>
  }
}

// -----

module @a_function_that_a_branch_calls {
  sdy.mesh @mesh = <["i"=4, "j"=2]>
  func.func public @main(%x: tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"i"}]>}, %n: tensor<i1> {sdy.sharding = #sdy.sharding<@mesh, []>}) -> (tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"i", "j"}]>}) attributes {sdy.manual_axes = #sdy<manual_axes{"i", "j"}>} {
    // expected-note @+1 {{the predicate varies along "i" since this custom_call}}
    %i = stablehlo.custom_call @shmap.axis_index() {api_version = 4 : i32, backend_config = {axes = ["i"]}} : () -> tensor<i32>
    %z = stablehlo.constant dense<2> : tensor<i32>
    %c = stablehlo.compare LT, %i, %z : (tensor<i32>, tensor<i32>) -> tensor<i1>
    // expected-note @+1 {{the if is here}}
    %0 = "stablehlo.if"(%c) ({
      %1 = func.call @f(%x) : (tensor<4xf32>) -> tensor<4xf32>
      stablehlo.return %1 : tensor<4xf32>
    }, {
      stablehlo.return %x : tensor<4xf32>
    }) : (tensor<i1>) -> tensor<4xf32>
    return %0 : tensor<4xf32>
  }
  func.func private @f(%x: tensor<4xf32>) -> tensor<4xf32> {
    // expected-error @+1 {{all_reduce over "i" is inside of an if whose predicate varies along "i": devices that reach it wait for those that do not; run it outside, or decide the same way on all devices along "i"}}
    %0 = "stablehlo.all_reduce"(%x) <{replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>}> ({
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %s = stablehlo.add %a, %b : tensor<f32>
      stablehlo.return %s : tensor<f32>
    }) : (tensor<4xf32>) -> tensor<4xf32>
    return %0 : tensor<4xf32>
  }
}

// -----

module @a_ragged_all_to_all {
  sdy.mesh @mesh = <["i"=2]>
  // expected-note @+1 {{the predicate varies along "i" since argument 2, which devices along the axis hold parts of}}
  func.func public @main(%x: tensor<2xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"i"}]>}, %o: tensor<2xi32> {sdy.sharding = #sdy.sharding<@mesh, [{"i"}]>}, %p: tensor<1xi1> {sdy.sharding = #sdy.sharding<@mesh, [{"i"}]>}) -> (tensor<2xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"i"}]>}) attributes {sdy.manual_axes = #sdy<manual_axes{"i"}>} {
    %c = stablehlo.reshape %p : (tensor<1xi1>) -> tensor<i1>
    // expected-note @+1 {{the if is here}}
    %0 = "stablehlo.if"(%c) ({
      // expected-error @+1 {{ragged_all_to_all over "i" is inside of an if whose predicate varies along "i": devices that reach it wait for those that do not; run it outside, or decide the same way on all devices along "i"}}
      %1 = stablehlo.custom_call @ragged_all_to_all(%x, %x, %o, %o, %o, %o) {api_version = 4 : i32, backend_config = {channel_id = 1 : i64, replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>}} : (tensor<2xf32>, tensor<2xf32>, tensor<2xi32>, tensor<2xi32>, tensor<2xi32>, tensor<2xi32>) -> tensor<2xf32>
      stablehlo.return %1 : tensor<2xf32>
    }, {
      stablehlo.return %x : tensor<2xf32>
    }) : (tensor<i1>) -> tensor<2xf32>
    return %0 : tensor<2xf32>
  }
}

// -----

module @an_axis_that_is_manual_in_a_nested_region {
  sdy.mesh @mesh = <["i"=2, "k"=2]>
  func.func public @main(%x: tensor<2xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"i"}]>}, %p: tensor<2xi1> {sdy.sharding = #sdy.sharding<@mesh, [{}]>}) -> (tensor<2xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"i"}]>}) attributes {sdy.manual_axes = #sdy<manual_axes{"i"}>} {
    // expected-note @+1 {{the predicate varies along "k" since argument 1, which devices along the axis hold parts of}}
    %0 = sdy.manual_computation(%x, %p) in_shardings=[<@mesh, [{}]>, <@mesh, [{"k"}]>] out_shardings=[<@mesh, [{}]>] manual_axes={"k"} (%y: tensor<2xf32>, %q: tensor<1xi1>) {
      %c = stablehlo.reshape %q : (tensor<1xi1>) -> tensor<i1>
      // expected-note @+1 {{the if is here}}
      %1 = "stablehlo.if"(%c) ({
        // expected-error @+1 {{all_reduce over "k" is inside of an if whose predicate varies along "k": devices that reach it wait for those that do not; run it outside, or decide the same way on all devices along "k"}}
        %2 = "stablehlo.all_reduce"(%y) <{replica_groups = dense<[[0, 1], [2, 3]]> : tensor<2x2xi64>, channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, use_global_device_ids}> ({
        ^bb0(%a: tensor<f32>, %b: tensor<f32>):
          %s = stablehlo.add %a, %b : tensor<f32>
          stablehlo.return %s : tensor<f32>
        }) : (tensor<2xf32>) -> tensor<2xf32>
        stablehlo.return %2 : tensor<2xf32>
      }, {
        stablehlo.return %y : tensor<2xf32>
      }) : (tensor<i1>) -> tensor<2xf32>
      sdy.return %1 : tensor<2xf32>
    } : (tensor<2xf32>, tensor<2xi1>) -> tensor<2xf32>
    return %0 : tensor<2xf32>
  }
}

// -----

module @an_axis_that_is_manual_around_a_nested_region {
  sdy.mesh @mesh = <["i"=2, "k"=2]>
  // expected-note @+1 {{the predicate varies along "i" since argument 1, which devices along the axis hold parts of}}
  func.func public @main(%x: tensor<2xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"i"}]>}, %p: tensor<1xi1> {sdy.sharding = #sdy.sharding<@mesh, [{"i"}]>}) -> (tensor<2xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"i"}]>}) attributes {sdy.manual_axes = #sdy<manual_axes{"i"}>} {
    %0 = sdy.manual_computation(%x, %p) in_shardings=[<@mesh, [{}]>, <@mesh, [{}]>] out_shardings=[<@mesh, [{}]>] manual_axes={"k"} (%y: tensor<2xf32>, %q: tensor<1xi1>) {
      %c = stablehlo.reshape %q : (tensor<1xi1>) -> tensor<i1>
      // expected-note @+1 {{the if is here}}
      %1 = "stablehlo.if"(%c) ({
        // expected-error @+1 {{all_reduce over "i" is inside of an if whose predicate varies along "i": devices that reach it wait for those that do not; run it outside, or decide the same way on all devices along "i"}}
        %2 = "stablehlo.all_reduce"(%y) <{replica_groups = dense<[[0, 2], [1, 3]]> : tensor<2x2xi64>, channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, use_global_device_ids}> ({
        ^bb0(%a: tensor<f32>, %b: tensor<f32>):
          %s = stablehlo.add %a, %b : tensor<f32>
          stablehlo.return %s : tensor<f32>
        }) : (tensor<2xf32>) -> tensor<2xf32>
        stablehlo.return %2 : tensor<2xf32>
      }, {
        stablehlo.return %y : tensor<2xf32>
      }) : (tensor<i1>) -> tensor<2xf32>
      sdy.return %1 : tensor<2xf32>
    } : (tensor<2xf32>, tensor<1xi1>) -> tensor<2xf32>
    return %0 : tensor<2xf32>
  }
}

// -----

module @position_along_the_axis {
  sdy.mesh @mesh = <["i"=2, "k"=2]>
  func.func public @main(%x: tensor<2xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"i"}]>}) -> (tensor<2xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"i"}]>}) attributes {sdy.manual_axes = #sdy<manual_axes{"i"}>} {
    %0 = sdy.manual_computation(%x) in_shardings=[<@mesh, [{}]>] out_shardings=[<@mesh, [{}]>] manual_axes={"k"} (%y: tensor<2xf32>) {
      %two = stablehlo.constant dense<2> : tensor<ui32>
      %zero = stablehlo.constant dense<0> : tensor<ui32>
      // expected-note @+1 {{the predicate varies along "k" since this partition_id}}
      %p = stablehlo.partition_id : tensor<ui32>
      %q = stablehlo.remainder %p, %two : tensor<ui32>
      %c = stablehlo.compare GT, %q, %zero : (tensor<ui32>, tensor<ui32>) -> tensor<i1>
      // expected-note @+1 {{the if is here}}
      %1 = "stablehlo.if"(%c) ({
        // expected-error @+1 {{all_reduce over "k" is inside of an if whose predicate varies along "k"}}
        %2 = "stablehlo.all_reduce"(%y) <{replica_groups = dense<[[0, 1], [2, 3]]> : tensor<2x2xi64>, channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, use_global_device_ids}> ({
        ^bb0(%a: tensor<f32>, %b: tensor<f32>):
          %s = stablehlo.add %a, %b : tensor<f32>
          stablehlo.return %s : tensor<f32>
        }) : (tensor<2xf32>) -> tensor<2xf32>
        stablehlo.return %2 : tensor<2xf32>
      }, {
        stablehlo.return %y : tensor<2xf32>
      }) : (tensor<i1>) -> tensor<2xf32>
      sdy.return %1 : tensor<2xf32>
    } : (tensor<2xf32>) -> tensor<2xf32>
    return %0 : tensor<2xf32>
  }
}
