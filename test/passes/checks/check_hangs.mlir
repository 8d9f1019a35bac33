// RUN: shmap-opt %s --shmap-check-hangs --mlir-print-ir-after-all --split-input-file 2>&1 | FileCheck %s

// A module that is accepted comes out as it was.
// CHECK: IR Dump After shmap-check-hangs
// CHECK-LABEL: module @a_decision_that_is_alike_on_all_devices
module @a_decision_that_is_alike_on_all_devices {
  sdy.mesh @mesh = <["i"=4, "j"=2]>
  func.func public @main(%x: tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"i"}]>}, %n: tensor<i1> {sdy.sharding = #sdy.sharding<@mesh, []>}) -> (tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"i", "j"}]>}) attributes {sdy.manual_axes = #sdy<manual_axes{"i", "j"}>} {
    %0 = "stablehlo.if"(%n) ({
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

// CHECK-LABEL: module @devices_along_another_axis_may_decide_otherwise
module @devices_along_another_axis_may_decide_otherwise {
  sdy.mesh @mesh = <["i"=4, "j"=2]>
  func.func public @main(%x: tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"i"}]>}, %n: tensor<i1> {sdy.sharding = #sdy.sharding<@mesh, []>}) -> (tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"i", "j"}]>}) attributes {sdy.manual_axes = #sdy<manual_axes{"i", "j"}>} {
    %z = stablehlo.constant dense<0.0> : tensor<f32>
    %t = stablehlo.reduce(%x init: %z) applies stablehlo.add across dimensions = [0] : (tensor<4xf32>, tensor<f32>) -> tensor<f32>
    %c = stablehlo.compare GT, %t, %z : (tensor<f32>, tensor<f32>) -> tensor<i1>
    %0 = "stablehlo.if"(%c) ({
      %1 = "stablehlo.all_reduce"(%x) <{replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "j">]>}> ({
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

// CHECK-LABEL: module @a_sum_decides_alike
module @a_sum_decides_alike {
  sdy.mesh @mesh = <["i"=4, "j"=2]>
  func.func public @main(%x: tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"i"}]>}, %n: tensor<i1> {sdy.sharding = #sdy.sharding<@mesh, []>}) -> (tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"i", "j"}]>}) attributes {sdy.manual_axes = #sdy<manual_axes{"i", "j"}>} {
    %z = stablehlo.constant dense<0.0> : tensor<f32>
    %p = stablehlo.reduce(%x init: %z) applies stablehlo.add across dimensions = [0] : (tensor<4xf32>, tensor<f32>) -> tensor<f32>
    %t = "stablehlo.all_reduce"(%p) <{replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>}> ({
      ^bb0(%a: tensor<f32>, %b: tensor<f32>):
        %s = stablehlo.add %a, %b : tensor<f32>
        stablehlo.return %s : tensor<f32>
      }) : (tensor<f32>) -> tensor<f32>
    %c = stablehlo.compare GT, %t, %z : (tensor<f32>, tensor<f32>) -> tensor<i1>
    %0 = "stablehlo.if"(%c) ({
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

// CHECK-LABEL: module @listed_groups_that_do_not_differ_along_the_axis
module @listed_groups_that_do_not_differ_along_the_axis {
  sdy.mesh @mesh = <["i"=4, "j"=2]>
  func.func public @main(%x: tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"i"}]>}, %n: tensor<i1> {sdy.sharding = #sdy.sharding<@mesh, []>}) -> (tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"i", "j"}]>}) attributes {sdy.manual_axes = #sdy<manual_axes{"i", "j"}>} {
    %i = stablehlo.custom_call @shmap.axis_index() {api_version = 4 : i32, backend_config = {axes = ["i"]}} : () -> tensor<i32>
    %z = stablehlo.constant dense<2> : tensor<i32>
    %c = stablehlo.compare LT, %i, %z : (tensor<i32>, tensor<i32>) -> tensor<i1>
    %0 = "stablehlo.if"(%c) ({
      %1 = "stablehlo.all_reduce"(%x) <{replica_groups = dense<[[0, 1], [2, 3], [4, 5], [6, 7]]> : tensor<4x2xi64>}> ({
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

// CHECK-LABEL: module @a_loop_of_a_number_of_steps
module @a_loop_of_a_number_of_steps {
  sdy.mesh @mesh = <["i"=4, "j"=2]>
  func.func public @main(%x: tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"i"}]>}, %n: tensor<i1> {sdy.sharding = #sdy.sharding<@mesh, []>}) -> (tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"i", "j"}]>}) attributes {sdy.manual_axes = #sdy<manual_axes{"i", "j"}>} {
    %z = stablehlo.constant dense<0> : tensor<i32>
    %one = stablehlo.constant dense<1> : tensor<i32>
    %m = stablehlo.constant dense<3> : tensor<i32>
    %0:2 = stablehlo.while(%k = %z, %y = %x) : tensor<i32>, tensor<4xf32>
    cond {
      %c = stablehlo.compare LT, %k, %m : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %c : tensor<i1>
    } do {
      %1 = "stablehlo.all_reduce"(%y) <{replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>}> ({
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

// CHECK-LABEL: module @a_predicate_that_is_equal_along_the_axis_of_a_nested_region
module @a_predicate_that_is_equal_along_the_axis_of_a_nested_region {
  sdy.mesh @mesh = <["i"=2, "k"=2]>
  func.func public @main(%x: tensor<2xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"i"}]>}, %p: tensor<1xi1> {sdy.sharding = #sdy.sharding<@mesh, [{"i"}]>}) -> (tensor<2xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"i"}]>}) attributes {sdy.manual_axes = #sdy<manual_axes{"i"}>} {
    %0 = sdy.manual_computation(%x, %p) in_shardings=[<@mesh, [{"k"}]>, <@mesh, [{}]>] out_shardings=[<@mesh, [{"k"}]>] manual_axes={"k"} (%y: tensor<1xf32>, %q: tensor<1xi1>) {
      %c = stablehlo.reshape %q : (tensor<1xi1>) -> tensor<i1>
      %1 = "stablehlo.if"(%c) ({
        %2 = "stablehlo.all_reduce"(%y) <{replica_groups = dense<[[0, 1], [2, 3]]> : tensor<2x2xi64>, channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, use_global_device_ids}> ({
        ^bb0(%a: tensor<f32>, %b: tensor<f32>):
          %s = stablehlo.add %a, %b : tensor<f32>
          stablehlo.return %s : tensor<f32>
        }) : (tensor<1xf32>) -> tensor<1xf32>
        stablehlo.return %2 : tensor<1xf32>
      }, {
        stablehlo.return %y : tensor<1xf32>
      }) : (tensor<i1>) -> tensor<1xf32>
      sdy.return %1 : tensor<1xf32>
    } : (tensor<2xf32>, tensor<1xi1>) -> tensor<2xf32>
    return %0 : tensor<2xf32>
  }
}

// -----

// Rows of unequal groups are padded by -1, which is not a device.
// CHECK-LABEL: module @groups_of_unequal_sizes
module @groups_of_unequal_sizes {
  sdy.mesh @mesh = <["i"=2, "j"=4]>
  func.func public @main(
      %x: tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"i"}]>},
      %c: tensor<1xi1> {sdy.sharding = #sdy.sharding<@mesh, [{"i"}]>})
      -> (tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"i", "j"}]>})
      attributes {sdy.manual_axes = #sdy<manual_axes{"i", "j"}>} {
    %p = stablehlo.reshape %c : (tensor<1xi1>) -> tensor<i1>
    %r = "stablehlo.if"(%p) ({
      %0 = "stablehlo.all_reduce"(%x) <{replica_groups = dense<[[0, 1, 2], [3, -1, -1], [4, 5, 6], [7, -1, -1]]> : tensor<4x3xi64>}> ({
      ^bb0(%a: tensor<f32>, %b: tensor<f32>):
        %s = stablehlo.add %a, %b : tensor<f32>
        stablehlo.return %s : tensor<f32>
      }) : (tensor<4xf32>) -> tensor<4xf32>
      stablehlo.return %0 : tensor<4xf32>
    }, {
      stablehlo.return %x : tensor<4xf32>
    }) : (tensor<i1>) -> tensor<4xf32>
    return %r : tensor<4xf32>
  }
}

// -----

// In a region inside of a region, a position along one axis is arithmetic on that in the mesh.
// CHECK-LABEL: module @position_along_another_axis
module @position_along_another_axis {
  sdy.mesh @mesh = <["i"=2, "k"=2]>
  func.func public @main(%x: tensor<2xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"i"}]>}) -> (tensor<2xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"i"}]>}) attributes {sdy.manual_axes = #sdy<manual_axes{"i"}>} {
    %0 = sdy.manual_computation(%x) in_shardings=[<@mesh, [{}]>] out_shardings=[<@mesh, [{}]>] manual_axes={"k"} (%y: tensor<2xf32>) {
      %two = stablehlo.constant dense<2> : tensor<ui32>
      %zero = stablehlo.constant dense<0> : tensor<ui32>
      %p = stablehlo.partition_id : tensor<ui32>
      %q = stablehlo.divide %p, %two : tensor<ui32>
      %c = stablehlo.compare GT, %q, %zero : (tensor<ui32>, tensor<ui32>) -> tensor<i1>
      %1 = "stablehlo.if"(%c) ({
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
