// RUN: shmap-opt %s --shmap-import-manual-computation --split-input-file --verify-diagnostics

module @no_region {
  // expected-error @+1 {{the module has no sdy.manual_computation, so there is no region to import; for modules with @SPMDFullToShardShape use shmap-import-custom-calls}}
  func.func public @main(%x: tensor<8xf32>) -> tensor<8xf32> {
    return %x : tensor<8xf32>
  }
}

// -----

// expected-error @+1 {{the module has no function @main with a body, nor one public function only; its functions: @f, @g; name the one that holds the region @main}}
module @two_functions_and_no_main {
  func.func public @f(%x: tensor<8xf32>) -> tensor<8xf32> {
    return %x : tensor<8xf32>
  }
  func.func @g(%x: tensor<8xf32>) -> tensor<8xf32> {
    return %x : tensor<8xf32>
  }
}

// -----

module @body_form_already {
  sdy.mesh @mesh = <["i"=4]>
  // expected-error @+1 {{@main is in body form already; leave this pass out}}
  func.func public @main() attributes {sdy.manual_axes = #sdy<manual_axes{"i"}>} {
    return
  }
}

// -----

module @a_region_that_main_does_not_reach {
  sdy.mesh @mesh = <["i"=4]>
  // expected-error @+1 {{the regions are in @layer, which @main does not call}}
  func.func public @main(%x: tensor<8xf32>) -> tensor<8xf32> {
    return %x : tensor<8xf32>
  }
  func.func public @layer(%x: tensor<8xf32>) -> tensor<8xf32> {
    %0 = sdy.manual_computation(%x) in_shardings=[<@mesh, [{"i"}]>] out_shardings=[<@mesh, [{"i"}]>] manual_axes={"i"} (%b: tensor<2xf32>) {
      sdy.return %b : tensor<2xf32>
    } : (tensor<8xf32>) -> tensor<8xf32>
    return %0 : tensor<8xf32>
  }
}

// -----

module @functions_that_call_themselves {
  sdy.mesh @mesh = <["i"=4]>
  func.func public @main(%x: tensor<8xf32>) -> tensor<8xf32> {
    %0 = call @f(%x) : (tensor<8xf32>) -> tensor<8xf32>
    return %0 : tensor<8xf32>
  }
  // expected-error @+1 {{@f calls itself, which XLA does not take; write a loop instead}}
  func.func private @f(%x: tensor<8xf32>) -> tensor<8xf32> {
    %0 = sdy.manual_computation(%x) in_shardings=[<@mesh, [{"i"}]>] out_shardings=[<@mesh, [{"i"}]>] manual_axes={"i"} (%b: tensor<2xf32>) {
      sdy.return %b : tensor<2xf32>
    } : (tensor<8xf32>) -> tensor<8xf32>
    %1 = call @f(%0) : (tensor<8xf32>) -> tensor<8xf32>
    return %1 : tensor<8xf32>
  }
}

// -----

module @regions_on_two_meshes {
  sdy.mesh @mesh = <["i"=4]>
  sdy.mesh @other = <["k"=4]>
  func.func public @main(%x: tensor<8xf32>) -> tensor<8xf32> {
    %0 = sdy.manual_computation(%x) in_shardings=[<@mesh, [{"i"}]>] out_shardings=[<@mesh, [{"i"}]>] manual_axes={"i"} (%b: tensor<2xf32>) {
      sdy.return %b : tensor<2xf32>
    } : (tensor<8xf32>) -> tensor<8xf32>
    // expected-error @+1 {{the region is on @mesh [k=4] with manual axes "k", and another on @mesh [i=4] with "i"; a module in body form has one mesh}}
    %1 = sdy.manual_computation(%0) in_shardings=[<@other, [{"k"}]>] out_shardings=[<@other, [{"k"}]>] manual_axes={"k"} (%b: tensor<2xf32>) {
      sdy.return %b : tensor<2xf32>
    } : (tensor<8xf32>) -> tensor<8xf32>
    return %1 : tensor<8xf32>
  }
}

// -----

module @device_ids {
  sdy.mesh @mesh = <["i"=4], device_ids=[3, 2, 1, 0]>
  func.func public @main(%x: tensor<8xf32>) -> tensor<8xf32> {
    // expected-error @+1 {{lists device ids; devices are positions in the mesh in body form: leave the ids to whoever places the program}}
    %0 = sdy.manual_computation(%x) in_shardings=[<@mesh, [{"i"}]>] out_shardings=[<@mesh, [{"i"}]>] manual_axes={"i"} (%b: tensor<2xf32>) {
      sdy.return %b : tensor<2xf32>
    } : (tensor<8xf32>) -> tensor<8xf32>
    return %0 : tensor<8xf32>
  }
}

// -----

module @a_mesh_without_axes {
  sdy.mesh @one = <[]>
  func.func public @main(%x: tensor<8xf32>) -> tensor<8xf32> {
    // expected-error @+1 {{a mesh without axes: it runs on one device, and nothing of it is per device; take it out of the region}}
    %0 = sdy.manual_computation(%x) in_shardings=[<@one, [{}]>] out_shardings=[<@one, [{}]>] manual_axes={} (%b: tensor<8xf32>) {
      sdy.return %b : tensor<8xf32>
    } : (tensor<8xf32>) -> tensor<8xf32>
    return %0 : tensor<8xf32>
  }
}

// -----

module @summands_where_sums_are_wanted {
  sdy.mesh @mesh = <["i"=4]>
  func.func public @main(%x: tensor<8x8xf32>) -> tensor<8x8xf32> {
    // expected-note @+1 {{the array leaves a manual region here, split as [{}, {}] unreduced={i}}}
    %0 = sdy.manual_computation(%x) in_shardings=[<@mesh, [{"i"}, {}]>] out_shardings=[<@mesh, [{}, {}], unreduced={"i"}>] manual_axes={"i"} (%b: tensor<2x8xf32>) {
      %1 = "stablehlo.all_gather"(%b) <{all_gather_dim = 0 : i64, channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, replica_groups = dense<[[0, 1, 2, 3]]> : tensor<1x4xi64>, use_global_device_ids}> : (tensor<2x8xf32>) -> tensor<8x8xf32>
      sdy.return %1 : tensor<8x8xf32>
    } : (tensor<8x8xf32>) -> tensor<8x8xf32>
    // expected-error @+2 {{an array tensor<8x8xf32> outside of the manual regions is wanted split as [{}, {}] unreduced={i} and as [{}, {}]; sum it in a region}}
    // expected-note @+1 {{the array is used by stablehlo.transpose, which works on whole arrays here, split as [{}, {}]}}
    %2 = stablehlo.transpose %0, dims = [1, 0] : (tensor<8x8xf32>) -> tensor<8x8xf32>
    return %2 : tensor<8x8xf32>
  }
}

// -----

module @effects_and_positions_outside_of_regions {
  sdy.mesh @mesh = <["i"=4]>
  func.func public @main(%x: tensor<8xf32>) -> tensor<8xf32> {
    %0 = sdy.manual_computation(%x) in_shardings=[<@mesh, [{"i"}]>] out_shardings=[<@mesh, [{"i"}]>] manual_axes={"i"} (%b: tensor<2xf32>) {
      sdy.return %b : tensor<2xf32>
    } : (tensor<8xf32>) -> tensor<8xf32>
    // expected-error @+1 {{stablehlo.custom_call outside of the manual regions has an effect, or communicates, once for all devices; in body form each device would do it}}
    stablehlo.custom_call @tell(%0) {has_side_effect = true} : (tensor<8xf32>) -> ()
    // expected-error @+1 {{stablehlo.partition_id outside of the manual regions has an effect, or communicates}}
    %p = stablehlo.partition_id : tensor<ui32>
    return %0 : tensor<8xf32>
  }
}

// -----

module @positions_along_automatic_axes {
  sdy.mesh @mesh = <["i"=4, "j"=2]>
  func.func public @main(%x: tensor<8xf32>) -> tensor<i32> {
    %0 = sdy.manual_computation(%x) in_shardings=[<@mesh, [{"i"}]>] out_shardings=[<@mesh, []>] manual_axes={"i"} (%b: tensor<2xf32>) {
      // expected-error @+1 {{stablehlo.partition_id depends on the position of the device along "j", which the region does not make manual; use positions along manual axes only}}
      %p = stablehlo.partition_id : tensor<ui32>
      %c = stablehlo.convert %p : (tensor<ui32>) -> tensor<i32>
      sdy.return %c : tensor<i32>
    } : (tensor<8xf32>) -> tensor<i32>
    return %0 : tensor<i32>
  }
}

// -----

module @groups_over_part_of_an_axis {
  sdy.mesh @mesh = <["i"=4]>
  func.func public @main(%x: tensor<8xf32>) -> tensor<8xf32> {
    %0 = sdy.manual_computation(%x) in_shardings=[<@mesh, [{"i"}]>] out_shardings=[<@mesh, [{"i"}]>] manual_axes={"i"} (%b: tensor<2xf32>) {
      // expected-error @+1 {{they must be whole axes of a mesh without device ids; list the devices of each group instead}}
      %1 = "stablehlo.all_reduce"(%b) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i", sub_axis_info = (1)2>]>, use_global_device_ids}> ({
      ^bb0(%l: tensor<f32>, %r: tensor<f32>):
        %s = stablehlo.add %l, %r : tensor<f32>
        stablehlo.return %s : tensor<f32>
      }) : (tensor<2xf32>) -> tensor<2xf32>
      sdy.return %1 : tensor<2xf32>
    } : (tensor<8xf32>) -> tensor<8xf32>
    return %0 : tensor<8xf32>
  }
}

// -----

module @effects_in_functions_outside_of_regions {
  sdy.mesh @mesh = <["i"=4]>
  func.func public @main(%x: tensor<8xf32>) -> tensor<8xf32> {
    %0 = sdy.manual_computation(%x) in_shardings=[<@mesh, [{"i"}]>] out_shardings=[<@mesh, [{"i"}]>] manual_axes={"i"} (%b: tensor<2xf32>) {
      sdy.return %b : tensor<2xf32>
    } : (tensor<8xf32>) -> tensor<8xf32>
    call @f(%x) : (tensor<8xf32>) -> ()
    return %0 : tensor<8xf32>
  }
  func.func private @f(%x: tensor<8xf32>) {
    call @g(%x) : (tensor<8xf32>) -> ()
    return
  }
  func.func private @g(%x: tensor<8xf32>) {
    // expected-error @+1 {{stablehlo.custom_call outside of the manual regions has an effect, or communicates}}
    stablehlo.custom_call @tell(%x) {has_side_effect = true} : (tensor<8xf32>) -> ()
    return
  }
}

// -----

module @operations_on_summands {
  sdy.mesh @mesh = <["i"=4]>
  func.func public @main(%x: tensor<8xf32>) -> tensor<8xf32> {
    %0 = sdy.manual_computation(%x) in_shardings=[<@mesh, [{}]>] out_shardings=[<@mesh, [{}], unreduced={"i"}>] manual_axes={"i"} (%b: tensor<8xf32>) {
      sdy.return %b : tensor<8xf32>
    } : (tensor<8xf32>) -> tensor<8xf32>
    // expected-error @+1 {{stablehlo.sine outside of the manual regions takes an array of which each device holds a summand, split as [{}] unreduced={i}; sum it in the region}}
    %1 = stablehlo.sine %0 : tensor<8xf32>
    return %1 : tensor<8xf32>
  }
}

// -----

module @a_sum_over_manual_and_automatic_axes {
  sdy.mesh @mesh = <["i"=4, "j"=2]>
  func.func public @main(%x: tensor<8x8xf32>) -> tensor<8x8xf32> {
    %0 = sdy.manual_computation(%x) in_shardings=[<@mesh, [{"i"}, {}]>] out_shardings=[<@mesh, [{"i"}, {}]>] manual_axes={"i"} (%b: tensor<2x8xf32>) {
      // expected-error @+1 {{sdy.all_reduce is over "i", "j", which are not whole manual axes; split it into one over whole manual axes and one over others}}
      %1 = sdy.all_reduce {"i", "j"} %b out_sharding=<@mesh, [{}, {}]> : tensor<2x8xf32>
      sdy.return %1 : tensor<2x8xf32>
    } : (tensor<8x8xf32>) -> tensor<8x8xf32>
    return %0 : tensor<8x8xf32>
  }
}

// -----

module @a_sum_of_full_arrays {
  sdy.mesh @mesh = <["i"=4]>
  func.func public @main(%x: tensor<8x8xf32>) -> tensor<8x8xf32> {
    // expected-error @+1 {{sdy.all_reduce outside of the manual regions has an effect, or communicates, once for all devices}}
    %y = sdy.all_reduce {"i"} %x out_sharding=<@mesh, [{}, {}]> : tensor<8x8xf32>
    %0 = sdy.manual_computation(%y) in_shardings=[<@mesh, [{"i"}, {}]>] out_shardings=[<@mesh, [{"i"}, {}]>] manual_axes={"i"} (%b: tensor<2x8xf32>) {
      sdy.return %b : tensor<2x8xf32>
    } : (tensor<8x8xf32>) -> tensor<8x8xf32>
    return %0 : tensor<8x8xf32>
  }
}

// -----

module @dimensions_of_unknown_size {
  sdy.mesh @mesh = <["i"=4]>
  func.func public @main(%x: tensor<?x8xf32>) -> tensor<?x8xf32> {
    // expected-error @+2 {{the array tensor<?x8xf32> is split as [{"i"}, {}], and has a dimension of unknown size; lower the program for known shapes}}
    // expected-error @+1 {{the array tensor<?x8xf32> is split as [{"i"}, {}], and has a dimension of unknown size; lower the program for known shapes}}
    %0 = sdy.manual_computation(%x) in_shardings=[<@mesh, [{"i"}, {}]>] out_shardings=[<@mesh, [{"i"}, {}]>] manual_axes={"i"} (%b: tensor<?x8xf32>) {
      sdy.return %b : tensor<?x8xf32>
    } : (tensor<?x8xf32>) -> tensor<?x8xf32>
    return %0 : tensor<?x8xf32>
  }
}

// -----

module @a_region_as_custom_calls_that_is_not_left attributes {mhlo.frontend_attributes = {xla.sdy.meshes = "{mesh = #sdy.mesh<[\22a\22=2]>}"}} {
  func.func @main(%x: tensor<8xf32>) -> tensor<4xf32> {
    %0 = stablehlo.custom_call @xla.sdy.GlobalToLocalShape(%x) {mhlo.frontend_attributes = {xla.sdy.in_shardings = "#sdy.sharding_per_value<[<@mesh, [{\22a\22}]>]>", xla.sdy.manual_axes = "#sdy<manual_axes{\22a\22}>"}} : (tensor<8xf32>) -> tensor<4xf32>
    // expected-error @+1 {{the arguments or results of @xla.sdy.manual_computation_body do not all go through one @xla.sdy.LocalToGlobalShape}}
    %1 = call @xla.sdy.manual_computation_body(%0) : (tensor<4xf32>) -> tensor<4xf32>
    return %1 : tensor<4xf32>
  }
  func.func private @xla.sdy.manual_computation_body(%x: tensor<4xf32>) -> tensor<4xf32> {
    return %x : tensor<4xf32>
  }
}

// -----

module @a_region_as_custom_calls_without_shardings attributes {mhlo.frontend_attributes = {xla.sdy.meshes = "{mesh = #sdy.mesh<[\22a\22=2]>}"}} {
  func.func @main(%x: tensor<8xf32>) -> tensor<8xf32> {
    %0 = stablehlo.custom_call @xla.sdy.GlobalToLocalShape(%x) : (tensor<8xf32>) -> tensor<4xf32>
    // expected-error @+1 {{the region has no xla.sdy.in_shardings; write it}}
    %1 = call @xla.sdy.manual_computation_body(%0) : (tensor<4xf32>) -> tensor<4xf32>
    %2 = stablehlo.custom_call @xla.sdy.LocalToGlobalShape(%1) : (tensor<4xf32>) -> tensor<8xf32>
    return %2 : tensor<8xf32>
  }
  func.func private @xla.sdy.manual_computation_body(%x: tensor<4xf32>) -> tensor<4xf32> {
    return %x : tensor<4xf32>
  }
}

// -----

module @a_hint_without_a_sharding attributes {mhlo.frontend_attributes = {xla.sdy.meshes = "{mesh = #sdy.mesh<[\22a\22=2]>}"}} {
  func.func public @main(%x: tensor<8xf32>) -> tensor<8xf32> {
    // expected-error @+1 {{xla.sdy.sharding is #sdy.sharding_per_value<[]>, and must list 1, one for each value}}
    %0 = stablehlo.custom_call @Sharding(%x) {mhlo.frontend_attributes = {xla.sdy.sharding = "#sdy.sharding_per_value<[]>"}, mhlo.sharding = "{devices=[2]<=[2]}"} : (tensor<8xf32>) -> tensor<8xf32>
    %1 = stablehlo.custom_call @xla.sdy.GlobalToLocalShape(%0) {mhlo.frontend_attributes = {xla.sdy.in_shardings = "#sdy.sharding_per_value<[<@mesh, [{\22a\22}]>]>", xla.sdy.manual_axes = "#sdy<manual_axes{\22a\22}>"}} : (tensor<8xf32>) -> tensor<4xf32>
    return %x : tensor<8xf32>
  }
}

// -----

module @a_hint_that_is_no_attribute attributes {mhlo.frontend_attributes = {xla.sdy.meshes = "{mesh = #sdy.mesh<[\22a\22=2]>}"}} {
  func.func public @main(%x: tensor<8xf32>) -> tensor<8xf32> {
    // expected-error @+1 {{xla.sdy.sharding is "nothing", which is not an attribute written as text}}
    %0 = stablehlo.custom_call @Sharding(%x) {mhlo.frontend_attributes = {xla.sdy.sharding = "nothing"}, mhlo.sharding = "{devices=[2]<=[2]}"} : (tensor<8xf32>) -> tensor<8xf32>
    %1 = stablehlo.custom_call @xla.sdy.GlobalToLocalShape(%0) {mhlo.frontend_attributes = {xla.sdy.in_shardings = "#sdy.sharding_per_value<[<@mesh, [{\22a\22}]>]>", xla.sdy.manual_axes = "#sdy<manual_axes{\22a\22}>"}} : (tensor<8xf32>) -> tensor<4xf32>
    return %x : tensor<8xf32>
  }
}

// -----

module @a_hint_of_no_text attributes {mhlo.frontend_attributes = {xla.sdy.meshes = "{mesh = #sdy.mesh<[\22a\22=2]>}"}} {
  func.func public @main(%x: tensor<8xf32>) -> tensor<8xf32> {
    // expected-error @+1 {{xla.sdy.sharding is "", which is not an attribute written as text}}
    %0 = stablehlo.custom_call @Sharding(%x) {mhlo.frontend_attributes = {xla.sdy.sharding = ""}, mhlo.sharding = "{devices=[2]<=[2]}"} : (tensor<8xf32>) -> tensor<8xf32>
    %1 = stablehlo.custom_call @xla.sdy.GlobalToLocalShape(%0) {mhlo.frontend_attributes = {xla.sdy.in_shardings = "#sdy.sharding_per_value<[<@mesh, [{\22a\22}]>]>", xla.sdy.manual_axes = "#sdy<manual_axes{\22a\22}>"}} : (tensor<8xf32>) -> tensor<4xf32>
    return %x : tensor<8xf32>
  }
}

// -----

module @a_region_with_too_many_shardings attributes {mhlo.frontend_attributes = {xla.sdy.meshes = "{mesh = #sdy.mesh<[\22a\22=2]>}"}} {
  func.func public @main(%x: tensor<8xf32>) -> tensor<8xf32> {
    // expected-error @+1 {{xla.sdy.in_shardings is #sdy.sharding_per_value<[<@mesh, [{"a"}]>, <@mesh, [{}]>]>, and must list 1, one for each value}}
    %0 = stablehlo.custom_call @xla.sdy.GlobalToLocalShape(%x) {mhlo.frontend_attributes = {xla.sdy.in_shardings = "#sdy.sharding_per_value<[<@mesh, [{\22a\22}]>, <@mesh, [{}]>]>", xla.sdy.manual_axes = "#sdy<manual_axes{\22a\22}>"}} : (tensor<8xf32>) -> tensor<4xf32>
    %1 = call @xla.sdy.manual_computation_body(%0) : (tensor<4xf32>) -> tensor<4xf32>
    %2 = stablehlo.custom_call @xla.sdy.LocalToGlobalShape(%1) {mhlo.frontend_attributes = {xla.sdy.out_shardings = "#sdy.sharding_per_value<[<@mesh, [{\22a\22}]>]>", xla.sdy.manual_axes = "#sdy<manual_axes{\22a\22}>"}} : (tensor<4xf32>) -> tensor<8xf32>
    return %2 : tensor<8xf32>
  }
  func.func private @xla.sdy.manual_computation_body(%x: tensor<4xf32>) -> tensor<4xf32> {
    return %x : tensor<4xf32>
  }
}

// -----

module @a_region_with_another_attribute attributes {mhlo.frontend_attributes = {xla.sdy.meshes = "{mesh = #sdy.mesh<[\22a\22=2]>}"}} {
  func.func public @main(%x: tensor<8xf32>) -> tensor<8xf32> {
    // expected-error @+1 {{xla.sdy.in_shardings is 3 : i32, and must list 1, one for each value}}
    %0 = stablehlo.custom_call @xla.sdy.GlobalToLocalShape(%x) {mhlo.frontend_attributes = {xla.sdy.in_shardings = "3 : i32", xla.sdy.manual_axes = "#sdy<manual_axes{\22a\22}>"}} : (tensor<8xf32>) -> tensor<4xf32>
    %1 = call @xla.sdy.manual_computation_body(%0) : (tensor<4xf32>) -> tensor<4xf32>
    %2 = stablehlo.custom_call @xla.sdy.LocalToGlobalShape(%1) {mhlo.frontend_attributes = {xla.sdy.out_shardings = "#sdy.sharding_per_value<[<@mesh, [{\22a\22}]>]>", xla.sdy.manual_axes = "#sdy<manual_axes{\22a\22}>"}} : (tensor<4xf32>) -> tensor<8xf32>
    return %2 : tensor<8xf32>
  }
  func.func private @xla.sdy.manual_computation_body(%x: tensor<4xf32>) -> tensor<4xf32> {
    return %x : tensor<4xf32>
  }
}

// -----

// expected-error @+1 {{xla.sdy.meshes is {mesh = 3 : i64}, and must be a dictionary of meshes}}
module @notes_with_another_mesh attributes {mhlo.frontend_attributes = {xla.sdy.meshes = "{mesh = 3 : i64}"}} {
  func.func public @main(%x: tensor<8xf32>) -> tensor<4xf32> {
    %0 = stablehlo.custom_call @xla.sdy.GlobalToLocalShape(%x) : (tensor<8xf32>) -> tensor<4xf32>
    return %0 : tensor<4xf32>
  }
}

// -----

module @an_argument_that_is_whole_would_become_summands {
  sdy.mesh @mesh = <["i"=4]>
  // expected-error @+1 {{argument 0 is whole by its sharding, and a region takes summands of it, split as [{}] unreduced={i}; make the summands in a region}}
  func.func public @main(%x: tensor<8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}]>}) -> tensor<8xf32> {
    %0 = sdy.sharding_constraint %x <@mesh, [{}], unreduced={"i"}> : tensor<8xf32>
    %1 = sdy.manual_computation(%0) in_shardings=[<@mesh, [{}], unreduced={"i"}>] out_shardings=[<@mesh, [{}]>] manual_axes={"i"} (%b: tensor<8xf32>) {
      %2 = "stablehlo.all_reduce"(%b) <{replica_groups = dense<[[0, 1, 2, 3]]> : tensor<1x4xi64>, channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, use_global_device_ids}> ({
      ^bb0(%l: tensor<f32>, %r: tensor<f32>):
        %s = stablehlo.add %l, %r : tensor<f32>
        stablehlo.return %s : tensor<f32>
      }) : (tensor<8xf32>) -> tensor<8xf32>
      sdy.return %2 : tensor<8xf32>
    } : (tensor<8xf32>) -> tensor<8xf32>
    return %1 : tensor<8xf32>
  }
}

// -----

module @an_argument_that_is_a_tuple {
  sdy.mesh @mesh = <["i"=4]>
  // expected-error @+1 {{argument 0 is a tuple<tensor<8xf32>, tensor<8xf32>>, and body form has arrays of a known rank}}
  func.func public @main(%t: tuple<tensor<8xf32>, tensor<8xf32>>) -> tensor<8xf32> {
    %x = stablehlo.get_tuple_element %t[1] : (tuple<tensor<8xf32>, tensor<8xf32>>) -> tensor<8xf32>
    %0 = sdy.manual_computation(%x) in_shardings=[<@mesh, [{"i"}]>] out_shardings=[<@mesh, [{"i"}]>] manual_axes={"i"} (%b: tensor<2xf32>) {
      sdy.return %b : tensor<2xf32>
    } : (tensor<8xf32>) -> tensor<8xf32>
    return %0 : tensor<8xf32>
  }
}

// -----

module @an_argument_of_unknown_rank {
  sdy.mesh @mesh = <["i"=4]>
  // expected-error @+1 {{argument 1 is a tensor<*xf32>, and body form has arrays of a known rank; take the arrays of a tuple apart, and lower the program for known shapes}}
  func.func public @main(%x: tensor<8xf32>, %u: tensor<*xf32>) -> tensor<8xf32> {
    %0 = sdy.manual_computation(%x) in_shardings=[<@mesh, [{"i"}]>] out_shardings=[<@mesh, [{"i"}]>] manual_axes={"i"} (%b: tensor<2xf32>) {
      sdy.return %b : tensor<2xf32>
    } : (tensor<8xf32>) -> tensor<8xf32>
    return %0 : tensor<8xf32>
  }
}

// -----

module @a_tuple_outside_of_the_region {
  sdy.mesh @mesh = <["i"=4]>
  func.func public @main(%x: tensor<8xf32>) -> tensor<8xf32> {
    // expected-error @+1 {{what stablehlo.tuple makes outside of the manual regions is a tuple<tensor<8xf32>>, and}}
    %t = stablehlo.tuple %x : tuple<tensor<8xf32>>
    %y = stablehlo.get_tuple_element %t[0] : (tuple<tensor<8xf32>>) -> tensor<8xf32>
    %0 = sdy.manual_computation(%y) in_shardings=[<@mesh, [{"i"}]>] out_shardings=[<@mesh, [{"i"}]>] manual_axes={"i"} (%b: tensor<2xf32>) {
      sdy.return %b : tensor<2xf32>
    } : (tensor<8xf32>) -> tensor<8xf32>
    return %0 : tensor<8xf32>
  }
}

// -----

module @a_result_that_is_a_tuple_of_constants {
  sdy.mesh @mesh = <["i"=4]>
  func.func public @main(%x: tensor<8xf32>) -> (tensor<8xf32>, tuple<tensor<f32>>) {
    %0 = sdy.manual_computation(%x) in_shardings=[<@mesh, [{"i"}]>] out_shardings=[<@mesh, [{"i"}]>] manual_axes={"i"} (%b: tensor<2xf32>) {
      sdy.return %b : tensor<2xf32>
    } : (tensor<8xf32>) -> tensor<8xf32>
    %c = stablehlo.constant dense<0.0> : tensor<f32>
    %t = stablehlo.tuple %c : tuple<tensor<f32>>
    // expected-error @+1 {{result 1 of @main is a tuple<tensor<f32>>, and}}
    return %0, %t : tensor<8xf32>, tuple<tensor<f32>>
  }
}

// -----

// expected-error @+1 {{the module runs as 2 replicas, and body form describes the devices of one}}
module @replicas attributes {mhlo.num_partitions = 4 : i32, mhlo.num_replicas = 2 : i32} {
  func.func public @main(%x: tensor<8xf32>) -> tensor<2xf32> {
    %0 = sdy.manual_computation(%x) in_shardings=[<mesh<["i"=4]>, [{"i"}]>] out_shardings=[<mesh<["i"=4]>, [{}]>] manual_axes={"i"} (%b: tensor<2xf32>) {
      sdy.return %b : tensor<2xf32>
    } : (tensor<8xf32>) -> tensor<2xf32>
    return %0 : tensor<2xf32>
  }
}
