// ----- fft_by_all_to_all.power_spectrum.body
module @power_spectrum {
  sdy.mesh @mesh = <["i"=8]>
  func.func public @main(%arg0: tensor<2x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"i"}, {}]>}) -> (tensor<16x2xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"i"}]>}) attributes {sdy.manual_axes = #sdy<manual_axes{"i"}>} {
    %0 = call @fft(%arg0) : (tensor<2x16xf32>) -> tensor<2x16xcomplex<f32>>
    %1 = "stablehlo.all_to_all"(%0) <{concat_dimension = 0 : i64, replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>, split_count = 8 : i64, split_dimension = 1 : i64}> : (tensor<2x16xcomplex<f32>>) -> tensor<16x2xcomplex<f32>>
    %2 = stablehlo.transpose %1, dims = [1, 0] : (tensor<16x2xcomplex<f32>>) -> tensor<2x16xcomplex<f32>>
    %3 = call @fft_0(%2) : (tensor<2x16xcomplex<f32>>) -> tensor<2x16xcomplex<f32>>
    %4 = stablehlo.transpose %3, dims = [1, 0] : (tensor<2x16xcomplex<f32>>) -> tensor<16x2xcomplex<f32>>
    %5 = stablehlo.abs %4 : (tensor<16x2xcomplex<f32>>) -> tensor<16x2xf32>
    %6 = stablehlo.multiply %5, %5 : tensor<16x2xf32>
    return %6 : tensor<16x2xf32>
  }
  func.func private @fft(%arg0: tensor<2x16xf32>) -> tensor<2x16xcomplex<f32>> {
    %0 = stablehlo.convert %arg0 : (tensor<2x16xf32>) -> tensor<2x16xcomplex<f32>>
    %1 = stablehlo.fft %0, type = FFT, length = [16] : (tensor<2x16xcomplex<f32>>) -> tensor<2x16xcomplex<f32>>
    return %1 : tensor<2x16xcomplex<f32>>
  }
  func.func private @fft_0(%arg0: tensor<2x16xcomplex<f32>>) -> tensor<2x16xcomplex<f32>> {
    %0 = stablehlo.fft %arg0, type = FFT, length = [16] : (tensor<2x16xcomplex<f32>>) -> tensor<2x16xcomplex<f32>>
    return %0 : tensor<2x16xcomplex<f32>>
  }
}
// ----- fft_by_all_to_all.power_spectrum.stablehlo.shardy
module @jit_power_spectrum attributes {mhlo.num_partitions = 8 : i32, mhlo.num_replicas = 1 : i32} {
  sdy.mesh @mesh = <["i"=8]> {stablehlo.mesh = {axes = [{name = "i", size = 8 : i64}]}}
  sdy.mesh @mesh_0 = <["i"=8]> {stablehlo.mesh = {axes = [{name = "i", size = 8 : i64}]}}
  func.func public @main(%arg0: tensor<16x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"i"}, {}]>}) -> (tensor<16x16xf32> {jax.result_info = "result[0]"}) {
    %0 = sdy.manual_computation(%arg0) in_shardings=[<@mesh, [{"i"}, {}]>] out_shardings=[<@mesh, [{}, {"i"}]>] manual_axes={"i"} (%arg1: tensor<2x16xf32>) {
      %1 = func.call @fft(%arg1) : (tensor<2x16xf32>) -> tensor<2x16xcomplex<f32>>
      %2 = "stablehlo.all_to_all"(%1) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, concat_dimension = 0 : i64, replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh_0, axes = [#stablehlo.axis_ref<name = "i">]>, split_count = 8 : i64, split_dimension = 1 : i64}> : (tensor<2x16xcomplex<f32>>) -> tensor<16x2xcomplex<f32>>
      %3 = stablehlo.transpose %2, dims = [1, 0] : (tensor<16x2xcomplex<f32>>) -> tensor<2x16xcomplex<f32>>
      %4 = func.call @fft_0(%3) : (tensor<2x16xcomplex<f32>>) -> tensor<2x16xcomplex<f32>>
      %5 = stablehlo.transpose %4, dims = [1, 0] : (tensor<2x16xcomplex<f32>>) -> tensor<16x2xcomplex<f32>>
      %6 = stablehlo.abs %5 : (tensor<16x2xcomplex<f32>>) -> tensor<16x2xf32>
      %7 = stablehlo.multiply %6, %6 : tensor<16x2xf32>
      sdy.return %7 : tensor<16x2xf32>
    } : (tensor<16x16xf32>) -> tensor<16x16xf32>
    return %0 : tensor<16x16xf32>
  }
  func.func private @fft(%arg0: tensor<2x16xf32>) -> tensor<2x16xcomplex<f32>> {
    %0 = stablehlo.convert %arg0 : (tensor<2x16xf32>) -> tensor<2x16xcomplex<f32>>
    %1 = stablehlo.fft %0, type = FFT, length = [16] : (tensor<2x16xcomplex<f32>>) -> tensor<2x16xcomplex<f32>>
    return %1 : tensor<2x16xcomplex<f32>>
  }
  func.func private @fft_0(%arg0: tensor<2x16xcomplex<f32>>) -> tensor<2x16xcomplex<f32>> {
    %0 = stablehlo.fft %arg0, type = FFT, length = [16] : (tensor<2x16xcomplex<f32>>) -> tensor<2x16xcomplex<f32>>
    return %0 : tensor<2x16xcomplex<f32>>
  }
}
