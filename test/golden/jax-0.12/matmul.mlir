// ----- matmul.matmul_basic.body
module @matmul_basic {
  sdy.mesh @mesh = <["i"=4, "j"=2]>
  func.func public @main(%arg0: tensor<2x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"i"}, {"j"}]>}, %arg1: tensor<8x32xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"j"}, {}]>}) -> (tensor<2x32xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"i"}, {}]>}) attributes {sdy.manual_axes = #sdy<manual_axes{"i", "j"}>} {
    %0 = stablehlo.dot_general %arg0, %arg1, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] : (tensor<2x8xf32>, tensor<8x32xf32>) -> tensor<2x32xf32>
    %1 = "stablehlo.all_reduce"(%0) <{replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "j">]>}> ({
    ^bb0(%arg2: tensor<f32>, %arg3: tensor<f32>):
      %2 = stablehlo.add %arg2, %arg3 : tensor<f32>
      stablehlo.return %2 : tensor<f32>
    }) : (tensor<2x32xf32>) -> tensor<2x32xf32>
    return %1 : tensor<2x32xf32>
  }
}
// ----- matmul.matmul_basic.stablehlo.gspmd
module @jit_matmul_basic attributes {mhlo.num_partitions = 8 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main(%arg0: tensor<8x16xf32> {mhlo.sharding = "{devices=[4,2]<=[8]}"}, %arg1: tensor<16x32xf32> {mhlo.sharding = "{devices=[2,1,4]<=[4,2]T(1,0) last_tile_dim_replicate}"}) -> (tensor<8x32xf32> {jax.result_info = "result[0]"}) {
    %0 = stablehlo.custom_call @Sharding(%arg0) {backend_config = "", mhlo.sharding = "{devices=[4,2]<=[8]}"} : (tensor<8x16xf32>) -> tensor<8x16xf32>
    %1 = stablehlo.custom_call @SPMDFullToShardShape(%0) {backend_config = "", mhlo.sharding = "{manual}"} : (tensor<8x16xf32>) -> tensor<2x8xf32>
    %2 = stablehlo.custom_call @Sharding(%arg1) {backend_config = "", mhlo.sharding = "{devices=[2,1,4]<=[4,2]T(1,0) last_tile_dim_replicate}"} : (tensor<16x32xf32>) -> tensor<16x32xf32>
    %3 = stablehlo.custom_call @SPMDFullToShardShape(%2) {backend_config = "", mhlo.sharding = "{manual}"} : (tensor<16x32xf32>) -> tensor<8x32xf32>
    %4 = call @shmap_body(%1, %3) : (tensor<2x8xf32>, tensor<8x32xf32>) -> tensor<2x32xf32>
    %5 = stablehlo.custom_call @Sharding(%4) {backend_config = "", mhlo.sharding = "{manual}"} : (tensor<2x32xf32>) -> tensor<2x32xf32>
    %6 = stablehlo.custom_call @SPMDShardToFullShape(%5) {backend_config = "", mhlo.sharding = "{devices=[4,1,2]<=[8] last_tile_dim_replicate}"} : (tensor<2x32xf32>) -> tensor<8x32xf32>
    return %6 : tensor<8x32xf32>
  }
  func.func private @shmap_body(%arg0: tensor<2x8xf32>, %arg1: tensor<8x32xf32>) -> tensor<2x32xf32> {
    %0 = stablehlo.dot_general %arg0, %arg1, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] : (tensor<2x8xf32>, tensor<8x32xf32>) -> tensor<2x32xf32>
    %1 = "stablehlo.all_reduce"(%0) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, replica_groups = #stablehlo.replica_group_mesh_axes<mesh = #stablehlo.mesh<axes=[<name = "i", size = 4>, <name = "j", size = 2>]>, axes = [#stablehlo.axis_ref<name = "j">]>, use_global_device_ids}> ({
    ^bb0(%arg2: tensor<f32>, %arg3: tensor<f32>):
      %2 = stablehlo.add %arg2, %arg3 : tensor<f32>
      stablehlo.return %2 : tensor<f32>
    }) : (tensor<2x32xf32>) -> tensor<2x32xf32>
    return %1 : tensor<2x32xf32>
  }
}
// ----- matmul.matmul_basic.stablehlo.shardy
module @jit_matmul_basic attributes {mhlo.num_partitions = 8 : i32, mhlo.num_replicas = 1 : i32} {
  sdy.mesh @mesh = <["i"=4, "j"=2]> {stablehlo.mesh = {axes = [{name = "i", size = 4 : i64}, {name = "j", size = 2 : i64}]}}
  sdy.mesh @mesh_0 = <["i"=4, "j"=2]> {stablehlo.mesh = {axes = [{name = "i", size = 4 : i64}, {name = "j", size = 2 : i64}]}}
  func.func public @main(%arg0: tensor<8x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"i"}, {"j"}]>}, %arg1: tensor<16x32xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"j"}, {}]>}) -> (tensor<8x32xf32> {jax.result_info = "result[0]"}) {
    %0 = sdy.manual_computation(%arg0, %arg1) in_shardings=[<@mesh, [{"i"}, {"j"}]>, <@mesh, [{"j"}, {}]>] out_shardings=[<@mesh, [{"i"}, {}]>] manual_axes={"i", "j"} (%arg2: tensor<2x8xf32>, %arg3: tensor<8x32xf32>) {
      %1 = stablehlo.dot_general %arg2, %arg3, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] : (tensor<2x8xf32>, tensor<8x32xf32>) -> tensor<2x32xf32>
      %2 = "stablehlo.all_reduce"(%1) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh_0, axes = [#stablehlo.axis_ref<name = "j">]>, use_global_device_ids}> ({
      ^bb0(%arg4: tensor<f32>, %arg5: tensor<f32>):
        %3 = stablehlo.add %arg4, %arg5 : tensor<f32>
        stablehlo.return %3 : tensor<f32>
      }) : (tensor<2x32xf32>) -> tensor<2x32xf32>
      sdy.return %2 : tensor<2x32xf32>
    } : (tensor<8x16xf32>, tensor<16x32xf32>) -> tensor<8x32xf32>
    return %0 : tensor<8x32xf32>
  }
}
// ----- matmul.matmul_basic_bf16.body
module @matmul_basic {
  sdy.mesh @mesh = <["i"=4, "j"=2]>
  func.func public @main(%arg0: tensor<2x8xbf16> {sdy.sharding = #sdy.sharding<@mesh, [{"i"}, {"j"}]>}, %arg1: tensor<8x32xbf16> {sdy.sharding = #sdy.sharding<@mesh, [{"j"}, {}]>}) -> (tensor<2x32xbf16> {sdy.sharding = #sdy.sharding<@mesh, [{"i"}, {}]>}) attributes {sdy.manual_axes = #sdy<manual_axes{"i", "j"}>} {
    %0 = stablehlo.dot_general %arg0, %arg1, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] : (tensor<2x8xbf16>, tensor<8x32xbf16>) -> tensor<2x32xbf16>
    %1 = "stablehlo.all_reduce"(%0) <{replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "j">]>}> ({
    ^bb0(%arg2: tensor<bf16>, %arg3: tensor<bf16>):
      %2 = stablehlo.add %arg2, %arg3 : tensor<bf16>
      stablehlo.return %2 : tensor<bf16>
    }) : (tensor<2x32xbf16>) -> tensor<2x32xbf16>
    return %1 : tensor<2x32xbf16>
  }
}
// ----- matmul.matmul_basic_bf16.stablehlo.gspmd
module @jit_matmul_basic attributes {mhlo.num_partitions = 8 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main(%arg0: tensor<8x16xbf16> {mhlo.sharding = "{devices=[4,2]<=[8]}"}, %arg1: tensor<16x32xbf16> {mhlo.sharding = "{devices=[2,1,4]<=[4,2]T(1,0) last_tile_dim_replicate}"}) -> (tensor<8x32xbf16> {jax.result_info = "result[0]"}) {
    %0 = stablehlo.custom_call @Sharding(%arg0) {backend_config = "", mhlo.sharding = "{devices=[4,2]<=[8]}"} : (tensor<8x16xbf16>) -> tensor<8x16xbf16>
    %1 = stablehlo.custom_call @SPMDFullToShardShape(%0) {backend_config = "", mhlo.sharding = "{manual}"} : (tensor<8x16xbf16>) -> tensor<2x8xbf16>
    %2 = stablehlo.custom_call @Sharding(%arg1) {backend_config = "", mhlo.sharding = "{devices=[2,1,4]<=[4,2]T(1,0) last_tile_dim_replicate}"} : (tensor<16x32xbf16>) -> tensor<16x32xbf16>
    %3 = stablehlo.custom_call @SPMDFullToShardShape(%2) {backend_config = "", mhlo.sharding = "{manual}"} : (tensor<16x32xbf16>) -> tensor<8x32xbf16>
    %4 = call @shmap_body(%1, %3) : (tensor<2x8xbf16>, tensor<8x32xbf16>) -> tensor<2x32xbf16>
    %5 = stablehlo.custom_call @Sharding(%4) {backend_config = "", mhlo.sharding = "{manual}"} : (tensor<2x32xbf16>) -> tensor<2x32xbf16>
    %6 = stablehlo.custom_call @SPMDShardToFullShape(%5) {backend_config = "", mhlo.sharding = "{devices=[4,1,2]<=[8] last_tile_dim_replicate}"} : (tensor<2x32xbf16>) -> tensor<8x32xbf16>
    return %6 : tensor<8x32xbf16>
  }
  func.func private @shmap_body(%arg0: tensor<2x8xbf16>, %arg1: tensor<8x32xbf16>) -> tensor<2x32xbf16> {
    %0 = stablehlo.dot_general %arg0, %arg1, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] : (tensor<2x8xbf16>, tensor<8x32xbf16>) -> tensor<2x32xbf16>
    %1 = "stablehlo.all_reduce"(%0) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, replica_groups = #stablehlo.replica_group_mesh_axes<mesh = #stablehlo.mesh<axes=[<name = "i", size = 4>, <name = "j", size = 2>]>, axes = [#stablehlo.axis_ref<name = "j">]>, use_global_device_ids}> ({
    ^bb0(%arg2: tensor<bf16>, %arg3: tensor<bf16>):
      %2 = stablehlo.add %arg2, %arg3 : tensor<bf16>
      stablehlo.return %2 : tensor<bf16>
    }) : (tensor<2x32xbf16>) -> tensor<2x32xbf16>
    return %1 : tensor<2x32xbf16>
  }
}
// ----- matmul.matmul_basic_bf16.stablehlo.shardy
module @jit_matmul_basic attributes {mhlo.num_partitions = 8 : i32, mhlo.num_replicas = 1 : i32} {
  sdy.mesh @mesh = <["i"=4, "j"=2]> {stablehlo.mesh = {axes = [{name = "i", size = 4 : i64}, {name = "j", size = 2 : i64}]}}
  sdy.mesh @mesh_0 = <["i"=4, "j"=2]> {stablehlo.mesh = {axes = [{name = "i", size = 4 : i64}, {name = "j", size = 2 : i64}]}}
  func.func public @main(%arg0: tensor<8x16xbf16> {sdy.sharding = #sdy.sharding<@mesh, [{"i"}, {"j"}]>}, %arg1: tensor<16x32xbf16> {sdy.sharding = #sdy.sharding<@mesh, [{"j"}, {}]>}) -> (tensor<8x32xbf16> {jax.result_info = "result[0]"}) {
    %0 = sdy.manual_computation(%arg0, %arg1) in_shardings=[<@mesh, [{"i"}, {"j"}]>, <@mesh, [{"j"}, {}]>] out_shardings=[<@mesh, [{"i"}, {}]>] manual_axes={"i", "j"} (%arg2: tensor<2x8xbf16>, %arg3: tensor<8x32xbf16>) {
      %1 = stablehlo.dot_general %arg2, %arg3, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] : (tensor<2x8xbf16>, tensor<8x32xbf16>) -> tensor<2x32xbf16>
      %2 = "stablehlo.all_reduce"(%1) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh_0, axes = [#stablehlo.axis_ref<name = "j">]>, use_global_device_ids}> ({
      ^bb0(%arg4: tensor<bf16>, %arg5: tensor<bf16>):
        %3 = stablehlo.add %arg4, %arg5 : tensor<bf16>
        stablehlo.return %3 : tensor<bf16>
      }) : (tensor<2x32xbf16>) -> tensor<2x32xbf16>
      sdy.return %2 : tensor<2x32xbf16>
    } : (tensor<8x16xbf16>, tensor<16x32xbf16>) -> tensor<8x32xbf16>
    return %0 : tensor<8x32xbf16>
  }
}
// ----- matmul.matmul_reduce_scatter.body
module @matmul_reduce_scatter {
  sdy.mesh @mesh = <["i"=4, "j"=2]>
  func.func public @main(%arg0: tensor<2x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"i"}, {"j"}]>}, %arg1: tensor<8x32xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"j"}, {}]>}) -> (tensor<2x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"i"}, {"j"}]>}) attributes {sdy.manual_axes = #sdy<manual_axes{"i", "j"}>} {
    %0 = stablehlo.dot_general %arg0, %arg1, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] : (tensor<2x8xf32>, tensor<8x32xf32>) -> tensor<2x32xf32>
    %1 = "stablehlo.reduce_scatter"(%0) <{replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "j">]>, scatter_dimension = 1 : i64}> ({
    ^bb0(%arg2: tensor<f32>, %arg3: tensor<f32>):
      %2 = stablehlo.add %arg2, %arg3 : tensor<f32>
      stablehlo.return %2 : tensor<f32>
    }) : (tensor<2x32xf32>) -> tensor<2x16xf32>
    return %1 : tensor<2x16xf32>
  }
}
// ----- matmul.matmul_reduce_scatter.stablehlo.gspmd
module @jit_matmul_reduce_scatter attributes {mhlo.num_partitions = 8 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main(%arg0: tensor<8x16xf32> {mhlo.sharding = "{devices=[4,2]<=[8]}"}, %arg1: tensor<16x32xf32> {mhlo.sharding = "{devices=[2,1,4]<=[4,2]T(1,0) last_tile_dim_replicate}"}) -> (tensor<8x32xf32> {jax.result_info = "result[0]"}) {
    %0 = stablehlo.custom_call @Sharding(%arg0) {backend_config = "", mhlo.sharding = "{devices=[4,2]<=[8]}"} : (tensor<8x16xf32>) -> tensor<8x16xf32>
    %1 = stablehlo.custom_call @SPMDFullToShardShape(%0) {backend_config = "", mhlo.sharding = "{manual}"} : (tensor<8x16xf32>) -> tensor<2x8xf32>
    %2 = stablehlo.custom_call @Sharding(%arg1) {backend_config = "", mhlo.sharding = "{devices=[2,1,4]<=[4,2]T(1,0) last_tile_dim_replicate}"} : (tensor<16x32xf32>) -> tensor<16x32xf32>
    %3 = stablehlo.custom_call @SPMDFullToShardShape(%2) {backend_config = "", mhlo.sharding = "{manual}"} : (tensor<16x32xf32>) -> tensor<8x32xf32>
    %4 = call @shmap_body(%1, %3) : (tensor<2x8xf32>, tensor<8x32xf32>) -> tensor<2x16xf32>
    %5 = stablehlo.custom_call @Sharding(%4) {backend_config = "", mhlo.sharding = "{manual}"} : (tensor<2x16xf32>) -> tensor<2x16xf32>
    %6 = stablehlo.custom_call @SPMDShardToFullShape(%5) {backend_config = "", mhlo.sharding = "{devices=[4,2]<=[8]}"} : (tensor<2x16xf32>) -> tensor<8x32xf32>
    return %6 : tensor<8x32xf32>
  }
  func.func private @shmap_body(%arg0: tensor<2x8xf32>, %arg1: tensor<8x32xf32>) -> tensor<2x16xf32> {
    %0 = stablehlo.dot_general %arg0, %arg1, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] : (tensor<2x8xf32>, tensor<8x32xf32>) -> tensor<2x32xf32>
    %1 = "stablehlo.reduce_scatter"(%0) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, replica_groups = #stablehlo.replica_group_mesh_axes<mesh = #stablehlo.mesh<axes=[<name = "i", size = 4>, <name = "j", size = 2>]>, axes = [#stablehlo.axis_ref<name = "j">]>, scatter_dimension = 1 : i64, use_global_device_ids}> ({
    ^bb0(%arg2: tensor<f32>, %arg3: tensor<f32>):
      %2 = stablehlo.add %arg2, %arg3 : tensor<f32>
      stablehlo.return %2 : tensor<f32>
    }) : (tensor<2x32xf32>) -> tensor<2x16xf32>
    return %1 : tensor<2x16xf32>
  }
}
// ----- matmul.matmul_reduce_scatter.stablehlo.shardy
module @jit_matmul_reduce_scatter attributes {mhlo.num_partitions = 8 : i32, mhlo.num_replicas = 1 : i32} {
  sdy.mesh @mesh = <["i"=4, "j"=2]> {stablehlo.mesh = {axes = [{name = "i", size = 4 : i64}, {name = "j", size = 2 : i64}]}}
  sdy.mesh @mesh_0 = <["i"=4, "j"=2]> {stablehlo.mesh = {axes = [{name = "i", size = 4 : i64}, {name = "j", size = 2 : i64}]}}
  func.func public @main(%arg0: tensor<8x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"i"}, {"j"}]>}, %arg1: tensor<16x32xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"j"}, {}]>}) -> (tensor<8x32xf32> {jax.result_info = "result[0]"}) {
    %0 = sdy.manual_computation(%arg0, %arg1) in_shardings=[<@mesh, [{"i"}, {"j"}]>, <@mesh, [{"j"}, {}]>] out_shardings=[<@mesh, [{"i"}, {"j"}]>] manual_axes={"i", "j"} (%arg2: tensor<2x8xf32>, %arg3: tensor<8x32xf32>) {
      %1 = stablehlo.dot_general %arg2, %arg3, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] : (tensor<2x8xf32>, tensor<8x32xf32>) -> tensor<2x32xf32>
      %2 = "stablehlo.reduce_scatter"(%1) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh_0, axes = [#stablehlo.axis_ref<name = "j">]>, scatter_dimension = 1 : i64, use_global_device_ids}> ({
      ^bb0(%arg4: tensor<f32>, %arg5: tensor<f32>):
        %3 = stablehlo.add %arg4, %arg5 : tensor<f32>
        stablehlo.return %3 : tensor<f32>
      }) : (tensor<2x32xf32>) -> tensor<2x16xf32>
      sdy.return %2 : tensor<2x16xf32>
    } : (tensor<8x16xf32>, tensor<16x32xf32>) -> tensor<8x32xf32>
    return %0 : tensor<8x32xf32>
  }
}
// ----- matmul.matmul_reduce_scatter_bf16.body
module @matmul_reduce_scatter {
  sdy.mesh @mesh = <["i"=4, "j"=2]>
  func.func public @main(%arg0: tensor<2x8xbf16> {sdy.sharding = #sdy.sharding<@mesh, [{"i"}, {"j"}]>}, %arg1: tensor<8x32xbf16> {sdy.sharding = #sdy.sharding<@mesh, [{"j"}, {}]>}) -> (tensor<2x16xbf16> {sdy.sharding = #sdy.sharding<@mesh, [{"i"}, {"j"}]>}) attributes {sdy.manual_axes = #sdy<manual_axes{"i", "j"}>} {
    %0 = stablehlo.dot_general %arg0, %arg1, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] : (tensor<2x8xbf16>, tensor<8x32xbf16>) -> tensor<2x32xbf16>
    %1 = "stablehlo.reduce_scatter"(%0) <{replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "j">]>, scatter_dimension = 1 : i64}> ({
    ^bb0(%arg2: tensor<bf16>, %arg3: tensor<bf16>):
      %2 = stablehlo.add %arg2, %arg3 : tensor<bf16>
      stablehlo.return %2 : tensor<bf16>
    }) : (tensor<2x32xbf16>) -> tensor<2x16xbf16>
    return %1 : tensor<2x16xbf16>
  }
}
// ----- matmul.matmul_reduce_scatter_bf16.stablehlo.gspmd
module @jit_matmul_reduce_scatter attributes {mhlo.num_partitions = 8 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main(%arg0: tensor<8x16xbf16> {mhlo.sharding = "{devices=[4,2]<=[8]}"}, %arg1: tensor<16x32xbf16> {mhlo.sharding = "{devices=[2,1,4]<=[4,2]T(1,0) last_tile_dim_replicate}"}) -> (tensor<8x32xbf16> {jax.result_info = "result[0]"}) {
    %0 = stablehlo.custom_call @Sharding(%arg0) {backend_config = "", mhlo.sharding = "{devices=[4,2]<=[8]}"} : (tensor<8x16xbf16>) -> tensor<8x16xbf16>
    %1 = stablehlo.custom_call @SPMDFullToShardShape(%0) {backend_config = "", mhlo.sharding = "{manual}"} : (tensor<8x16xbf16>) -> tensor<2x8xbf16>
    %2 = stablehlo.custom_call @Sharding(%arg1) {backend_config = "", mhlo.sharding = "{devices=[2,1,4]<=[4,2]T(1,0) last_tile_dim_replicate}"} : (tensor<16x32xbf16>) -> tensor<16x32xbf16>
    %3 = stablehlo.custom_call @SPMDFullToShardShape(%2) {backend_config = "", mhlo.sharding = "{manual}"} : (tensor<16x32xbf16>) -> tensor<8x32xbf16>
    %4 = call @shmap_body(%1, %3) : (tensor<2x8xbf16>, tensor<8x32xbf16>) -> tensor<2x16xbf16>
    %5 = stablehlo.custom_call @Sharding(%4) {backend_config = "", mhlo.sharding = "{manual}"} : (tensor<2x16xbf16>) -> tensor<2x16xbf16>
    %6 = stablehlo.custom_call @SPMDShardToFullShape(%5) {backend_config = "", mhlo.sharding = "{devices=[4,2]<=[8]}"} : (tensor<2x16xbf16>) -> tensor<8x32xbf16>
    return %6 : tensor<8x32xbf16>
  }
  func.func private @shmap_body(%arg0: tensor<2x8xbf16>, %arg1: tensor<8x32xbf16>) -> tensor<2x16xbf16> {
    %0 = stablehlo.dot_general %arg0, %arg1, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] : (tensor<2x8xbf16>, tensor<8x32xbf16>) -> tensor<2x32xbf16>
    %1 = "stablehlo.reduce_scatter"(%0) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, replica_groups = #stablehlo.replica_group_mesh_axes<mesh = #stablehlo.mesh<axes=[<name = "i", size = 4>, <name = "j", size = 2>]>, axes = [#stablehlo.axis_ref<name = "j">]>, scatter_dimension = 1 : i64, use_global_device_ids}> ({
    ^bb0(%arg2: tensor<bf16>, %arg3: tensor<bf16>):
      %2 = stablehlo.add %arg2, %arg3 : tensor<bf16>
      stablehlo.return %2 : tensor<bf16>
    }) : (tensor<2x32xbf16>) -> tensor<2x16xbf16>
    return %1 : tensor<2x16xbf16>
  }
}
// ----- matmul.matmul_reduce_scatter_bf16.stablehlo.shardy
module @jit_matmul_reduce_scatter attributes {mhlo.num_partitions = 8 : i32, mhlo.num_replicas = 1 : i32} {
  sdy.mesh @mesh = <["i"=4, "j"=2]> {stablehlo.mesh = {axes = [{name = "i", size = 4 : i64}, {name = "j", size = 2 : i64}]}}
  sdy.mesh @mesh_0 = <["i"=4, "j"=2]> {stablehlo.mesh = {axes = [{name = "i", size = 4 : i64}, {name = "j", size = 2 : i64}]}}
  func.func public @main(%arg0: tensor<8x16xbf16> {sdy.sharding = #sdy.sharding<@mesh, [{"i"}, {"j"}]>}, %arg1: tensor<16x32xbf16> {sdy.sharding = #sdy.sharding<@mesh, [{"j"}, {}]>}) -> (tensor<8x32xbf16> {jax.result_info = "result[0]"}) {
    %0 = sdy.manual_computation(%arg0, %arg1) in_shardings=[<@mesh, [{"i"}, {"j"}]>, <@mesh, [{"j"}, {}]>] out_shardings=[<@mesh, [{"i"}, {"j"}]>] manual_axes={"i", "j"} (%arg2: tensor<2x8xbf16>, %arg3: tensor<8x32xbf16>) {
      %1 = stablehlo.dot_general %arg2, %arg3, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] : (tensor<2x8xbf16>, tensor<8x32xbf16>) -> tensor<2x32xbf16>
      %2 = "stablehlo.reduce_scatter"(%1) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh_0, axes = [#stablehlo.axis_ref<name = "j">]>, scatter_dimension = 1 : i64, use_global_device_ids}> ({
      ^bb0(%arg4: tensor<bf16>, %arg5: tensor<bf16>):
        %3 = stablehlo.add %arg4, %arg5 : tensor<bf16>
        stablehlo.return %3 : tensor<bf16>
      }) : (tensor<2x32xbf16>) -> tensor<2x16xbf16>
      sdy.return %2 : tensor<2x16xbf16>
    } : (tensor<8x16xbf16>, tensor<16x32xbf16>) -> tensor<8x32xbf16>
    return %0 : tensor<8x32xbf16>
  }
}
