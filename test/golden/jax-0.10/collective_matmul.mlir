// ----- collective_matmul.plain.body
module @plain {
  sdy.mesh @mesh = <["i"=8]>
  func.func public @main(%arg0: tensor<32x128xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"i"}, {}]>}, %arg1: tensor<128x64xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>}) -> (tensor<256x64xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>}) attributes {sdy.manual_axes = #sdy<manual_axes{"i"}>} {
    %0 = "stablehlo.all_gather"(%arg0) <{all_gather_dim = 0 : i64, replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>}> : (tensor<32x128xf32>) -> tensor<256x128xf32>
    %1 = stablehlo.dot_general %0, %arg1, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] : (tensor<256x128xf32>, tensor<128x64xf32>) -> tensor<256x64xf32>
    return %1 : tensor<256x64xf32>
  }
}
// ----- collective_matmul.plain.stablehlo.gspmd
module @jit_plain attributes {mhlo.num_partitions = 8 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main(%arg0: tensor<256x128xf32> {mhlo.sharding = "{devices=[8,1]<=[8]}"}, %arg1: tensor<128x64xf32> {mhlo.sharding = "{replicated}"}) -> (tensor<256x64xf32> {jax.result_info = "result[0]"}) {
    %0 = stablehlo.custom_call @Sharding(%arg0) {backend_config = "", mhlo.sharding = "{devices=[8,1]<=[8]}"} : (tensor<256x128xf32>) -> tensor<256x128xf32>
    %1 = stablehlo.custom_call @SPMDFullToShardShape(%0) {backend_config = "", mhlo.sharding = "{manual}"} : (tensor<256x128xf32>) -> tensor<32x128xf32>
    %2 = stablehlo.custom_call @Sharding(%arg1) {backend_config = "", mhlo.sharding = "{replicated}"} : (tensor<128x64xf32>) -> tensor<128x64xf32>
    %3 = stablehlo.custom_call @SPMDFullToShardShape(%2) {backend_config = "", mhlo.sharding = "{manual}"} : (tensor<128x64xf32>) -> tensor<128x64xf32>
    %4 = call @shmap_body(%1, %3) : (tensor<32x128xf32>, tensor<128x64xf32>) -> tensor<256x64xf32>
    %5 = stablehlo.custom_call @Sharding(%4) {backend_config = "", mhlo.sharding = "{manual}"} : (tensor<256x64xf32>) -> tensor<256x64xf32>
    %6 = stablehlo.custom_call @SPMDShardToFullShape(%5) {backend_config = "", mhlo.sharding = "{replicated}"} : (tensor<256x64xf32>) -> tensor<256x64xf32>
    return %6 : tensor<256x64xf32>
  }
  func.func private @shmap_body(%arg0: tensor<32x128xf32>, %arg1: tensor<128x64xf32>) -> tensor<256x64xf32> {
    %0 = "stablehlo.all_gather"(%arg0) <{all_gather_dim = 0 : i64, channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, replica_groups = #stablehlo.replica_group_mesh_axes<mesh = #stablehlo.mesh<axes=[<name = "i", size = 8>]>, axes = [#stablehlo.axis_ref<name = "i">]>, use_global_device_ids}> : (tensor<32x128xf32>) -> tensor<256x128xf32>
    %1 = stablehlo.dot_general %0, %arg1, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] : (tensor<256x128xf32>, tensor<128x64xf32>) -> tensor<256x64xf32>
    return %1 : tensor<256x64xf32>
  }
}
// ----- collective_matmul.plain.stablehlo.shardy
module @jit_plain attributes {mhlo.num_partitions = 8 : i32, mhlo.num_replicas = 1 : i32} {
  sdy.mesh @mesh = <["i"=8]> {stablehlo.mesh = {axes = [{name = "i", size = 8 : i64}]}}
  sdy.mesh @mesh_0 = <["i"=8]> {stablehlo.mesh = {axes = [{name = "i", size = 8 : i64}]}}
  func.func public @main(%arg0: tensor<256x128xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"i"}, {}]>}, %arg1: tensor<128x64xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>}) -> (tensor<256x64xf32> {jax.result_info = "result[0]"}) {
    %0 = sdy.manual_computation(%arg0, %arg1) in_shardings=[<@mesh, [{"i"}, {}]>, <@mesh, [{}, {}]>] out_shardings=[<@mesh, [{}, {}]>] manual_axes={"i"} (%arg2: tensor<32x128xf32>, %arg3: tensor<128x64xf32>) {
      %1 = "stablehlo.all_gather"(%arg2) <{all_gather_dim = 0 : i64, channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh_0, axes = [#stablehlo.axis_ref<name = "i">]>, use_global_device_ids}> : (tensor<32x128xf32>) -> tensor<256x128xf32>
      %2 = stablehlo.dot_general %1, %arg3, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] : (tensor<256x128xf32>, tensor<128x64xf32>) -> tensor<256x64xf32>
      sdy.return %2 : tensor<256x64xf32>
    } : (tensor<256x128xf32>, tensor<128x64xf32>) -> tensor<256x64xf32>
    return %0 : tensor<256x64xf32>
  }
}
// ----- collective_matmul.plain_bf16.body
module @plain {
  sdy.mesh @mesh = <["i"=8]>
  func.func public @main(%arg0: tensor<32x128xbf16> {sdy.sharding = #sdy.sharding<@mesh, [{"i"}, {}]>}, %arg1: tensor<128x64xbf16> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>}) -> (tensor<256x64xbf16> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>}) attributes {sdy.manual_axes = #sdy<manual_axes{"i"}>} {
    %0 = "stablehlo.all_gather"(%arg0) <{all_gather_dim = 0 : i64, replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>}> : (tensor<32x128xbf16>) -> tensor<256x128xbf16>
    %1 = stablehlo.dot_general %0, %arg1, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] : (tensor<256x128xbf16>, tensor<128x64xbf16>) -> tensor<256x64xbf16>
    return %1 : tensor<256x64xbf16>
  }
}
// ----- collective_matmul.plain_bf16.stablehlo.gspmd
module @jit_plain attributes {mhlo.num_partitions = 8 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main(%arg0: tensor<256x128xbf16> {mhlo.sharding = "{devices=[8,1]<=[8]}"}, %arg1: tensor<128x64xbf16> {mhlo.sharding = "{replicated}"}) -> (tensor<256x64xbf16> {jax.result_info = "result[0]"}) {
    %0 = stablehlo.custom_call @Sharding(%arg0) {backend_config = "", mhlo.sharding = "{devices=[8,1]<=[8]}"} : (tensor<256x128xbf16>) -> tensor<256x128xbf16>
    %1 = stablehlo.custom_call @SPMDFullToShardShape(%0) {backend_config = "", mhlo.sharding = "{manual}"} : (tensor<256x128xbf16>) -> tensor<32x128xbf16>
    %2 = stablehlo.custom_call @Sharding(%arg1) {backend_config = "", mhlo.sharding = "{replicated}"} : (tensor<128x64xbf16>) -> tensor<128x64xbf16>
    %3 = stablehlo.custom_call @SPMDFullToShardShape(%2) {backend_config = "", mhlo.sharding = "{manual}"} : (tensor<128x64xbf16>) -> tensor<128x64xbf16>
    %4 = call @shmap_body(%1, %3) : (tensor<32x128xbf16>, tensor<128x64xbf16>) -> tensor<256x64xbf16>
    %5 = stablehlo.custom_call @Sharding(%4) {backend_config = "", mhlo.sharding = "{manual}"} : (tensor<256x64xbf16>) -> tensor<256x64xbf16>
    %6 = stablehlo.custom_call @SPMDShardToFullShape(%5) {backend_config = "", mhlo.sharding = "{replicated}"} : (tensor<256x64xbf16>) -> tensor<256x64xbf16>
    return %6 : tensor<256x64xbf16>
  }
  func.func private @shmap_body(%arg0: tensor<32x128xbf16>, %arg1: tensor<128x64xbf16>) -> tensor<256x64xbf16> {
    %0 = "stablehlo.all_gather"(%arg0) <{all_gather_dim = 0 : i64, channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, replica_groups = #stablehlo.replica_group_mesh_axes<mesh = #stablehlo.mesh<axes=[<name = "i", size = 8>]>, axes = [#stablehlo.axis_ref<name = "i">]>, use_global_device_ids}> : (tensor<32x128xbf16>) -> tensor<256x128xbf16>
    %1 = stablehlo.dot_general %0, %arg1, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] : (tensor<256x128xbf16>, tensor<128x64xbf16>) -> tensor<256x64xbf16>
    return %1 : tensor<256x64xbf16>
  }
}
// ----- collective_matmul.plain_bf16.stablehlo.shardy
module @jit_plain attributes {mhlo.num_partitions = 8 : i32, mhlo.num_replicas = 1 : i32} {
  sdy.mesh @mesh = <["i"=8]> {stablehlo.mesh = {axes = [{name = "i", size = 8 : i64}]}}
  sdy.mesh @mesh_0 = <["i"=8]> {stablehlo.mesh = {axes = [{name = "i", size = 8 : i64}]}}
  func.func public @main(%arg0: tensor<256x128xbf16> {sdy.sharding = #sdy.sharding<@mesh, [{"i"}, {}]>}, %arg1: tensor<128x64xbf16> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>}) -> (tensor<256x64xbf16> {jax.result_info = "result[0]"}) {
    %0 = sdy.manual_computation(%arg0, %arg1) in_shardings=[<@mesh, [{"i"}, {}]>, <@mesh, [{}, {}]>] out_shardings=[<@mesh, [{}, {}]>] manual_axes={"i"} (%arg2: tensor<32x128xbf16>, %arg3: tensor<128x64xbf16>) {
      %1 = "stablehlo.all_gather"(%arg2) <{all_gather_dim = 0 : i64, channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh_0, axes = [#stablehlo.axis_ref<name = "i">]>, use_global_device_ids}> : (tensor<32x128xbf16>) -> tensor<256x128xbf16>
      %2 = stablehlo.dot_general %1, %arg3, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] : (tensor<256x128xbf16>, tensor<128x64xbf16>) -> tensor<256x64xbf16>
      sdy.return %2 : tensor<256x64xbf16>
    } : (tensor<256x128xbf16>, tensor<128x64xbf16>) -> tensor<256x64xbf16>
    return %0 : tensor<256x64xbf16>
  }
}
