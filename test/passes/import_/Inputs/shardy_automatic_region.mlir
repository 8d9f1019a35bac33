// A region that makes no axis manual beside one that does, and one within it.
module @automatic_region {
  sdy.mesh @mesh = <["x"=2, "y"=2]>
  func.func @main(%x: tensor<8xf32>) -> tensor<8xf32> {
    %0 = sdy.manual_computation(%x) in_shardings=[<@mesh, [{"y"}]>] out_shardings=[<@mesh, [{?}]>] manual_axes={} (%b: tensor<8xf32>) {
      %2 = stablehlo.negate %b : tensor<8xf32>
      sdy.return %2 : tensor<8xf32>
    } : (tensor<8xf32>) -> tensor<8xf32>
    %1 = sdy.manual_computation(%0) in_shardings=[<@mesh, [{"x", "y"}]>] out_shardings=[<@mesh, [{"x"}]>] manual_axes={"x", "y"} (%b: tensor<2xf32>) {
      %2 = sdy.manual_computation(%b) in_shardings=[<@mesh, [{}]>] out_shardings=[<@mesh, [{}]>] manual_axes={} (%n: tensor<2xf32>) {
        %4 = stablehlo.exponential %n : tensor<2xf32>
        sdy.return %4 : tensor<2xf32>
      } : (tensor<2xf32>) -> tensor<2xf32>
      %3 = "stablehlo.all_gather"(%2) <{all_gather_dim = 0 : i64, replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "y">]>}> : (tensor<2xf32>) -> tensor<4xf32>
      sdy.return %3 : tensor<4xf32>
    } : (tensor<8xf32>) -> tensor<8xf32>
    return %1 : tensor<8xf32>
  }
}
