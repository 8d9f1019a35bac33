// Collectives and axis indices where the axis "k" is automatic.
// RUN: shmap-opt %s --shmap-legalize-collectives=partitioner=gspmd | FileCheck %s --check-prefix=GSPMD
// RUN: shmap-opt %s --shmap-legalize-collectives=partitioner=shardy | FileCheck %s --check-prefix=SHARDY

module {
  sdy.mesh @mesh = <["i"=2, "k"=4]>
  func.func public @main() attributes {sdy.manual_axes = #sdy<manual_axes{"i"}>} {
    return
  }

  // GSPMD-LABEL: func.func private @an_axis_index_is_computed_where_all_axes_are_manual
  // SHARDY-LABEL: func.func private @an_axis_index_is_computed_where_all_axes_are_manual
  func.func private @an_axis_index_is_computed_where_all_axes_are_manual() -> tensor<i32> {
    // GSPMD: %[[INDEX:.*]] = stablehlo.convert
    // GSPMD-NEXT: %[[MANUAL:.*]] = stablehlo.custom_call @Sharding(%[[INDEX]]) {backend_config = "", mhlo.sharding = "{manual}"}
    // GSPMD-NEXT: stablehlo.custom_call @SPMDShardToFullShape(%[[MANUAL]]) {backend_config = "", mhlo.sharding = "{devices=[2,4]<=[8] last_tile_dims={manual, replicated}}"}
    // SHARDY-NEXT: sdy.manual_computation() in_shardings=[] out_shardings=[<@mesh, []>] manual_axes={"k"} () {
    // SHARDY-NEXT: stablehlo.partition_id
    // SHARDY: sdy.return
    %0 = stablehlo.custom_call @shmap.axis_index() {api_version = 4 : i32, backend_config = {axes = ["i"]}} : () -> tensor<i32>
    return %0 : tensor<i32>
  }

  // GSPMD-LABEL: func.func private @a_gather_carries_the_sharding_of_the_region
  // SHARDY-LABEL: func.func private @a_gather_carries_the_sharding_of_the_region
  func.func private @a_gather_carries_the_sharding_of_the_region(%x: tensor<4xf32>) -> tensor<8xf32> {
    // GSPMD: "stablehlo.all_gather"
    // GSPMD-SAME: {mhlo.sharding = "{devices=[1,2,4]<=[8] last_tile_dims={manual, replicated}}"}
    // SHARDY-NOT: mhlo.sharding
    %0 = "stablehlo.all_gather"(%x) <{all_gather_dim = 0 : i64, replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>}> : (tensor<4xf32>) -> tensor<8xf32>
    return %0 : tensor<8xf32>
  }

  // GSPMD-LABEL: func.func private @a_reduction_and_a_permutation_carry_no_sharding
  func.func private @a_reduction_and_a_permutation_carry_no_sharding(%x: tensor<4xf32>) -> tensor<4xf32> {
    // GSPMD-NOT: mhlo.sharding
    // GSPMD: return
    %0 = "stablehlo.all_reduce"(%x) <{replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>}> ({
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %s = stablehlo.add %a, %b : tensor<f32>
      stablehlo.return %s : tensor<f32>
    }) : (tensor<4xf32>) -> tensor<4xf32>
    %1 = "stablehlo.collective_permute"(%0) <{source_target_pairs = dense<[[0, 4]]> : tensor<1x2xi64>}> : (tensor<4xf32>) -> tensor<4xf32>
    return %1 : tensor<4xf32>
  }

  // GSPMD-LABEL: func.func private @an_all_to_all_concatenates_where_it_splits
  // SHARDY-LABEL: func.func private @an_all_to_all_concatenates_where_it_splits
  func.func private @an_all_to_all_concatenates_where_it_splits(%x: tensor<4x3xf32>) -> tensor<2x6xf32> {
    // GSPMD: %[[PARTS:.*]] = "stablehlo.all_to_all"(%arg0)
    // GSPMD-SAME: concat_dimension = 0 : i64
    // GSPMD-SAME: {mhlo.sharding = "{devices=[1,1,2,4]<=[8] last_tile_dims={manual, replicated}}"} : (tensor<4x3xf32>) -> tensor<4x3xf32>
    // GSPMD-NEXT: %[[CUT:.*]] = stablehlo.reshape %[[PARTS]] : (tensor<4x3xf32>) -> tensor<2x2x3xf32>
    // GSPMD-NEXT: %[[MOVED:.*]] = stablehlo.transpose %[[CUT]], dims = [1, 0, 2]
    // GSPMD-NEXT: stablehlo.reshape %[[MOVED]] : (tensor<2x2x3xf32>) -> tensor<2x6xf32>
    // SHARDY: "stablehlo.all_to_all"
    // SHARDY-SAME: concat_dimension = 1 : i64
    // SHARDY-NOT: stablehlo.reshape
    %0 = "stablehlo.all_to_all"(%x) <{split_dimension = 0 : i64, concat_dimension = 1 : i64, split_count = 2 : i64, replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>}> : (tensor<4x3xf32>) -> tensor<2x6xf32>
    return %0 : tensor<2x6xf32>
  }

  // GSPMD-LABEL: func.func private @an_all_to_all_that_concatenates_there_already_stays
  func.func private @an_all_to_all_that_concatenates_there_already_stays(%x: tensor<4x3xf32>) -> tensor<4x3xf32> {
    // GSPMD: %[[PARTS:.*]] = "stablehlo.all_to_all"(%arg0)
    // GSPMD-SAME: {mhlo.sharding = "{devices=[1,1,2,4]<=[8] last_tile_dims={manual, replicated}}"}
    // GSPMD-NEXT: return %[[PARTS]]
    %0 = "stablehlo.all_to_all"(%x) <{split_dimension = 0 : i64, concat_dimension = 0 : i64, split_count = 2 : i64, replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>}> : (tensor<4x3xf32>) -> tensor<4x3xf32>
    return %0 : tensor<4x3xf32>
  }

  // GSPMD-LABEL: func.func private @hints_for_shardy
  // SHARDY-LABEL: func.func private @hints_for_shardy
  func.func private @hints_for_shardy(%x: tensor<4x3xf32>) -> tensor<4x3xf32> {
    // GSPMD: %[[SPLIT:.*]] = stablehlo.custom_call @Sharding(%arg0) {backend_config = "unspecified_dims=[1]", mhlo.sharding = "{devices=[4,1,2]<=[2,4]T(1,0) last_tile_dims={manual}}"}
    // GSPMD-NEXT: stablehlo.custom_call @Sharding(%[[SPLIT]]) {backend_config = "unspecified_dims=[0,1]", mhlo.sharding = "{devices=[1,1,2,4]<=[8] last_tile_dims={manual, replicated}}"}
    // GSPMD-NEXT: return
    // SHARDY-COUNT-2: sdy.sharding_constraint
    %0 = sdy.sharding_constraint %x <mesh<["i"=2, "k"=4]>, [{"k"}, {?}]> : tensor<4x3xf32>
    %1 = sdy.sharding_constraint %0 <mesh<["i"=2, "k"=4]>, [{?}, {?}]> : tensor<4x3xf32>
    return %1 : tensor<4x3xf32>
  }

  // GSPMD-LABEL: func.func private @hints_for_gspmd
  // SHARDY-LABEL: func.func private @hints_for_gspmd
  func.func private @hints_for_gspmd(%x: tensor<4x3xf32>) -> tensor<4x3xf32> {
    // SHARDY-NEXT: sdy.sharding_constraint %arg0 <@mesh, [{?}, {?}]>
    // GSPMD-NEXT: stablehlo.custom_call @Sharding(%arg0)
    %0 = stablehlo.custom_call @Sharding(%x) {backend_config = "unspecified_dims=[0,1]", mhlo.sharding = "{devices=[1,1,2,4]<=[8] last_tile_dims={manual, replicated}}"} : (tensor<4x3xf32>) -> tensor<4x3xf32>
    return %0 : tensor<4x3xf32>
  }
}
