// RUN: shmap-opt %s --shmap-verify --split-input-file --verify-diagnostics

// expected-error @+1 {{the module has no function @main with a body; its functions: @other}}
module @a_module_without_main {
  sdy.mesh @mesh = <["i"=4]>
  func.func private @other()
}

// -----

// expected-error @+1 {{the module has no sdy.mesh; declare the one it runs on}}
module @a_module_without_mesh {
  func.func public @main() attributes {sdy.manual_axes = #sdy<manual_axes{"i"}>} {
    return
  }
}

// -----

module @a_module_with_two_meshes {
  sdy.mesh @mesh = <["i"=4]>
  // expected-error @+1 {{@other is one of 2 meshes; a module in body form runs on one}}
  sdy.mesh @other = <["i"=2]>
  func.func public @main() attributes {sdy.manual_axes = #sdy<manual_axes{"i"}>} {
    return
  }
}

// -----

module @a_mesh_with_a_device_order {
  // expected-error @+1 {{@mesh lists device ids; devices are positions in the mesh here}}
  sdy.mesh @mesh = <["i"=4], device_ids=[3, 2, 1, 0]>
  func.func public @main() attributes {sdy.manual_axes = #sdy<manual_axes{"i"}>} {
    return
  }
}

// -----

module @main_without_manual_axes {
  sdy.mesh @mesh = <["i"=4]>
  // expected-error @+1 {{@main has no sdy.manual_axes, so it is not in body form}}
  func.func public @main() {
    return
  }
}

// -----

module @manual_axes_of_another_kind {
  sdy.mesh @mesh = <["i"=4]>
  // expected-error @+1 {{sdy.manual_axes of @main is ["i"], and must be #sdy<manual_axes{...}>}}
  func.func public @main() attributes {sdy.manual_axes = ["i"]} {
    return
  }
}

// -----

module @outer_manual_axes_that_are_no_list {
  sdy.mesh @mesh = <["i"=4]>
  // expected-error @+1 {{shmap.outer_manual_axes of @main is {}, and must be a list of the names of axes}}
  func.func public @main() attributes {sdy.manual_axes = #sdy<manual_axes{"i"}>, shmap.outer_manual_axes = {}} {
    return
  }
}

// -----

module @equal_arguments_that_are_no_positions {
  sdy.mesh @mesh = <["i"=4]>
  // expected-error @+1 {{shmap.equal_arguments of @main is "x", and must be an array of the positions of arguments}}
  func.func public @main() attributes {sdy.manual_axes = #sdy<manual_axes{"i"}>, shmap.equal_arguments = "x"} {
    return
  }
}

// -----

module @equal_arguments_that_main_does_not_have {
  sdy.mesh @mesh = <["i"=4]>
  // expected-error @+1 {{shmap.equal_arguments of @main is array<i64: 0>, and must be an array of the positions of arguments}}
  func.func public @main() attributes {sdy.manual_axes = #sdy<manual_axes{"i"}>, shmap.equal_arguments = array<i64: 0>} {
    return
  }
}

// -----

module @outer_manual_axes_that_are_no_names {
  sdy.mesh @mesh = <["i"=4]>
  // expected-error @+1 {{shmap.outer_manual_axes of @main is [3 : i32], and must be a list of the names of axes}}
  func.func public @main() attributes {sdy.manual_axes = #sdy<manual_axes{"i"}>, shmap.outer_manual_axes = [3 : i32]} {
    return
  }
}

// -----

module @manual_axes_that_the_mesh_lacks_or_that_repeat {
  sdy.mesh @mesh = <["i"=4, "j"=2]>
  // expected-error @+3 {{manual axis "k": the mesh is @mesh [i=4, j=2]; name one of "i", "j"}}
  // expected-error @+2 {{manual axis "l": the mesh is @mesh [i=4, j=2]; name one of "i", "j"}}
  // expected-error @+1 {{axis "i" is made manual 2 times; name it once}}
  func.func public @main() attributes {sdy.manual_axes = #sdy<manual_axes{"i", "i", "k"}>,
                                       shmap.outer_manual_axes = ["l"]} {
    return
  }
}

// -----

module @every_fault_of_a_boundary_at_once {
  sdy.mesh @mesh = <["i"=4, "j"=2]>
  // expected-error @+4 {{@main's argument 0: no sdy.sharding; add one that describes how its blocks are placed in the full array}}
  // expected-error @+3 {{@main's argument 1: type tensor<?xf32> is not a tensor of static shape}}
  // expected-error @+2 {{@main's argument 2: sdy.sharding has replicated axes; leave them out}}
  // expected-error @+1 {{@main's result 0: sdy.sharding splits a dimension over part of an axis}}
  func.func public @main(
      %arg0: tensor<4xf32>,
      %arg1: tensor<?xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"i"}]>},
      %arg2: tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"i"}], replicated={"j"}>})
      -> (tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"i":(1)2}]>})
      attributes {sdy.manual_axes = #sdy<manual_axes{"i", "j"}>} {
    return %arg0 : tensor<4xf32>
  }
}

// -----

module @summands_along_part_of_an_axis {
  sdy.mesh @mesh = <["i"=4]>
  // expected-error @+1 {{@main's argument 0: sdy.sharding is unreduced over part of an axis; only whole axes can be manual}}
  func.func public @main(
      %arg0: tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}], unreduced={"i":(1)2}>})
      attributes {sdy.manual_axes = #sdy<manual_axes{"i"}>} {
    return
  }
}

// -----

module @a_mesh_that_contradicts_the_specs {
  sdy.mesh @mesh = <["i"=4]>
  // expected-error @+1 {{is on mesh #sdy.mesh<["i"=8]>, but the module's mesh is @mesh [i=4]; use @mesh}}
  func.func public @main(
      %arg0: tensor<4xf32> {sdy.sharding = #sdy.sharding<mesh<["i"=8]>, [{"i"}]>})
      attributes {sdy.manual_axes = #sdy<manual_axes{"i"}>} {
    return
  }
}

// -----

module @a_spec_over_an_axis_that_is_not_manual {
  sdy.mesh @mesh = <["i"=4, "j"=2]>
  // expected-error @+2 {{@main's argument 0, dimension 1 is split over "j", which @main does not make manual (manual: "i")}}
  // expected-error @+1 {{@main's result 0, dimension 0 is split over "j", which @main does not make manual (manual: "i")}}
  func.func public @main(
      %arg0: tensor<4x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"i"}, {"j"}]>})
      -> (tensor<4x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"j"}, {}]>})
      attributes {sdy.manual_axes = #sdy<manual_axes{"i"}>} {
    return %arg0 : tensor<4x4xf32>
  }
}

// -----

module @a_spec_over_an_axis_that_is_manual_only_around_it {
  sdy.mesh @mesh = <["i"=4, "j"=2]>
  // expected-error @+1 {{@main's argument 0, dimension 0 is split over "j", which @main does not make manual (manual: "i")}}
  func.func public @main(%arg0: tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"j"}]>})
      attributes {sdy.manual_axes = #sdy<manual_axes{"i"}>, shmap.outer_manual_axes = ["j"]} {
    return
  }
}

// -----

module @a_full_dimension_one_beyond_64_bits {
  sdy.mesh @mesh = <["i"=2]>
  // expected-error @+1 {{dimension 0: 4611686018427387904 per device over 2 devices is 9223372036854775808 in the full array}}
  func.func public @main(
      %arg0: tensor<4611686018427387904xi8> {sdy.sharding = #sdy.sharding<@mesh, [{"i"}]>})
      attributes {sdy.manual_axes = #sdy<manual_axes{"i"}>} {
    return
  }
}

// -----

module @a_full_dimension_beyond_64_bits {
  sdy.mesh @mesh = <["i"=4]>
  // expected-error @+1 {{dimension 0: 4611686018427387904 per device over 4 devices is 18446744073709551616 in the full array}}
  func.func public @main(
      %arg0: tensor<4611686018427387904xi8> {sdy.sharding = #sdy.sharding<@mesh, [{"i"}]>})
      attributes {sdy.manual_axes = #sdy<manual_axes{"i"}>} {
    return
  }
}

// -----

module @a_call_of_the_entry {
  sdy.mesh @mesh = <["i"=4]>
  func.func public @main() attributes {sdy.manual_axes = #sdy<manual_axes{"i"}>} {
    return
  }
  func.func private @again() {
    // expected-error @+1 {{calls @main, which is the entry}}
    func.call @main() : () -> ()
    return
  }
}

// -----

module @axis_names {
  sdy.mesh @mesh = <["i"=4, "j"=2, "k"=2]>
  func.func public @main() attributes {sdy.manual_axes = #sdy<manual_axes{"i", "j"}>} {
    return
  }

  func.func private @a_group_over_an_axis_the_mesh_lacks(%x: tensor<4xf32>) -> tensor<4xf32> {
    // expected-error @+1 {{collective_broadcast over axis "z": the mesh is @mesh [i=4, j=2, k=2]; name one of "i", "j", "k"}}
    %0 = "stablehlo.collective_broadcast"(%x) <{replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "z">]>}> : (tensor<4xf32>) -> tensor<4xf32>
    return %0 : tensor<4xf32>
  }

  func.func private @a_group_over_an_axis_named_twice(%x: tensor<4xf32>) -> tensor<4xf32> {
    // expected-error @+1 {{collective_broadcast names axis "i" 2 times; name it once}}
    %0 = "stablehlo.collective_broadcast"(%x) <{replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">, #stablehlo.axis_ref<name = "i">]>}> : (tensor<4xf32>) -> tensor<4xf32>
    return %0 : tensor<4xf32>
  }

  func.func private @a_group_over_an_axis_that_is_not_manual(%x: tensor<4xf32>) -> tensor<4xf32> {
    // expected-error @+1 {{collective_broadcast over axis "k", which is not manual here (manual: "i", "j")}}
    %0 = "stablehlo.collective_broadcast"(%x) <{replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "k">]>}> : (tensor<4xf32>) -> tensor<4xf32>
    return %0 : tensor<4xf32>
  }

  func.func private @a_group_over_part_of_an_axis(%x: tensor<4xf32>) -> tensor<4xf32> {
    // expected-error @+1 {{collective_broadcast groups over part of axis "i"; name whole axes}}
    %0 = "stablehlo.collective_broadcast"(%x) <{replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i", sub_axis_info = (1)2>]>}> : (tensor<4xf32>) -> tensor<4xf32>
    return %0 : tensor<4xf32>
  }

  func.func private @an_axis_index_over_an_axis_the_mesh_lacks() -> tensor<i32> {
    // expected-error @+1 {{axis_index over axis "z": the mesh is @mesh [i=4, j=2, k=2]}}
    %0 = stablehlo.custom_call @shmap.axis_index() {api_version = 4 : i32, backend_config = {axes = ["z"]}} : () -> tensor<i32>
    return %0 : tensor<i32>
  }

  func.func private @an_axis_index_over_an_axis_that_is_not_manual() -> tensor<i32> {
    // expected-error @+1 {{axis_index over axis "k", which is not manual here}}
    %0 = stablehlo.custom_call @shmap.axis_index() {api_version = 4 : i32, backend_config = {axes = ["k"]}} : () -> tensor<i32>
    return %0 : tensor<i32>
  }

  func.func private @an_axis_index_over_nothing() -> tensor<i32> {
    // expected-error @+1 {{axis_index names no axis}}
    %0 = stablehlo.custom_call @shmap.axis_index() {api_version = 4 : i32, backend_config = {}} : () -> tensor<i32>
    return %0 : tensor<i32>
  }

  func.func private @an_axis_index_without_a_configuration() -> tensor<i32> {
    // expected-error @+1 {{axis_index names no axis}}
    %0 = stablehlo.custom_call @shmap.axis_index() {api_version = 4 : i32} : () -> tensor<i32>
    return %0 : tensor<i32>
  }

  func.func private @an_axis_index_whose_configuration_is_a_text() -> tensor<i32> {
    // expected-error @+1 {{axis_index names no axis}}
    %0 = stablehlo.custom_call @shmap.axis_index() {backend_config = "i"} : () -> tensor<i32>
    return %0 : tensor<i32>
  }

  func.func private @an_axis_index_whose_axes_are_no_list() -> tensor<i32> {
    // expected-error @+1 {{axis_index names no axis}}
    %0 = stablehlo.custom_call @shmap.axis_index() {api_version = 4 : i32, backend_config = {axes = "i"}} : () -> tensor<i32>
    return %0 : tensor<i32>
  }

  func.func private @an_axis_index_whose_axes_are_numbers() -> tensor<i32> {
    // expected-error @+1 {{axis_index names no axis}}
    %0 = stablehlo.custom_call @shmap.axis_index() {api_version = 4 : i32, backend_config = {axes = [0 : i32]}} : () -> tensor<i32>
    return %0 : tensor<i32>
  }

  func.func private @an_axis_index_of_another_type() -> tensor<2xi32> {
    // expected-error @+1 {{axis_index takes no operand and gives one tensor<i32>}}
    %0 = stablehlo.custom_call @shmap.axis_index() {api_version = 4 : i32, backend_config = {axes = ["i"]}} : () -> tensor<2xi32>
    return %0 : tensor<2xi32>
  }
}

// -----

module @device_ids {
  sdy.mesh @mesh = <["i"=2, "j"=2]>
  func.func public @main() attributes {sdy.manual_axes = #sdy<manual_axes{"i"}>} {
    return
  }

  func.func private @groups_that_leave_devices_out(%x: tensor<4xf32>) -> tensor<4xf32> {
    // expected-error @+1 {{collective_broadcast groups hold 2 ids and leave out device 2, 3; they must name each of the 4 devices of @mesh [i=2, j=2] once}}
    %0 = "stablehlo.collective_broadcast"(%x) <{replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>}> : (tensor<4xf32>) -> tensor<4xf32>
    return %0 : tensor<4xf32>
  }

  func.func private @groups_with_more_devices_than_the_mesh(%x: tensor<4xf32>) -> tensor<4xf32> {
    // expected-error @+1 {{collective_broadcast groups name device 4, 5; the devices of @mesh [i=2, j=2] are 0 to 3}}
    %0 = "stablehlo.collective_broadcast"(%x) <{replica_groups = dense<[[0, 1], [2, 3], [4, 5]]> : tensor<3x2xi64>}> : (tensor<4xf32>) -> tensor<4xf32>
    return %0 : tensor<4xf32>
  }

  func.func private @groups_along_an_axis_that_is_not_manual(%x: tensor<4xf32>) -> tensor<4xf32> {
    // expected-error @+2 {{collective_broadcast group [0, 1] joins devices along axis "j", which is not manual here (manual: "i")}}
    // expected-error @+1 {{collective_broadcast group [2, 3] joins devices along axis "j", which is not manual here (manual: "i")}}
    %0 = "stablehlo.collective_broadcast"(%x) <{replica_groups = dense<[[0, 1], [2, 3]]> : tensor<2x2xi64>}> : (tensor<4xf32>) -> tensor<4xf32>
    return %0 : tensor<4xf32>
  }

  func.func private @a_permutation_to_a_device_the_mesh_lacks(%x: tensor<4xf32>) -> tensor<4xf32> {
    // expected-error @+1 {{collective_permute 1 -> 4 names device 4; the devices of @mesh [i=2, j=2] are 0 to 3}}
    %0 = "stablehlo.collective_permute"(%x) <{source_target_pairs = dense<[[0, 2], [1, 4]]> : tensor<2x2xi64>}> : (tensor<4xf32>) -> tensor<4xf32>
    return %0 : tensor<4xf32>
  }

  func.func private @a_permutation_along_an_axis_that_is_not_manual(%x: tensor<4xf32>) -> tensor<4xf32> {
    // expected-error @+1 {{collective_permute 0 -> 1 joins devices along axis "j", which is not manual here}}
    %0 = "stablehlo.collective_permute"(%x) <{source_target_pairs = dense<[[0, 1]]> : tensor<1x2xi64>}> : (tensor<4xf32>) -> tensor<4xf32>
    return %0 : tensor<4xf32>
  }
}

// -----

// What MLIR's own verifiers refuse while they read the module.

module @a_permutation_with_a_repeated_source {
  func.func private @f(%x: tensor<4xf32>) -> tensor<4xf32> {
    // expected-error @+1 {{duplicate sources not allowed}}
    %0 = "stablehlo.collective_permute"(%x) <{source_target_pairs = dense<[[0, 1], [0, 2]]> : tensor<2x2xi64>}> : (tensor<4xf32>) -> tensor<4xf32>
    return %0 : tensor<4xf32>
  }
}

// -----

module @a_permutation_with_a_repeated_target {
  func.func private @f(%x: tensor<4xf32>) -> tensor<4xf32> {
    // expected-error @+1 {{duplicate targets not allowed}}
    %0 = "stablehlo.collective_permute"(%x) <{source_target_pairs = dense<[[0, 1], [2, 1]]> : tensor<2x2xi64>}> : (tensor<4xf32>) -> tensor<4xf32>
    return %0 : tensor<4xf32>
  }
}

// -----

module @groups_that_name_a_device_twice {
  func.func private @f(%x: tensor<4xf32>) -> tensor<4xf32> {
    // expected-error @+1 {{replica id #1 seen more than once}}
    %0 = "stablehlo.collective_broadcast"(%x) <{replica_groups = dense<[[0, 1], [1, 2]]> : tensor<2x2xi64>}> : (tensor<4xf32>) -> tensor<4xf32>
    return %0 : tensor<4xf32>
  }
}

// -----

module @an_axis_used_twice_in_one_spec {
  sdy.mesh @mesh = <["i"=4]>
  // expected-error @+1 {{duplicate axis ref: "i"}}
  func.func public @main(%x: tensor<4x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"i"}, {"i"}]>}) {
    return
  }
}

// -----

module @a_spec_over_an_axis_the_mesh_lacks {
  sdy.mesh @mesh = <["i"=4]>
  // expected-error @+1 {{unknown axis name: "z"}}
  func.func public @main(%x: tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"z"}]>}) {
    return
  }
}

// -----

module @a_spec_of_the_wrong_rank {
  sdy.mesh @mesh = <["i"=4]>
  // expected-error @+1 {{sharding doesn't match tensor rank: 2 != 1}}
  func.func public @main(%x: tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"i"}, {}]>}) {
    return
  }
}

// -----

module @sizes {
  sdy.mesh @mesh = <["i"=4, "j"=2]>
  func.func public @main() attributes {sdy.manual_axes = #sdy<manual_axes{"i", "j"}>} {
    return
  }

  func.func private @a_gather_of_the_wrong_size(%x: tensor<4xf32>) -> tensor<8xf32> {
    // expected-error @+1 {{all_gather, dimension 0, group of 4 devices: 4 per device makes 4 x 4 = 16, the result has 8}}
    %0 = "stablehlo.all_gather"(%x) <{all_gather_dim = 0 : i64, replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>}> : (tensor<4xf32>) -> tensor<8xf32>
    return %0 : tensor<8xf32>
  }

  func.func private @a_scatter_that_does_not_divide(%x: tensor<6xf32>) -> tensor<1xf32> {
    // expected-error @+1 {{reduce_scatter, dimension 0, group of 4 devices: 4 does not divide 6; pad the dimension to a multiple of 4}}
    %0 = "stablehlo.reduce_scatter"(%x) <{scatter_dimension = 0 : i64, replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>}> ({
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %s = stablehlo.add %a, %b : tensor<f32>
      stablehlo.return %s : tensor<f32>
    }) : (tensor<6xf32>) -> tensor<1xf32>
    return %0 : tensor<1xf32>
  }

  func.func private @a_scatter_of_the_wrong_size(%x: tensor<8xf32>) -> tensor<4xf32> {
    // expected-error @+1 {{reduce_scatter, dimension 0, group of 4 devices: 8 makes 8 / 4 = 2 per device, the result has 4}}
    %0 = "stablehlo.reduce_scatter"(%x) <{scatter_dimension = 0 : i64, replica_groups = dense<[[0, 2, 4, 6], [1, 3, 5, 7]]> : tensor<2x4xi64>}> ({
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %s = stablehlo.add %a, %b : tensor<f32>
      stablehlo.return %s : tensor<f32>
    }) : (tensor<8xf32>) -> tensor<4xf32>
    return %0 : tensor<4xf32>
  }

  func.func private @a_scatter_of_too_small_a_size(%x: tensor<8xf32>) -> tensor<1xf32> {
    // expected-error @+1 {{reduce_scatter, dimension 0, group of 4 devices: 8 makes 8 / 4 = 2 per device, the result has 1}}
    %0 = "stablehlo.reduce_scatter"(%x) <{scatter_dimension = 0 : i64, replica_groups = dense<[[0, 2, 4, 6], [1, 3, 5, 7]]> : tensor<2x4xi64>}> ({
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %s = stablehlo.add %a, %b : tensor<f32>
      stablehlo.return %s : tensor<f32>
    }) : (tensor<8xf32>) -> tensor<1xf32>
    return %0 : tensor<1xf32>
  }

  func.func private @an_all_to_all_that_splits_into_other_than_the_group_size(%x: tensor<4xf32>) -> tensor<4xf32> {
    // expected-error @+1 {{all_to_all splits into 2 parts for a group of 4 devices; split_count must be 4}}
    %0 = "stablehlo.all_to_all"(%x) <{split_dimension = 0 : i64, concat_dimension = 0 : i64, split_count = 2 : i64, replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>}> : (tensor<4xf32>) -> tensor<4xf32>
    return %0 : tensor<4xf32>
  }
}

// -----

module @a_mesh_of_more_devices_than_XLA_counts {
  sdy.mesh @mesh = <["i"=65536, "j"=32768]>
  // expected-error @+1 {{the mesh @mesh [i=65536, j=32768] has 65536 * 32768 = 2147483648 devices, more than 2147483647}}
  func.func public @main() attributes {sdy.manual_axes = #sdy<manual_axes{"i"}>} {
    return
  }
}

// -----

module @an_array_of_more_bytes_than_64_bits_count {
  sdy.mesh @mesh = <["i"=4]>
  // expected-error @+1 {{@main's argument 0: the full array has 9223372036854775808 bytes, more than 9223372036854775807}}
  func.func public @main(%x: tensor<536870912x1073741824xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"i"}, {}]>})
      attributes {sdy.manual_axes = #sdy<manual_axes{"i"}>} {
    return
  }
}

// -----

module @groups_on_another_mesh {
  sdy.mesh @mesh = <["i"=4]>
  func.func public @main(%x: tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}]>})
      attributes {sdy.manual_axes = #sdy<manual_axes{"i"}>} {
    // expected-error @+1 {{all_reduce names its groups on mesh @main; name the module's, @mesh}}
    %0 = "stablehlo.all_reduce"(%x) <{replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @main, axes = [#stablehlo.axis_ref<name = "i">]>}> ({
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %s = stablehlo.add %a, %b : tensor<f32>
      stablehlo.return %s : tensor<f32>
    }) : (tensor<4xf32>) -> tensor<4xf32>
    return
  }
}
