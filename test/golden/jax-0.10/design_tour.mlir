// ----- design_tour.closure_over_i.body
module @"<lambda>" {
  sdy.mesh @mesh = <["i"=4, "j"=2]>
  func.func public @main(%arg0: tensor<1x1xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>}) -> (tensor<1x1xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"i"}, {}]>}) attributes {sdy.manual_axes = #sdy<manual_axes{"i", "j"}>} {
    return %arg0 : tensor<1x1xf32>
  }
}
// ----- design_tour.closure_over_i.stablehlo.gspmd
module @jit__lambda attributes {mhlo.num_partitions = 8 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main(%arg0: tensor<1x1xf32> {mhlo.sharding = "{replicated}"}) -> (tensor<4x1xf32> {jax.result_info = "result[0]"}) {
    %0 = stablehlo.custom_call @Sharding(%arg0) {backend_config = "", mhlo.sharding = "{replicated}"} : (tensor<1x1xf32>) -> tensor<1x1xf32>
    %1 = stablehlo.custom_call @SPMDFullToShardShape(%0) {backend_config = "", mhlo.sharding = "{manual}"} : (tensor<1x1xf32>) -> tensor<1x1xf32>
    %2 = call @shmap_body(%1) : (tensor<1x1xf32>) -> tensor<1x1xf32>
    %3 = stablehlo.custom_call @Sharding(%2) {backend_config = "", mhlo.sharding = "{manual}"} : (tensor<1x1xf32>) -> tensor<1x1xf32>
    %4 = stablehlo.custom_call @SPMDShardToFullShape(%3) {backend_config = "", mhlo.sharding = "{devices=[4,1,2]<=[8] last_tile_dim_replicate}"} : (tensor<1x1xf32>) -> tensor<4x1xf32>
    return %4 : tensor<4x1xf32>
  }
  func.func private @shmap_body(%arg0: tensor<1x1xf32>) -> tensor<1x1xf32> {
    return %arg0 : tensor<1x1xf32>
  }
}
// ----- design_tour.closure_over_i.stablehlo.shardy
module @jit__lambda attributes {mhlo.num_partitions = 8 : i32, mhlo.num_replicas = 1 : i32} {
  sdy.mesh @mesh = <["i"=4, "j"=2]> {stablehlo.mesh = {axes = [{name = "i", size = 4 : i64}, {name = "j", size = 2 : i64}]}}
  func.func public @main(%arg0: tensor<1x1xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>}) -> (tensor<4x1xf32> {jax.result_info = "result[0]"}) {
    %0 = sdy.manual_computation(%arg0) in_shardings=[<@mesh, [{}, {}]>] out_shardings=[<@mesh, [{"i"}, {}]>] manual_axes={"i", "j"} (%arg1: tensor<1x1xf32>) {
      sdy.return %arg1 : tensor<1x1xf32>
    } : (tensor<1x1xf32>) -> tensor<4x1xf32>
    return %0 : tensor<4x1xf32>
  }
}
// ----- design_tour.closure_over_i_and_j.body
module @"<lambda>" {
  sdy.mesh @mesh = <["i"=4, "j"=2]>
  func.func public @main(%arg0: tensor<1x1xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>}) -> (tensor<1x1xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"i"}, {"j"}]>}) attributes {sdy.manual_axes = #sdy<manual_axes{"i", "j"}>} {
    return %arg0 : tensor<1x1xf32>
  }
}
// ----- design_tour.closure_over_i_and_j.stablehlo.gspmd
module @jit__lambda attributes {mhlo.num_partitions = 8 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main(%arg0: tensor<1x1xf32> {mhlo.sharding = "{replicated}"}) -> (tensor<4x2xf32> {jax.result_info = "result[0]"}) {
    %0 = stablehlo.custom_call @Sharding(%arg0) {backend_config = "", mhlo.sharding = "{replicated}"} : (tensor<1x1xf32>) -> tensor<1x1xf32>
    %1 = stablehlo.custom_call @SPMDFullToShardShape(%0) {backend_config = "", mhlo.sharding = "{manual}"} : (tensor<1x1xf32>) -> tensor<1x1xf32>
    %2 = call @shmap_body(%1) : (tensor<1x1xf32>) -> tensor<1x1xf32>
    %3 = stablehlo.custom_call @Sharding(%2) {backend_config = "", mhlo.sharding = "{manual}"} : (tensor<1x1xf32>) -> tensor<1x1xf32>
    %4 = stablehlo.custom_call @SPMDShardToFullShape(%3) {backend_config = "", mhlo.sharding = "{devices=[4,2]<=[8]}"} : (tensor<1x1xf32>) -> tensor<4x2xf32>
    return %4 : tensor<4x2xf32>
  }
  func.func private @shmap_body(%arg0: tensor<1x1xf32>) -> tensor<1x1xf32> {
    return %arg0 : tensor<1x1xf32>
  }
}
// ----- design_tour.closure_over_i_and_j.stablehlo.shardy
module @jit__lambda attributes {mhlo.num_partitions = 8 : i32, mhlo.num_replicas = 1 : i32} {
  sdy.mesh @mesh = <["i"=4, "j"=2]> {stablehlo.mesh = {axes = [{name = "i", size = 4 : i64}, {name = "j", size = 2 : i64}]}}
  func.func public @main(%arg0: tensor<1x1xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>}) -> (tensor<4x2xf32> {jax.result_info = "result[0]"}) {
    %0 = sdy.manual_computation(%arg0) in_shardings=[<@mesh, [{}, {}]>] out_shardings=[<@mesh, [{"i"}, {"j"}]>] manual_axes={"i", "j"} (%arg1: tensor<1x1xf32>) {
      sdy.return %arg1 : tensor<1x1xf32>
    } : (tensor<1x1xf32>) -> tensor<4x2xf32>
    return %0 : tensor<4x2xf32>
  }
}
// ----- design_tour.closure_over_none.body
module @"<lambda>" {
  sdy.mesh @mesh = <["i"=4, "j"=2]>
  func.func public @main(%arg0: tensor<1x1xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>}) -> (tensor<1x1xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>}) attributes {sdy.manual_axes = #sdy<manual_axes{"i", "j"}>} {
    return %arg0 : tensor<1x1xf32>
  }
}
// ----- design_tour.closure_over_none.stablehlo.gspmd
module @jit__lambda attributes {mhlo.num_partitions = 8 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main(%arg0: tensor<1x1xf32> {mhlo.sharding = "{replicated}"}) -> (tensor<1x1xf32> {jax.result_info = "result[0]"}) {
    %0 = stablehlo.custom_call @Sharding(%arg0) {backend_config = "", mhlo.sharding = "{replicated}"} : (tensor<1x1xf32>) -> tensor<1x1xf32>
    %1 = stablehlo.custom_call @SPMDFullToShardShape(%0) {backend_config = "", mhlo.sharding = "{manual}"} : (tensor<1x1xf32>) -> tensor<1x1xf32>
    %2 = call @shmap_body(%1) : (tensor<1x1xf32>) -> tensor<1x1xf32>
    %3 = stablehlo.custom_call @Sharding(%2) {backend_config = "", mhlo.sharding = "{manual}"} : (tensor<1x1xf32>) -> tensor<1x1xf32>
    %4 = stablehlo.custom_call @SPMDShardToFullShape(%3) {backend_config = "", mhlo.sharding = "{replicated}"} : (tensor<1x1xf32>) -> tensor<1x1xf32>
    return %4 : tensor<1x1xf32>
  }
  func.func private @shmap_body(%arg0: tensor<1x1xf32>) -> tensor<1x1xf32> {
    return %arg0 : tensor<1x1xf32>
  }
}
// ----- design_tour.closure_over_none.stablehlo.shardy
module @jit__lambda attributes {mhlo.num_partitions = 8 : i32, mhlo.num_replicas = 1 : i32} {
  sdy.mesh @mesh = <["i"=4, "j"=2]> {stablehlo.mesh = {axes = [{name = "i", size = 4 : i64}, {name = "j", size = 2 : i64}]}}
  func.func public @main(%arg0: tensor<1x1xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>}) -> (tensor<1x1xf32> {jax.result_info = "result[0]"}) {
    %0 = sdy.manual_computation(%arg0) in_shardings=[<@mesh, [{}, {}]>] out_shardings=[<@mesh, [{}, {}]>] manual_axes={"i", "j"} (%arg1: tensor<1x1xf32>) {
      sdy.return %arg1 : tensor<1x1xf32>
    } : (tensor<1x1xf32>) -> tensor<1x1xf32>
    return %0 : tensor<1x1xf32>
  }
}
// ----- design_tour.f1.body
module @f1 {
  sdy.mesh @mesh = <["i"=4, "j"=2]>
  func.func public @main(%arg0: tensor<3x12xi32> {sdy.sharding = #sdy.sharding<@mesh, [{"i"}, {}]>}) -> (tensor<3x12xi32> {sdy.sharding = #sdy.sharding<@mesh, [{"i"}, {"j"}]>}) attributes {sdy.manual_axes = #sdy<manual_axes{"i", "j"}>} {
    return %arg0 : tensor<3x12xi32>
  }
}
// ----- design_tour.f1.stablehlo.gspmd
module @jit_f1 attributes {mhlo.num_partitions = 8 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main(%arg0: tensor<12x12xi32> {mhlo.sharding = "{devices=[4,1,2]<=[8] last_tile_dim_replicate}"}) -> (tensor<12x24xi32> {jax.result_info = "result[0]"}) {
    %0 = stablehlo.custom_call @Sharding(%arg0) {backend_config = "", mhlo.sharding = "{devices=[4,1,2]<=[8] last_tile_dim_replicate}"} : (tensor<12x12xi32>) -> tensor<12x12xi32>
    %1 = stablehlo.custom_call @SPMDFullToShardShape(%0) {backend_config = "", mhlo.sharding = "{manual}"} : (tensor<12x12xi32>) -> tensor<3x12xi32>
    %2 = call @shmap_body(%1) : (tensor<3x12xi32>) -> tensor<3x12xi32>
    %3 = stablehlo.custom_call @Sharding(%2) {backend_config = "", mhlo.sharding = "{manual}"} : (tensor<3x12xi32>) -> tensor<3x12xi32>
    %4 = stablehlo.custom_call @SPMDShardToFullShape(%3) {backend_config = "", mhlo.sharding = "{devices=[4,2]<=[8]}"} : (tensor<3x12xi32>) -> tensor<12x24xi32>
    return %4 : tensor<12x24xi32>
  }
  func.func private @shmap_body(%arg0: tensor<3x12xi32>) -> tensor<3x12xi32> {
    return %arg0 : tensor<3x12xi32>
  }
}
// ----- design_tour.f1.stablehlo.shardy
module @jit_f1 attributes {mhlo.num_partitions = 8 : i32, mhlo.num_replicas = 1 : i32} {
  sdy.mesh @mesh = <["i"=4, "j"=2]> {stablehlo.mesh = {axes = [{name = "i", size = 4 : i64}, {name = "j", size = 2 : i64}]}}
  func.func public @main(%arg0: tensor<12x12xi32> {sdy.sharding = #sdy.sharding<@mesh, [{"i"}, {}]>}) -> (tensor<12x24xi32> {jax.result_info = "result[0]"}) {
    %0 = sdy.manual_computation(%arg0) in_shardings=[<@mesh, [{"i"}, {}]>] out_shardings=[<@mesh, [{"i"}, {"j"}]>] manual_axes={"i", "j"} (%arg1: tensor<3x12xi32>) {
      sdy.return %arg1 : tensor<3x12xi32>
    } : (tensor<12x12xi32>) -> tensor<12x24xi32>
    return %0 : tensor<12x24xi32>
  }
}
// ----- design_tour.f2.body
module @f2 {
  sdy.mesh @mesh = <["i"=4, "j"=2]>
  func.func public @main(%arg0: tensor<3x12xi32> {sdy.sharding = #sdy.sharding<@mesh, [{"i"}, {"j"}]>}) -> (tensor<3x12xi32> {sdy.sharding = #sdy.sharding<@mesh, [{"i"}, {"j"}]>}) attributes {sdy.manual_axes = #sdy<manual_axes{"i", "j"}>} {
    return %arg0 : tensor<3x12xi32>
  }
}
// ----- design_tour.f2.stablehlo.gspmd
module @jit_f2 attributes {mhlo.num_partitions = 8 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main(%arg0: tensor<12x24xi32> {mhlo.sharding = "{devices=[4,2]<=[8]}"}) -> (tensor<12x24xi32> {jax.result_info = "result[0]"}) {
    %0 = stablehlo.custom_call @Sharding(%arg0) {backend_config = "", mhlo.sharding = "{devices=[4,2]<=[8]}"} : (tensor<12x24xi32>) -> tensor<12x24xi32>
    %1 = stablehlo.custom_call @SPMDFullToShardShape(%0) {backend_config = "", mhlo.sharding = "{manual}"} : (tensor<12x24xi32>) -> tensor<3x12xi32>
    %2 = call @shmap_body(%1) : (tensor<3x12xi32>) -> tensor<3x12xi32>
    %3 = stablehlo.custom_call @Sharding(%2) {backend_config = "", mhlo.sharding = "{manual}"} : (tensor<3x12xi32>) -> tensor<3x12xi32>
    %4 = stablehlo.custom_call @SPMDShardToFullShape(%3) {backend_config = "", mhlo.sharding = "{devices=[4,2]<=[8]}"} : (tensor<3x12xi32>) -> tensor<12x24xi32>
    return %4 : tensor<12x24xi32>
  }
  func.func private @shmap_body(%arg0: tensor<3x12xi32>) -> tensor<3x12xi32> {
    return %arg0 : tensor<3x12xi32>
  }
}
// ----- design_tour.f2.stablehlo.shardy
module @jit_f2 attributes {mhlo.num_partitions = 8 : i32, mhlo.num_replicas = 1 : i32} {
  sdy.mesh @mesh = <["i"=4, "j"=2]> {stablehlo.mesh = {axes = [{name = "i", size = 4 : i64}, {name = "j", size = 2 : i64}]}}
  func.func public @main(%arg0: tensor<12x24xi32> {sdy.sharding = #sdy.sharding<@mesh, [{"i"}, {"j"}]>}) -> (tensor<12x24xi32> {jax.result_info = "result[0]"}) {
    %0 = sdy.manual_computation(%arg0) in_shardings=[<@mesh, [{"i"}, {"j"}]>] out_shardings=[<@mesh, [{"i"}, {"j"}]>] manual_axes={"i", "j"} (%arg1: tensor<3x12xi32>) {
      sdy.return %arg1 : tensor<3x12xi32>
    } : (tensor<12x24xi32>) -> tensor<12x24xi32>
    return %0 : tensor<12x24xi32>
  }
}
// ----- design_tour.f2_first_axis.body
module @f2_first_axis {
  sdy.mesh @mesh = <["i"=4, "j"=2]>
  func.func public @main(%arg0: tensor<3x12xi32> {sdy.sharding = #sdy.sharding<@mesh, [{"j", "i"}, {}]>}) -> (tensor<3x12xi32> {sdy.sharding = #sdy.sharding<@mesh, [{"i"}, {"j"}]>}) attributes {sdy.manual_axes = #sdy<manual_axes{"i", "j"}>} {
    return %arg0 : tensor<3x12xi32>
  }
}
// ----- design_tour.f2_first_axis.stablehlo.gspmd
module @jit_f2_first_axis attributes {mhlo.num_partitions = 8 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main(%arg0: tensor<24x12xi32> {mhlo.sharding = "{devices=[8,1]<=[4,2]T(1,0)}"}) -> (tensor<12x24xi32> {jax.result_info = "result[0]"}) {
    %0 = stablehlo.custom_call @Sharding(%arg0) {backend_config = "", mhlo.sharding = "{devices=[8,1]<=[4,2]T(1,0)}"} : (tensor<24x12xi32>) -> tensor<24x12xi32>
    %1 = stablehlo.custom_call @SPMDFullToShardShape(%0) {backend_config = "", mhlo.sharding = "{manual}"} : (tensor<24x12xi32>) -> tensor<3x12xi32>
    %2 = call @shmap_body(%1) : (tensor<3x12xi32>) -> tensor<3x12xi32>
    %3 = stablehlo.custom_call @Sharding(%2) {backend_config = "", mhlo.sharding = "{manual}"} : (tensor<3x12xi32>) -> tensor<3x12xi32>
    %4 = stablehlo.custom_call @SPMDShardToFullShape(%3) {backend_config = "", mhlo.sharding = "{devices=[4,2]<=[8]}"} : (tensor<3x12xi32>) -> tensor<12x24xi32>
    return %4 : tensor<12x24xi32>
  }
  func.func private @shmap_body(%arg0: tensor<3x12xi32>) -> tensor<3x12xi32> {
    return %arg0 : tensor<3x12xi32>
  }
}
// ----- design_tour.f2_first_axis.stablehlo.shardy
module @jit_f2_first_axis attributes {mhlo.num_partitions = 8 : i32, mhlo.num_replicas = 1 : i32} {
  sdy.mesh @mesh = <["i"=4, "j"=2]> {stablehlo.mesh = {axes = [{name = "i", size = 4 : i64}, {name = "j", size = 2 : i64}]}}
  func.func public @main(%arg0: tensor<24x12xi32> {sdy.sharding = #sdy.sharding<@mesh, [{"j", "i"}, {}]>}) -> (tensor<12x24xi32> {jax.result_info = "result[0]"}) {
    %0 = sdy.manual_computation(%arg0) in_shardings=[<@mesh, [{"j", "i"}, {}]>] out_shardings=[<@mesh, [{"i"}, {"j"}]>] manual_axes={"i", "j"} (%arg1: tensor<3x12xi32>) {
      sdy.return %arg1 : tensor<3x12xi32>
    } : (tensor<24x12xi32>) -> tensor<12x24xi32>
    return %0 : tensor<12x24xi32>
  }
}
// ----- design_tour.f3.body
module @f3 {
  sdy.mesh @mesh = <["i"=4, "j"=2]>
  func.func public @main(%arg0: tensor<3x6xi32> {sdy.sharding = #sdy.sharding<@mesh, [{"i"}, {"j"}]>}) -> (tensor<3x6xi32> {sdy.sharding = #sdy.sharding<@mesh, [{"i"}, {}]>}) attributes {sdy.manual_axes = #sdy<manual_axes{"i", "j"}>} {
    %0 = "stablehlo.all_reduce"(%arg0) <{replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "j">]>}> ({
    ^bb0(%arg1: tensor<i32>, %arg2: tensor<i32>):
      %1 = stablehlo.add %arg1, %arg2 : tensor<i32>
      stablehlo.return %1 : tensor<i32>
    }) : (tensor<3x6xi32>) -> tensor<3x6xi32>
    return %0 : tensor<3x6xi32>
  }
}
// ----- design_tour.f3.stablehlo.gspmd
module @jit_f3 attributes {mhlo.num_partitions = 8 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main(%arg0: tensor<12x12xi32> {mhlo.sharding = "{devices=[4,2]<=[8]}"}) -> (tensor<12x6xi32> {jax.result_info = "result[0]"}) {
    %0 = stablehlo.custom_call @Sharding(%arg0) {backend_config = "", mhlo.sharding = "{devices=[4,2]<=[8]}"} : (tensor<12x12xi32>) -> tensor<12x12xi32>
    %1 = stablehlo.custom_call @SPMDFullToShardShape(%0) {backend_config = "", mhlo.sharding = "{manual}"} : (tensor<12x12xi32>) -> tensor<3x6xi32>
    %2 = call @shmap_body(%1) : (tensor<3x6xi32>) -> tensor<3x6xi32>
    %3 = stablehlo.custom_call @Sharding(%2) {backend_config = "", mhlo.sharding = "{manual}"} : (tensor<3x6xi32>) -> tensor<3x6xi32>
    %4 = stablehlo.custom_call @SPMDShardToFullShape(%3) {backend_config = "", mhlo.sharding = "{devices=[4,1,2]<=[8] last_tile_dim_replicate}"} : (tensor<3x6xi32>) -> tensor<12x6xi32>
    return %4 : tensor<12x6xi32>
  }
  func.func private @shmap_body(%arg0: tensor<3x6xi32>) -> tensor<3x6xi32> {
    %0 = "stablehlo.all_reduce"(%arg0) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, replica_groups = #stablehlo.replica_group_mesh_axes<mesh = #stablehlo.mesh<axes=[<name = "i", size = 4>, <name = "j", size = 2>]>, axes = [#stablehlo.axis_ref<name = "j">]>, use_global_device_ids}> ({
    ^bb0(%arg1: tensor<i32>, %arg2: tensor<i32>):
      %1 = stablehlo.add %arg1, %arg2 : tensor<i32>
      stablehlo.return %1 : tensor<i32>
    }) : (tensor<3x6xi32>) -> tensor<3x6xi32>
    return %0 : tensor<3x6xi32>
  }
}
// ----- design_tour.f3.stablehlo.shardy
module @jit_f3 attributes {mhlo.num_partitions = 8 : i32, mhlo.num_replicas = 1 : i32} {
  sdy.mesh @mesh = <["i"=4, "j"=2]> {stablehlo.mesh = {axes = [{name = "i", size = 4 : i64}, {name = "j", size = 2 : i64}]}}
  sdy.mesh @mesh_0 = <["i"=4, "j"=2]> {stablehlo.mesh = {axes = [{name = "i", size = 4 : i64}, {name = "j", size = 2 : i64}]}}
  func.func public @main(%arg0: tensor<12x12xi32> {sdy.sharding = #sdy.sharding<@mesh, [{"i"}, {"j"}]>}) -> (tensor<12x6xi32> {jax.result_info = "result[0]"}) {
    %0 = sdy.manual_computation(%arg0) in_shardings=[<@mesh, [{"i"}, {"j"}]>] out_shardings=[<@mesh, [{"i"}, {}]>] manual_axes={"i", "j"} (%arg1: tensor<3x6xi32>) {
      %1 = "stablehlo.all_reduce"(%arg1) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh_0, axes = [#stablehlo.axis_ref<name = "j">]>, use_global_device_ids}> ({
      ^bb0(%arg2: tensor<i32>, %arg3: tensor<i32>):
        %2 = stablehlo.add %arg2, %arg3 : tensor<i32>
        stablehlo.return %2 : tensor<i32>
      }) : (tensor<3x6xi32>) -> tensor<3x6xi32>
      sdy.return %1 : tensor<3x6xi32>
    } : (tensor<12x12xi32>) -> tensor<12x6xi32>
    return %0 : tensor<12x6xi32>
  }
}
// ----- design_tour.f4.body
module @f4 {
  sdy.mesh @mesh = <["i"=4, "j"=2]>
  func.func public @main(%arg0: tensor<3x6xi32> {sdy.sharding = #sdy.sharding<@mesh, [{"i"}, {"j"}]>}) -> (tensor<3x6xi32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"j"}]>}) attributes {sdy.manual_axes = #sdy<manual_axes{"i", "j"}>} {
    %0 = "stablehlo.all_reduce"(%arg0) <{replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>}> ({
    ^bb0(%arg1: tensor<i32>, %arg2: tensor<i32>):
      %1 = stablehlo.add %arg1, %arg2 : tensor<i32>
      stablehlo.return %1 : tensor<i32>
    }) : (tensor<3x6xi32>) -> tensor<3x6xi32>
    return %0 : tensor<3x6xi32>
  }
}
// ----- design_tour.f4.stablehlo.gspmd
module @jit_f4 attributes {mhlo.num_partitions = 8 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main(%arg0: tensor<12x12xi32> {mhlo.sharding = "{devices=[4,2]<=[8]}"}) -> (tensor<3x12xi32> {jax.result_info = "result[0]"}) {
    %0 = stablehlo.custom_call @Sharding(%arg0) {backend_config = "", mhlo.sharding = "{devices=[4,2]<=[8]}"} : (tensor<12x12xi32>) -> tensor<12x12xi32>
    %1 = stablehlo.custom_call @SPMDFullToShardShape(%0) {backend_config = "", mhlo.sharding = "{manual}"} : (tensor<12x12xi32>) -> tensor<3x6xi32>
    %2 = call @shmap_body(%1) : (tensor<3x6xi32>) -> tensor<3x6xi32>
    %3 = stablehlo.custom_call @Sharding(%2) {backend_config = "", mhlo.sharding = "{manual}"} : (tensor<3x6xi32>) -> tensor<3x6xi32>
    %4 = stablehlo.custom_call @SPMDShardToFullShape(%3) {backend_config = "", mhlo.sharding = "{devices=[1,2,4]<=[4,2]T(1,0) last_tile_dim_replicate}"} : (tensor<3x6xi32>) -> tensor<3x12xi32>
    return %4 : tensor<3x12xi32>
  }
  func.func private @shmap_body(%arg0: tensor<3x6xi32>) -> tensor<3x6xi32> {
    %0 = "stablehlo.all_reduce"(%arg0) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, replica_groups = #stablehlo.replica_group_mesh_axes<mesh = #stablehlo.mesh<axes=[<name = "i", size = 4>, <name = "j", size = 2>]>, axes = [#stablehlo.axis_ref<name = "i">]>, use_global_device_ids}> ({
    ^bb0(%arg1: tensor<i32>, %arg2: tensor<i32>):
      %1 = stablehlo.add %arg1, %arg2 : tensor<i32>
      stablehlo.return %1 : tensor<i32>
    }) : (tensor<3x6xi32>) -> tensor<3x6xi32>
    return %0 : tensor<3x6xi32>
  }
}
// ----- design_tour.f4.stablehlo.shardy
module @jit_f4 attributes {mhlo.num_partitions = 8 : i32, mhlo.num_replicas = 1 : i32} {
  sdy.mesh @mesh = <["i"=4, "j"=2]> {stablehlo.mesh = {axes = [{name = "i", size = 4 : i64}, {name = "j", size = 2 : i64}]}}
  sdy.mesh @mesh_0 = <["i"=4, "j"=2]> {stablehlo.mesh = {axes = [{name = "i", size = 4 : i64}, {name = "j", size = 2 : i64}]}}
  func.func public @main(%arg0: tensor<12x12xi32> {sdy.sharding = #sdy.sharding<@mesh, [{"i"}, {"j"}]>}) -> (tensor<3x12xi32> {jax.result_info = "result[0]"}) {
    %0 = sdy.manual_computation(%arg0) in_shardings=[<@mesh, [{"i"}, {"j"}]>] out_shardings=[<@mesh, [{}, {"j"}]>] manual_axes={"i", "j"} (%arg1: tensor<3x6xi32>) {
      %1 = "stablehlo.all_reduce"(%arg1) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh_0, axes = [#stablehlo.axis_ref<name = "i">]>, use_global_device_ids}> ({
      ^bb0(%arg2: tensor<i32>, %arg3: tensor<i32>):
        %2 = stablehlo.add %arg2, %arg3 : tensor<i32>
        stablehlo.return %2 : tensor<i32>
      }) : (tensor<3x6xi32>) -> tensor<3x6xi32>
      sdy.return %1 : tensor<3x6xi32>
    } : (tensor<12x12xi32>) -> tensor<3x12xi32>
    return %0 : tensor<3x12xi32>
  }
}
// ----- design_tour.f5.body
module @f5 {
  sdy.mesh @mesh = <["i"=4, "j"=2]>
  func.func public @main(%arg0: tensor<3x6xi32> {sdy.sharding = #sdy.sharding<@mesh, [{"i"}, {"j"}]>}) -> (tensor<3x6xi32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>}) attributes {sdy.manual_axes = #sdy<manual_axes{"i", "j"}>} {
    %0 = "stablehlo.all_reduce"(%arg0) <{replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">, #stablehlo.axis_ref<name = "j">]>}> ({
    ^bb0(%arg1: tensor<i32>, %arg2: tensor<i32>):
      %1 = stablehlo.add %arg1, %arg2 : tensor<i32>
      stablehlo.return %1 : tensor<i32>
    }) : (tensor<3x6xi32>) -> tensor<3x6xi32>
    return %0 : tensor<3x6xi32>
  }
}
// ----- design_tour.f5.stablehlo.gspmd
module @jit_f5 attributes {mhlo.num_partitions = 8 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main(%arg0: tensor<12x12xi32> {mhlo.sharding = "{devices=[4,2]<=[8]}"}) -> (tensor<3x6xi32> {jax.result_info = "result[0]"}) {
    %0 = stablehlo.custom_call @Sharding(%arg0) {backend_config = "", mhlo.sharding = "{devices=[4,2]<=[8]}"} : (tensor<12x12xi32>) -> tensor<12x12xi32>
    %1 = stablehlo.custom_call @SPMDFullToShardShape(%0) {backend_config = "", mhlo.sharding = "{manual}"} : (tensor<12x12xi32>) -> tensor<3x6xi32>
    %2 = call @shmap_body(%1) : (tensor<3x6xi32>) -> tensor<3x6xi32>
    %3 = stablehlo.custom_call @Sharding(%2) {backend_config = "", mhlo.sharding = "{manual}"} : (tensor<3x6xi32>) -> tensor<3x6xi32>
    %4 = stablehlo.custom_call @SPMDShardToFullShape(%3) {backend_config = "", mhlo.sharding = "{replicated}"} : (tensor<3x6xi32>) -> tensor<3x6xi32>
    return %4 : tensor<3x6xi32>
  }
  func.func private @shmap_body(%arg0: tensor<3x6xi32>) -> tensor<3x6xi32> {
    %0 = "stablehlo.all_reduce"(%arg0) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, replica_groups = #stablehlo.replica_group_mesh_axes<mesh = #stablehlo.mesh<axes=[<name = "i", size = 4>, <name = "j", size = 2>]>, axes = [#stablehlo.axis_ref<name = "i">, #stablehlo.axis_ref<name = "j">]>, use_global_device_ids}> ({
    ^bb0(%arg1: tensor<i32>, %arg2: tensor<i32>):
      %1 = stablehlo.add %arg1, %arg2 : tensor<i32>
      stablehlo.return %1 : tensor<i32>
    }) : (tensor<3x6xi32>) -> tensor<3x6xi32>
    return %0 : tensor<3x6xi32>
  }
}
// ----- design_tour.f5.stablehlo.shardy
module @jit_f5 attributes {mhlo.num_partitions = 8 : i32, mhlo.num_replicas = 1 : i32} {
  sdy.mesh @mesh = <["i"=4, "j"=2]> {stablehlo.mesh = {axes = [{name = "i", size = 4 : i64}, {name = "j", size = 2 : i64}]}}
  sdy.mesh @mesh_0 = <["i"=4, "j"=2]> {stablehlo.mesh = {axes = [{name = "i", size = 4 : i64}, {name = "j", size = 2 : i64}]}}
  func.func public @main(%arg0: tensor<12x12xi32> {sdy.sharding = #sdy.sharding<@mesh, [{"i"}, {"j"}]>}) -> (tensor<3x6xi32> {jax.result_info = "result[0]"}) {
    %0 = sdy.manual_computation(%arg0) in_shardings=[<@mesh, [{"i"}, {"j"}]>] out_shardings=[<@mesh, [{}, {}]>] manual_axes={"i", "j"} (%arg1: tensor<3x6xi32>) {
      %1 = "stablehlo.all_reduce"(%arg1) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh_0, axes = [#stablehlo.axis_ref<name = "i">, #stablehlo.axis_ref<name = "j">]>, use_global_device_ids}> ({
      ^bb0(%arg2: tensor<i32>, %arg3: tensor<i32>):
        %2 = stablehlo.add %arg2, %arg3 : tensor<i32>
        stablehlo.return %2 : tensor<i32>
      }) : (tensor<3x6xi32>) -> tensor<3x6xi32>
      sdy.return %1 : tensor<3x6xi32>
    } : (tensor<12x12xi32>) -> tensor<3x6xi32>
    return %0 : tensor<3x6xi32>
  }
}
// ----- design_tour.split_map.body
module @f {
  sdy.mesh @mesh = <["i"=4]>
  func.func public @main(%arg0: tensor<3x2xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>}, %arg1: tensor<5x7xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>}, %arg2: tensor<2x5xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"i"}, {}]>}) -> (tensor<3x7xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"i"}, {}]>}) attributes {sdy.manual_axes = #sdy<manual_axes{"i"}>} {
    %0 = stablehlo.dot_general %arg0, %arg2, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] : (tensor<3x2xf32>, tensor<2x5xf32>) -> tensor<3x5xf32>
    %1 = stablehlo.dot_general %0, %arg1, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] : (tensor<3x5xf32>, tensor<5x7xf32>) -> tensor<3x7xf32>
    return %1 : tensor<3x7xf32>
  }
}
// ----- design_tour.split_map.stablehlo.gspmd
module @jit_f attributes {mhlo.num_partitions = 4 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main(%arg0: tensor<3x2xf32> {mhlo.sharding = "{replicated}"}, %arg1: tensor<5x7xf32> {mhlo.sharding = "{replicated}"}, %arg2: tensor<8x5xf32> {mhlo.sharding = "{devices=[4,1]<=[4]}"}) -> (tensor<12x7xf32> {jax.result_info = "result[0]"}) {
    %0 = stablehlo.custom_call @Sharding(%arg0) {backend_config = "", mhlo.sharding = "{replicated}"} : (tensor<3x2xf32>) -> tensor<3x2xf32>
    %1 = stablehlo.custom_call @SPMDFullToShardShape(%0) {backend_config = "", mhlo.sharding = "{manual}"} : (tensor<3x2xf32>) -> tensor<3x2xf32>
    %2 = stablehlo.custom_call @Sharding(%arg1) {backend_config = "", mhlo.sharding = "{replicated}"} : (tensor<5x7xf32>) -> tensor<5x7xf32>
    %3 = stablehlo.custom_call @SPMDFullToShardShape(%2) {backend_config = "", mhlo.sharding = "{manual}"} : (tensor<5x7xf32>) -> tensor<5x7xf32>
    %4 = stablehlo.custom_call @Sharding(%arg2) {backend_config = "", mhlo.sharding = "{devices=[4,1]<=[4]}"} : (tensor<8x5xf32>) -> tensor<8x5xf32>
    %5 = stablehlo.custom_call @SPMDFullToShardShape(%4) {backend_config = "", mhlo.sharding = "{manual}"} : (tensor<8x5xf32>) -> tensor<2x5xf32>
    %6 = call @shmap_body(%1, %3, %5) : (tensor<3x2xf32>, tensor<5x7xf32>, tensor<2x5xf32>) -> tensor<3x7xf32>
    %7 = stablehlo.custom_call @Sharding(%6) {backend_config = "", mhlo.sharding = "{manual}"} : (tensor<3x7xf32>) -> tensor<3x7xf32>
    %8 = stablehlo.custom_call @SPMDShardToFullShape(%7) {backend_config = "", mhlo.sharding = "{devices=[4,1]<=[4]}"} : (tensor<3x7xf32>) -> tensor<12x7xf32>
    return %8 : tensor<12x7xf32>
  }
  func.func private @shmap_body(%arg0: tensor<3x2xf32>, %arg1: tensor<5x7xf32>, %arg2: tensor<2x5xf32>) -> tensor<3x7xf32> {
    %0 = stablehlo.dot_general %arg0, %arg2, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] : (tensor<3x2xf32>, tensor<2x5xf32>) -> tensor<3x5xf32>
    %1 = stablehlo.dot_general %0, %arg1, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] : (tensor<3x5xf32>, tensor<5x7xf32>) -> tensor<3x7xf32>
    return %1 : tensor<3x7xf32>
  }
}
// ----- design_tour.split_map.stablehlo.shardy
module @jit_f attributes {mhlo.num_partitions = 4 : i32, mhlo.num_replicas = 1 : i32} {
  sdy.mesh @mesh = <["i"=4]> {stablehlo.mesh = {axes = [{name = "i", size = 4 : i64}]}}
  func.func public @main(%arg0: tensor<3x2xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>}, %arg1: tensor<5x7xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>}, %arg2: tensor<8x5xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"i"}, {}]>}) -> (tensor<12x7xf32> {jax.result_info = "result[0]"}) {
    %0 = sdy.manual_computation(%arg0, %arg1, %arg2) in_shardings=[<@mesh, [{}, {}]>, <@mesh, [{}, {}]>, <@mesh, [{"i"}, {}]>] out_shardings=[<@mesh, [{"i"}, {}]>] manual_axes={"i"} (%arg3: tensor<3x2xf32>, %arg4: tensor<5x7xf32>, %arg5: tensor<2x5xf32>) {
      %1 = stablehlo.dot_general %arg3, %arg5, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] : (tensor<3x2xf32>, tensor<2x5xf32>) -> tensor<3x5xf32>
      %2 = stablehlo.dot_general %1, %arg4, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] : (tensor<3x5xf32>, tensor<5x7xf32>) -> tensor<3x7xf32>
      sdy.return %2 : tensor<3x7xf32>
    } : (tensor<3x2xf32>, tensor<5x7xf32>, tensor<8x5xf32>) -> tensor<12x7xf32>
    return %0 : tensor<12x7xf32>
  }
}
