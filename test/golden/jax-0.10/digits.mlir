// ----- digits.data_and_tensor_parallel.body
module @data_and_tensor_parallel {
  sdy.mesh @mesh = <["data"=4, "model"=2]>
  func.func public @main(%arg0: tensor<64x64xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"model"}]>}, %arg1: tensor<64xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"model"}]>}, %arg2: tensor<64x10xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"model"}, {}]>}, %arg3: tensor<10xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}]>}, %arg4: tensor<100x64xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"data"}, {}]>}) -> (tensor<100x10xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"data"}, {}]>}) attributes {sdy.manual_axes = #sdy<manual_axes{"data", "model"}>} {
    %0 = stablehlo.dot_general %arg4, %arg0, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] : (tensor<100x64xf32>, tensor<64x64xf32>) -> tensor<100x64xf32>
    %1 = stablehlo.broadcast_in_dim %arg1, dims = [1] : (tensor<64xf32>) -> tensor<1x64xf32>
    %2 = stablehlo.broadcast_in_dim %1, dims = [0, 1] : (tensor<1x64xf32>) -> tensor<100x64xf32>
    %3 = stablehlo.add %0, %2 : tensor<100x64xf32>
    %4 = call @relu(%3) : (tensor<100x64xf32>) -> tensor<100x64xf32>
    %5 = stablehlo.dot_general %4, %arg2, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] : (tensor<100x64xf32>, tensor<64x10xf32>) -> tensor<100x10xf32>
    %6 = "stablehlo.all_reduce"(%5) <{replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "model">]>}> ({
    ^bb0(%arg5: tensor<f32>, %arg6: tensor<f32>):
      %10 = stablehlo.add %arg5, %arg6 : tensor<f32>
      stablehlo.return %10 : tensor<f32>
    }) : (tensor<100x10xf32>) -> tensor<100x10xf32>
    %7 = stablehlo.broadcast_in_dim %arg3, dims = [1] : (tensor<10xf32>) -> tensor<1x10xf32>
    %8 = stablehlo.broadcast_in_dim %7, dims = [0, 1] : (tensor<1x10xf32>) -> tensor<100x10xf32>
    %9 = stablehlo.add %6, %8 : tensor<100x10xf32>
    return %9 : tensor<100x10xf32>
  }
  func.func private @relu(%arg0: tensor<100x64xf32>) -> tensor<100x64xf32> {
    %cst = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %0 = stablehlo.broadcast_in_dim %cst, dims = [] : (tensor<f32>) -> tensor<100x64xf32>
    %1 = stablehlo.maximum %arg0, %0 : tensor<100x64xf32>
    return %1 : tensor<100x64xf32>
  }
}
// ----- digits.data_parallel.body
module @data_parallel {
  sdy.mesh @mesh = <["data"=4, "model"=2]>
  func.func public @main(%arg0: tensor<64x128xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>}, %arg1: tensor<128xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}]>}, %arg2: tensor<128x10xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>}, %arg3: tensor<10xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}]>}, %arg4: tensor<50x64xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"data", "model"}, {}]>}) -> (tensor<50x10xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"data", "model"}, {}]>}) attributes {sdy.manual_axes = #sdy<manual_axes{"data", "model"}>} {
    %0 = stablehlo.dot_general %arg4, %arg0, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] : (tensor<50x64xf32>, tensor<64x128xf32>) -> tensor<50x128xf32>
    %1 = stablehlo.broadcast_in_dim %arg1, dims = [1] : (tensor<128xf32>) -> tensor<1x128xf32>
    %2 = stablehlo.broadcast_in_dim %1, dims = [0, 1] : (tensor<1x128xf32>) -> tensor<50x128xf32>
    %3 = stablehlo.add %0, %2 : tensor<50x128xf32>
    %4 = call @relu(%3) : (tensor<50x128xf32>) -> tensor<50x128xf32>
    %5 = stablehlo.dot_general %4, %arg2, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] : (tensor<50x128xf32>, tensor<128x10xf32>) -> tensor<50x10xf32>
    %6 = stablehlo.broadcast_in_dim %arg3, dims = [1] : (tensor<10xf32>) -> tensor<1x10xf32>
    %7 = stablehlo.broadcast_in_dim %6, dims = [0, 1] : (tensor<1x10xf32>) -> tensor<50x10xf32>
    %8 = stablehlo.add %5, %7 : tensor<50x10xf32>
    return %8 : tensor<50x10xf32>
  }
  func.func private @relu(%arg0: tensor<50x128xf32>) -> tensor<50x128xf32> {
    %cst = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %0 = stablehlo.broadcast_in_dim %cst, dims = [] : (tensor<f32>) -> tensor<50x128xf32>
    %1 = stablehlo.maximum %arg0, %0 : tensor<50x128xf32>
    return %1 : tensor<50x128xf32>
  }
}
// ----- digits.tensor_parallel.body
module @tensor_parallel {
  sdy.mesh @mesh = <["data"=4, "model"=2]>
  func.func public @main(%arg0: tensor<64x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"data", "model"}]>}, %arg1: tensor<16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"data", "model"}]>}, %arg2: tensor<16x10xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"data", "model"}, {}]>}, %arg3: tensor<10xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}]>}, %arg4: tensor<400x64xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>}) -> (tensor<400x10xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>}) attributes {sdy.manual_axes = #sdy<manual_axes{"data", "model"}>} {
    %0 = stablehlo.dot_general %arg4, %arg0, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] : (tensor<400x64xf32>, tensor<64x16xf32>) -> tensor<400x16xf32>
    %1 = stablehlo.broadcast_in_dim %arg1, dims = [1] : (tensor<16xf32>) -> tensor<1x16xf32>
    %2 = stablehlo.broadcast_in_dim %1, dims = [0, 1] : (tensor<1x16xf32>) -> tensor<400x16xf32>
    %3 = stablehlo.add %0, %2 : tensor<400x16xf32>
    %4 = call @relu(%3) : (tensor<400x16xf32>) -> tensor<400x16xf32>
    %5 = stablehlo.dot_general %4, %arg2, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] : (tensor<400x16xf32>, tensor<16x10xf32>) -> tensor<400x10xf32>
    %6 = "stablehlo.all_reduce"(%5) <{replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "data">, #stablehlo.axis_ref<name = "model">]>}> ({
    ^bb0(%arg5: tensor<f32>, %arg6: tensor<f32>):
      %10 = stablehlo.add %arg5, %arg6 : tensor<f32>
      stablehlo.return %10 : tensor<f32>
    }) : (tensor<400x10xf32>) -> tensor<400x10xf32>
    %7 = stablehlo.broadcast_in_dim %arg3, dims = [1] : (tensor<10xf32>) -> tensor<1x10xf32>
    %8 = stablehlo.broadcast_in_dim %7, dims = [0, 1] : (tensor<1x10xf32>) -> tensor<400x10xf32>
    %9 = stablehlo.add %6, %8 : tensor<400x10xf32>
    return %9 : tensor<400x10xf32>
  }
  func.func private @relu(%arg0: tensor<400x16xf32>) -> tensor<400x16xf32> {
    %cst = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %0 = stablehlo.broadcast_in_dim %cst, dims = [] : (tensor<f32>) -> tensor<400x16xf32>
    %1 = stablehlo.maximum %arg0, %0 : tensor<400x16xf32>
    return %1 : tensor<400x16xf32>
  }
}
