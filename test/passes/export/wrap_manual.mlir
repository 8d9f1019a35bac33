// RUN: shmap-opt %s --shmap-wrap-manual --split-input-file | FileCheck %s --check-prefix=GSPMD
// RUN: shmap-opt %s --shmap-wrap-manual=partitioner=shardy --split-input-file | FileCheck %s --check-prefix=SHARDY

// GSPMD-LABEL: module @all_axes_are_manual attributes {mhlo.num_partitions = 8 : i32} {
// SHARDY-LABEL: module @all_axes_are_manual {
module @all_axes_are_manual {
  sdy.mesh @mesh = <["i"=4, "j"=2]>
  // GSPMD: func.func public @main(%arg0: tensor<8x16xf32>, %arg1: tensor<16x32xf32>) -> tensor<8x64xf32> {
  // GSPMD-NEXT: %[[X:.*]] = stablehlo.custom_call @Sharding(%arg0) {backend_config = "", mhlo.sharding = "{devices=[4,2]<=[8]}"} : (tensor<8x16xf32>) -> tensor<8x16xf32>
  // GSPMD-NEXT: %[[XB:.*]] = stablehlo.custom_call @SPMDFullToShardShape(%[[X]]) {backend_config = "", mhlo.sharding = "{manual}"} : (tensor<8x16xf32>) -> tensor<2x8xf32>
  // GSPMD-NEXT: %[[Y:.*]] = stablehlo.custom_call @Sharding(%arg1) {backend_config = "", mhlo.sharding = "{devices=[2,1,4]<=[4,2]T(1,0) last_tile_dim_replicate}"}
  // GSPMD-NEXT: %[[YB:.*]] = stablehlo.custom_call @SPMDFullToShardShape(%[[Y]])
  // GSPMD-NEXT: %[[R:.*]] = call @shmap_body(%[[XB]], %[[YB]]) : (tensor<2x8xf32>, tensor<8x32xf32>) -> tensor<2x32xf32>
  // GSPMD-NEXT: %[[RB:.*]] = stablehlo.custom_call @Sharding(%[[R]]) {backend_config = "", mhlo.sharding = "{manual}"} : (tensor<2x32xf32>) -> tensor<2x32xf32>
  // GSPMD-NEXT: %[[RF:.*]] = stablehlo.custom_call @SPMDShardToFullShape(%[[RB]]) {backend_config = "", mhlo.sharding = "{devices=[4,2]<=[8]}"} : (tensor<2x32xf32>) -> tensor<8x64xf32>
  // GSPMD-NEXT: return %[[RF]] : tensor<8x64xf32>
  // GSPMD: func.func private @shmap_body(%arg0: tensor<2x8xf32>, %arg1: tensor<8x32xf32>) -> tensor<2x32xf32> {

  // SHARDY: func.func public @main(%arg0: tensor<8x16xf32>, %arg1: tensor<16x32xf32>) -> tensor<8x64xf32> {
  // SHARDY-NEXT: %[[R:.*]] = sdy.manual_computation(%arg0, %arg1)
  // SHARDY-SAME{LITERAL}: in_shardings=[<@mesh, [{"i"}, {"j"}]>, <@mesh, [{"j"}, {}]>] out_shardings=[<@mesh, [{"i"}, {"j"}]>] manual_axes={"i", "j"}
  // SHARDY-SAME: (%[[X:.*]]: tensor<2x8xf32>, %[[Y:.*]]: tensor<8x32xf32>) {
  // SHARDY-NEXT: %[[B:.*]] = stablehlo.dot_general %[[X]], %[[Y]]
  // SHARDY-NEXT: sdy.return %[[B]] : tensor<2x32xf32>
  // SHARDY-NEXT: } : (tensor<8x16xf32>, tensor<16x32xf32>) -> tensor<8x64xf32>
  // SHARDY-NEXT: return %[[R]]
  func.func public @main(
      %x: tensor<2x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"i"}, {"j"}]>},
      %y: tensor<8x32xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"j"}, {}]>})
      -> (tensor<2x32xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"i"}, {"j"}]>})
      attributes {sdy.manual_axes = #sdy<manual_axes{"i", "j"}>} {
    %0 = stablehlo.dot_general %x, %y, contracting_dims = [1] x [0] : (tensor<2x8xf32>, tensor<8x32xf32>) -> tensor<2x32xf32>
    return %0 : tensor<2x32xf32>
  }
}

// -----

// GSPMD-LABEL: module @one_axis_is_automatic
// SHARDY-LABEL: module @one_axis_is_automatic
module @one_axis_is_automatic {
  sdy.mesh @mesh = <["i"=4, "j"=2]>
  // GSPMD: stablehlo.custom_call @Sharding(%arg0) {backend_config = "unspecified_dims=[0,1]", mhlo.sharding = "{devices=[1,2,4]<=[4,2]T(1,0) last_tile_dim_replicate}"}
  // GSPMD-NEXT: stablehlo.custom_call @SPMDFullToShardShape
  // GSPMD-SAME: {backend_config = "unspecified_dims=[0,1]", mhlo.sharding = "{devices=[1,1,2,4]<=[4,2]T(1,0) last_tile_dims={manual, replicated}}"}
  // SHARDY{LITERAL}: in_shardings=[<@mesh, [{?}, {"j", ?}]>] out_shardings=[<@mesh, [{?}, {"j", ?}]>] manual_axes={"j"}
  func.func public @main(
      %x: tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"j"}]>})
      -> (tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"j"}]>})
      attributes {sdy.manual_axes = #sdy<manual_axes{"j"}>} {
    return %x : tensor<8x8xf32>
  }
}

// -----

// GSPMD-LABEL: module @one_axis_is_manual_around_the_region
// SHARDY-LABEL: module @one_axis_is_manual_around_the_region
module @one_axis_is_manual_around_the_region {
  sdy.mesh @mesh = <["i"=4, "j"=2]>
  // GSPMD: @Sharding(%arg0) {backend_config = "unspecified_dims=[0]", mhlo.sharding = "{devices=[2,4]<=[4,2]T(1,0) last_tile_dims={manual}}"}
  // GSPMD-NEXT: @SPMDFullToShardShape
  // GSPMD-SAME: mhlo.sharding = "{manual}"
  // SHARDY{LITERAL}: in_shardings=[<@mesh, [{"j"}]>] out_shardings=[<@mesh, [{"j"}]>] manual_axes={"j"}
  func.func public @main(
      %x: tensor<8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"j"}]>})
      -> (tensor<8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"j"}]>})
      attributes {sdy.manual_axes = #sdy<manual_axes{"j"}>, shmap.outer_manual_axes = ["i"]} {
    return %x : tensor<8xf32>
  }
}

// -----

// GSPMD-LABEL: module @tokens_scalars_and_other_attributes_pass_through
// SHARDY-LABEL: module @tokens_scalars_and_other_attributes_pass_through
module @tokens_scalars_and_other_attributes_pass_through {
  sdy.mesh @mesh = <["i"=4]>
  // GSPMD: func.func public @main(%arg0: !stablehlo.token, %arg1: tensor<f32> {jax.buffer_donor = true}) -> (!stablehlo.token, tensor<f32> {jax.result_info = "sum"})
  // GSPMD-NEXT: stablehlo.custom_call @Sharding(%arg1) {backend_config = "", mhlo.sharding = "{replicated}"}
  // GSPMD: %[[R:.*]]:2 = call @shmap_body(%arg0, %{{.*}})
  // GSPMD: return %[[R]]#0, %{{.*}} : !stablehlo.token, tensor<f32>
  // SHARDY: func.func public @main(%arg0: !stablehlo.token, %arg1: tensor<f32> {jax.buffer_donor = true})
  // SHARDY{LITERAL}: in_shardings=[<@mesh, []>, <@mesh, []>] out_shardings=[<@mesh, []>, <@mesh, []>]
  func.func public @main(
      %token: !stablehlo.token,
      %x: tensor<f32> {jax.buffer_donor = true, sdy.sharding = #sdy.sharding<@mesh, []>})
      -> (!stablehlo.token,
          tensor<f32> {jax.result_info = "sum", sdy.sharding = #sdy.sharding<@mesh, []>})
      attributes {sdy.manual_axes = #sdy<manual_axes{"i"}>} {
    return %token, %x : !stablehlo.token, tensor<f32>
  }
}

// -----

// GSPMD-LABEL: module @a_mesh_of_one_device_needs_no_wrapping
// SHARDY-LABEL: module @a_mesh_of_one_device_needs_no_wrapping
module @a_mesh_of_one_device_needs_no_wrapping {
  sdy.mesh @mesh = <["i"=1]>
  // GSPMD: func.func public @main(%arg0: tensor<4xf32>) -> tensor<4xf32> {
  // GSPMD-NEXT: return %arg0
  // SHARDY: func.func public @main(%arg0: tensor<4xf32>) -> tensor<4xf32> {
  // SHARDY-NEXT: return %arg0
  func.func public @main(
      %x: tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"i"}]>})
      -> (tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}]>})
      attributes {sdy.manual_axes = #sdy<manual_axes{"i"}>} {
    return %x : tensor<4xf32>
  }
}

// -----

// GSPMD-LABEL: module @a_region_of_one_device_cuts_nothing
module @a_region_of_one_device_cuts_nothing {
  sdy.mesh @mesh = <["i"=1, "j"=8]>
  // GSPMD: func.func public @main(%arg0: tensor<4xf32>) -> tensor<4xf32> {
  // GSPMD-NEXT: %[[R:.*]] = call @shmap_body(%arg0) : (tensor<4xf32>) -> tensor<4xf32>
  // GSPMD-NEXT: return %[[R]]
  func.func public @main(
      %x: tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"i"}]>})
      -> (tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}]>})
      attributes {sdy.manual_axes = #sdy<manual_axes{"i"}>} {
    return %x : tensor<4xf32>
  }
}

// -----

// GSPMD-LABEL: module @a_body_of_a_nested_region_keeps_its_name
module @a_body_of_a_nested_region_keeps_its_name {
  sdy.mesh @mesh = <["i"=4]>
  // GSPMD: call @shmap_body_0() : () -> ()
  // GSPMD: func.func private @shmap_body_0() {
  // GSPMD: func.func private @shmap_body() {
  func.func public @main() attributes {sdy.manual_axes = #sdy<manual_axes{"i"}>} {
    return
  }
  func.func private @shmap_body() {
    return
  }
}

// -----

// GSPMD-LABEL: module @values_without_elements_stay_outside
// SHARDY-LABEL: module @values_without_elements_stay_outside
module @values_without_elements_stay_outside {
  sdy.mesh @mesh = <["i"=4]>
  // GSPMD: func.func public @main(%arg0: tensor<0x8xf32>, %arg1: tensor<8xf32>, %arg2: tensor<0xcomplex<f32>>) -> (tensor<0x8xf32>, tensor<8xf32>) {
  // GSPMD-NEXT: %[[X:.*]] = stablehlo.custom_call @Sharding(%arg1)
  // GSPMD-NEXT: %[[XB:.*]] = stablehlo.custom_call @SPMDFullToShardShape(%[[X]])
  // GSPMD-NEXT: %[[R:.*]] = call @shmap_body(%[[XB]]) : (tensor<2xf32>) -> tensor<2xf32>
  // GSPMD-NEXT: %[[NOTHING:.*]] = stablehlo.constant dense<> : tensor<0x8xf32>
  // GSPMD-NEXT: %[[EMPTY:.*]] = stablehlo.custom_call @Sharding(%[[NOTHING]]) {backend_config = "", mhlo.sharding = "{devices=[1,4]<=[4]}"}
  // GSPMD-NEXT: %[[RB:.*]] = stablehlo.custom_call @Sharding(%[[R]])
  // GSPMD-NEXT: %[[RF:.*]] = stablehlo.custom_call @SPMDShardToFullShape(%[[RB]])
  // GSPMD-NEXT: return %[[EMPTY]], %[[RF]]
  // GSPMD: func.func private @shmap_body(%arg0: tensor<2xf32>) -> tensor<2xf32> {
  // GSPMD-NEXT: return %arg0
  // SHARDY: func.func public @main(%arg0: tensor<0x8xf32>, %arg1: tensor<8xf32>, %arg2: tensor<0xcomplex<f32>>)
  // SHARDY-NEXT: sdy.manual_computation(%arg1)
  // SHARDY-SAME{LITERAL}: in_shardings=[<@mesh, [{"i"}]>] out_shardings=[<@mesh, [{}, {"i"}]>, <@mesh, [{"i"}]>]
  // SHARDY-NEXT: %[[NOTHING:.*]] = stablehlo.constant dense<> : tensor<0x2xf32>
  // SHARDY-NEXT: sdy.return %[[NOTHING]], %{{.*}} : tensor<0x2xf32>, tensor<2xf32>
  func.func public @main(
      %nothing: tensor<0x2xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"i"}]>},
      %x: tensor<2xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"i"}]>},
      %unused: tensor<0xcomplex<f32>> {sdy.sharding = #sdy.sharding<@mesh, [{}]>})
      -> (tensor<0x2xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"i"}]>},
          tensor<2xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"i"}]>})
      attributes {sdy.manual_axes = #sdy<manual_axes{"i"}>} {
    return %nothing, %x : tensor<0x2xf32>, tensor<2xf32>
  }
}

// -----

// GSPMD-LABEL: module @summands
// SHARDY-LABEL: module @summands
module @summands {
  sdy.mesh @mesh = <["i"=4, "j"=2]>
  // GSPMD: stablehlo.custom_call @Sharding(%arg0) {backend_config = "", mhlo.sharding = "{devices=[4,2]<=[8] last_tile_dims={unreduced}}"}
  // GSPMD: stablehlo.custom_call @SPMDShardToFullShape({{.*}}) {backend_config = "", mhlo.sharding = "{unreduced}"}
  // SHARDY: sdy.manual_computation(%arg0)
  // SHARDY-SAME{LITERAL}: in_shardings=[<@mesh, [{"i"}], unreduced={"j"}>] out_shardings=[<@mesh, [{}], unreduced={"i", "j"}>] manual_axes={"i", "j"}
  func.func public @main(
      %x: tensor<2xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"i"}], unreduced={"j"}>})
      -> (tensor<2xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}], unreduced={"i", "j"}>})
      attributes {sdy.manual_axes = #sdy<manual_axes{"i", "j"}>} {
    return %x : tensor<2xf32>
  }
}

// -----

// GSPMD-LABEL: module @a_body_that_only_calls_the_host_passes_a_number_through
// SHARDY-LABEL: module @a_body_that_only_calls_the_host_passes_a_number_through
module @a_body_that_only_calls_the_host_passes_a_number_through {
  sdy.mesh @mesh = <["i"=4, "j"=2]>
  // GSPMD: func.func public @main() {
  // GSPMD-NEXT: call @shmap_body() : () -> ()
  // GSPMD-NEXT: return
  // SHARDY: func.func public @main() {
  // SHARDY: %[[ZERO:.*]] = stablehlo.constant dense<0> : tensor<i32>
  // SHARDY: sdy.manual_computation(%[[ZERO]]) in_shardings=[<@mesh, []>] out_shardings=[<@mesh, []>] manual_axes={"i", "j"} (%[[ARG:.*]]: tensor<i32>) {
  // SHARDY-NEXT: stablehlo.custom_call @host()
  // SHARDY-NEXT: sdy.return %[[ARG]] : tensor<i32>
  // SHARDY: return{{$}}
  func.func public @main() attributes {sdy.manual_axes = #sdy<manual_axes{"i", "j"}>} {
    stablehlo.custom_call @host() {has_side_effect = true} : () -> ()
    return
  }
}
