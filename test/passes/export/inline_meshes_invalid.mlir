// RUN: shmap-opt %s --shmap-inline-meshes --split-input-file --verify-diagnostics

module @groups_over_what_is_not_a_mesh {
  sdy.mesh @mesh = <["i"=4]>
  func.func public @main(%x: tensor<4xf32>) -> tensor<4xf32> {
    // expected-error @+1 {{the groups are on mesh @main, which the module lacks; name one of @mesh}}
    %0 = "stablehlo.all_reduce"(%x) <{replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @main, axes = [#stablehlo.axis_ref<name = "i">]>}> ({
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %s = stablehlo.add %a, %b : tensor<f32>
      stablehlo.return %s : tensor<f32>
    }) : (tensor<4xf32>) -> tensor<4xf32>
    return %0 : tensor<4xf32>
  }
}

// -----

module @groups_over_an_axis_that_is_not_there {
  sdy.mesh @mesh = <["i"=4]>
  func.func public @main(%x: tensor<4xf32>) -> tensor<4xf32> {
    // expected-error @+1 {{the groups are over axis "j", which @mesh lacks; name one of its axes}}
    %0 = "stablehlo.all_reduce"(%x) <{replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "j">]>}> ({
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %s = stablehlo.add %a, %b : tensor<f32>
      stablehlo.return %s : tensor<f32>
    }) : (tensor<4xf32>) -> tensor<4xf32>
    return %0 : tensor<4xf32>
  }
}

// -----

module @a_function_without_a_body {
  sdy.mesh @mesh = <["i"=4]>
  // expected-error @+1 {{@f has no body; define it, or remove it}}
  func.func private @f(%x: tensor<4xf32>) -> tensor<4xf32>
}
