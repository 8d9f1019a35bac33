// RUN: shmap-opt %s --shmap-elide-invariant-reductions --split-input-file | FileCheck %s

// CHECK-LABEL: module @the_sum_of_an_equal_value_is_a_multiple
module @the_sum_of_an_equal_value_is_a_multiple {
  sdy.mesh @mesh = <["i"=4, "j"=2]>
  // CHECK: func.func public @main
  func.func public @main(%x: tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"i"}]>})
      -> (tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"i"}]>})
      attributes {sdy.manual_axes = #sdy<manual_axes{"i", "j"}>} {
    %e = "stablehlo.collective_broadcast"(%x) <{replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "j">]>}> : (tensor<4xf32>) -> tensor<4xf32>
    // CHECK-NEXT: %[[E:.*]] = "stablehlo.collective_broadcast"(%arg0)
    // CHECK-NEXT: %[[N:.*]] = stablehlo.constant dense<2.000000e+00> : tensor<4xf32>
    // CHECK-NEXT: %[[R:.*]] = stablehlo.multiply %[[E]], %[[N]]
    // CHECK-NEXT: return %[[R]]
    %0 = "stablehlo.all_reduce"(%e) <{replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "j">]>}> ({
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %s = stablehlo.add %a, %b : tensor<f32>
      stablehlo.return %s : tensor<f32>
    }) : (tensor<4xf32>) -> tensor<4xf32>
    return %0 : tensor<4xf32>
  }
}

// -----

// CHECK-LABEL: module @the_maximum_of_an_equal_value_is_the_value
module @the_maximum_of_an_equal_value_is_the_value {
  sdy.mesh @mesh = <["i"=4, "j"=2]>
  // CHECK: func.func public @main
  func.func public @main(%x: tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"i"}]>})
      -> (tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"i"}]>})
      attributes {sdy.manual_axes = #sdy<manual_axes{"i", "j"}>} {
    %e = "stablehlo.collective_broadcast"(%x) <{replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "j">]>}> : (tensor<4xf32>) -> tensor<4xf32>
    // CHECK-NEXT: %[[E:.*]] = "stablehlo.collective_broadcast"(%arg0)
    // CHECK-NEXT: return %[[E]]
    %0 = "stablehlo.all_reduce"(%e) <{replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "j">]>}> ({
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %s = stablehlo.maximum %a, %b : tensor<f32>
      stablehlo.return %s : tensor<f32>
    }) : (tensor<4xf32>) -> tensor<4xf32>
    return %0 : tensor<4xf32>
  }
}

// -----

// CHECK-LABEL: module @the_minimum_of_an_equal_value_is_the_value
module @the_minimum_of_an_equal_value_is_the_value {
  sdy.mesh @mesh = <["i"=4, "j"=2]>
  // CHECK: func.func public @main
  func.func public @main(%x: tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"i"}]>})
      -> (tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"i"}]>})
      attributes {sdy.manual_axes = #sdy<manual_axes{"i", "j"}>} {
    %e = "stablehlo.collective_broadcast"(%x) <{replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "j">]>}> : (tensor<4xf32>) -> tensor<4xf32>
    // CHECK-NEXT: %[[E:.*]] = "stablehlo.collective_broadcast"(%arg0)
    // CHECK-NEXT: return %[[E]]
    %0 = "stablehlo.all_reduce"(%e) <{replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "j">]>}> ({
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %s = stablehlo.minimum %a, %b : tensor<f32>
      stablehlo.return %s : tensor<f32>
    }) : (tensor<4xf32>) -> tensor<4xf32>
    return %0 : tensor<4xf32>
  }
}

// -----

// CHECK-LABEL: module @a_reduction_over_other_axes_remains
module @a_reduction_over_other_axes_remains {
  sdy.mesh @mesh = <["i"=4, "j"=2]>
  // CHECK: func.func public @main
  func.func public @main(%x: tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"i"}]>})
      -> (tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"i"}]>})
      attributes {sdy.manual_axes = #sdy<manual_axes{"i", "j"}>} {
    %e = "stablehlo.collective_broadcast"(%x) <{replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "j">]>}> : (tensor<4xf32>) -> tensor<4xf32>
    // CHECK-NEXT: %[[E:.*]] = "stablehlo.collective_broadcast"(%arg0)
    // CHECK-NEXT: %[[SUM:.*]] = "stablehlo.all_reduce"(%[[E]])
    // CHECK-SAME: axes = [#stablehlo.axis_ref<name = "i">]
    // CHECK: %[[N:.*]] = stablehlo.constant dense<2.000000e+00>
    // CHECK-NEXT: %[[R:.*]] = stablehlo.multiply %[[SUM]], %[[N]]
    // CHECK-NEXT: return %[[R]]
    %0 = "stablehlo.all_reduce"(%e) <{replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "j">, #stablehlo.axis_ref<name = "i">]>}> ({
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %s = stablehlo.add %a, %b : tensor<f32>
      stablehlo.return %s : tensor<f32>
    }) : (tensor<4xf32>) -> tensor<4xf32>
    return %0 : tensor<4xf32>
  }
}

// -----

// CHECK-LABEL: module @a_sum_of_a_sum
module @a_sum_of_a_sum {
  sdy.mesh @mesh = <["i"=4, "j"=2]>
  // CHECK: func.func public @main
  func.func public @main(%x: tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"i"}]>})
      -> (tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"i"}]>})
      attributes {sdy.manual_axes = #sdy<manual_axes{"i", "j"}>} {
    // CHECK-NEXT: %[[SUM:.*]] = "stablehlo.all_reduce"(%arg0)
    // CHECK: %[[N:.*]] = stablehlo.constant dense<4.000000e+00>
    // CHECK-NEXT: stablehlo.multiply %[[SUM]], %[[N]]
    // CHECK-NEXT: return
    %0 = "stablehlo.all_reduce"(%x) <{replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>}> ({
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %s = stablehlo.add %a, %b : tensor<f32>
      stablehlo.return %s : tensor<f32>
    }) : (tensor<4xf32>) -> tensor<4xf32>
    %1 = "stablehlo.all_reduce"(%0) <{replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>}> ({
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %s = stablehlo.add %a, %b : tensor<f32>
      stablehlo.return %s : tensor<f32>
    }) : (tensor<4xf32>) -> tensor<4xf32>
    return %1 : tensor<4xf32>
  }
}

// -----

// CHECK-LABEL: module @a_value_that_varies_along_the_axis
module @a_value_that_varies_along_the_axis {
  sdy.mesh @mesh = <["i"=4, "j"=2]>
  // CHECK: func.func public @main
  func.func public @main(%x: tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"i"}]>})
      -> (tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"i"}]>})
      attributes {sdy.manual_axes = #sdy<manual_axes{"i", "j"}>} {
    // CHECK-NEXT: {{.*}} = "stablehlo.all_reduce"
    // CHECK-SAME: axes = [#stablehlo.axis_ref<name = "i">]
    // CHECK-NOT: stablehlo.constant
    // CHECK: return
    %0 = "stablehlo.all_reduce"(%x) <{replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>}> ({
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %s = stablehlo.add %a, %b : tensor<f32>
      stablehlo.return %s : tensor<f32>
    }) : (tensor<4xf32>) -> tensor<4xf32>
    return %0 : tensor<4xf32>
  }
}

// -----

// CHECK-LABEL: module @integers_wrap_around_alike
module @integers_wrap_around_alike {
  sdy.mesh @mesh = <["i"=4, "j"=7]>
  // CHECK: func.func public @main
  func.func public @main(%x: tensor<4xi32> {sdy.sharding = #sdy.sharding<@mesh, [{"i"}]>})
      -> (tensor<4xi32> {sdy.sharding = #sdy.sharding<@mesh, [{"i"}]>})
      attributes {sdy.manual_axes = #sdy<manual_axes{"i", "j"}>} {
    %e = "stablehlo.collective_broadcast"(%x) <{replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "j">]>}> : (tensor<4xi32>) -> tensor<4xi32>
    // CHECK-NEXT: %[[E:.*]] = "stablehlo.collective_broadcast"(%arg0)
    // CHECK-NEXT: %[[N:.*]] = stablehlo.constant dense<7> : tensor<4xi32>
    // CHECK-NEXT: %[[R:.*]] = stablehlo.multiply %[[E]], %[[N]]
    // CHECK-NEXT: return %[[R]]
    %0 = "stablehlo.all_reduce"(%e) <{replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "j">]>}> ({
    ^bb0(%a: tensor<i32>, %b: tensor<i32>):
      %s = stablehlo.add %a, %b : tensor<i32>
      stablehlo.return %s : tensor<i32>
    }) : (tensor<4xi32>) -> tensor<4xi32>
    return %0 : tensor<4xi32>
  }
}

// -----

// CHECK-LABEL: module @sums_of_booleans_are_no_multiples
module @sums_of_booleans_are_no_multiples {
  sdy.mesh @mesh = <["i"=4, "j"=2]>
  // CHECK: func.func public @main
  func.func public @main(%x: tensor<4xi1> {sdy.sharding = #sdy.sharding<@mesh, [{"i"}]>})
      -> (tensor<4xi1> {sdy.sharding = #sdy.sharding<@mesh, [{"i"}]>})
      attributes {sdy.manual_axes = #sdy<manual_axes{"i", "j"}>} {
    %e = "stablehlo.collective_broadcast"(%x) <{replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "j">]>}> : (tensor<4xi1>) -> tensor<4xi1>
    // CHECK-NEXT: %[[E:.*]] = "stablehlo.collective_broadcast"(%arg0)
    // CHECK-NEXT: {{.*}} = "stablehlo.all_reduce"
    // CHECK-SAME: axes = [#stablehlo.axis_ref<name = "j">]
    // CHECK-NOT: stablehlo.constant
    // CHECK: return
    %0 = "stablehlo.all_reduce"(%e) <{replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "j">]>}> ({
    ^bb0(%a: tensor<i1>, %b: tensor<i1>):
      %s = stablehlo.add %a, %b : tensor<i1>
      stablehlo.return %s : tensor<i1>
    }) : (tensor<4xi1>) -> tensor<4xi1>
    return %0 : tensor<4xi1>
  }
}

// -----

// CHECK-LABEL: module @a_count_of_two_bits_rounds_once
module @a_count_of_two_bits_rounds_once {
  sdy.mesh @mesh = <["i"=4, "j"=6]>
  // CHECK: func.func public @main
  func.func public @main(%x: tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"i"}]>})
      -> (tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"i"}]>})
      attributes {sdy.manual_axes = #sdy<manual_axes{"i", "j"}>} {
    %e = "stablehlo.collective_broadcast"(%x) <{replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "j">]>}> : (tensor<4xf32>) -> tensor<4xf32>
    // CHECK-NEXT: %[[E:.*]] = "stablehlo.collective_broadcast"(%arg0)
    // CHECK-NEXT: %[[N:.*]] = stablehlo.constant dense<6.000000e+00> : tensor<4xf32>
    // CHECK-NEXT: %[[R:.*]] = stablehlo.multiply %[[E]], %[[N]]
    // CHECK-NEXT: return %[[R]]
    %0 = "stablehlo.all_reduce"(%e) <{replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "j">]>}> ({
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %s = stablehlo.add %a, %b : tensor<f32>
      stablehlo.return %s : tensor<f32>
    }) : (tensor<4xf32>) -> tensor<4xf32>
    return %0 : tensor<4xf32>
  }
}

// -----

// CHECK-LABEL: module @a_count_of_three_bits_rounds_otherwise
module @a_count_of_three_bits_rounds_otherwise {
  sdy.mesh @mesh = <["i"=4, "j"=7]>
  // CHECK: func.func public @main
  func.func public @main(%x: tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"i"}]>})
      -> (tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"i"}]>})
      attributes {sdy.manual_axes = #sdy<manual_axes{"i", "j"}>} {
    %e = "stablehlo.collective_broadcast"(%x) <{replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "j">]>}> : (tensor<4xf32>) -> tensor<4xf32>
    // CHECK-NEXT: %[[E:.*]] = "stablehlo.collective_broadcast"(%arg0)
    // CHECK-NEXT: {{.*}} = "stablehlo.all_reduce"
    // CHECK-SAME: axes = [#stablehlo.axis_ref<name = "j">]
    // CHECK-NOT: stablehlo.constant
    // CHECK: return
    %0 = "stablehlo.all_reduce"(%e) <{replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "j">]>}> ({
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %s = stablehlo.add %a, %b : tensor<f32>
      stablehlo.return %s : tensor<f32>
    }) : (tensor<4xf32>) -> tensor<4xf32>
    return %0 : tensor<4xf32>
  }
}

// -----

// CHECK-LABEL: module @a_count_that_the_type_cannot_hold
module @a_count_that_the_type_cannot_hold {
  sdy.mesh @mesh = <["i"=2, "j"=257]>
  // CHECK: func.func public @main
  func.func public @main(%x: tensor<4xbf16> {sdy.sharding = #sdy.sharding<@mesh, [{"i"}]>})
      -> (tensor<4xbf16> {sdy.sharding = #sdy.sharding<@mesh, [{"i"}]>})
      attributes {sdy.manual_axes = #sdy<manual_axes{"i", "j"}>} {
    %e = "stablehlo.collective_broadcast"(%x) <{replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "j">]>}> : (tensor<4xbf16>) -> tensor<4xbf16>
    // CHECK-NEXT: %[[E:.*]] = "stablehlo.collective_broadcast"(%arg0)
    // CHECK-NEXT: {{.*}} = "stablehlo.all_reduce"
    // CHECK-SAME: axes = [#stablehlo.axis_ref<name = "j">]
    // CHECK-NOT: stablehlo.constant
    // CHECK: return
    %0 = "stablehlo.all_reduce"(%e) <{replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "j">]>}> ({
    ^bb0(%a: tensor<bf16>, %b: tensor<bf16>):
      %s = stablehlo.add %a, %b : tensor<bf16>
      stablehlo.return %s : tensor<bf16>
    }) : (tensor<4xbf16>) -> tensor<4xbf16>
    return %0 : tensor<4xbf16>
  }
}

// -----

// CHECK-LABEL: module @complex_values_are_not_scaled
module @complex_values_are_not_scaled {
  sdy.mesh @mesh = <["i"=4, "j"=2]>
  // CHECK: func.func public @main
  func.func public @main(%x: tensor<4xcomplex<f32>> {sdy.sharding = #sdy.sharding<@mesh, [{"i"}]>})
      -> (tensor<4xcomplex<f32>> {sdy.sharding = #sdy.sharding<@mesh, [{"i"}]>})
      attributes {sdy.manual_axes = #sdy<manual_axes{"i", "j"}>} {
    %e = "stablehlo.collective_broadcast"(%x) <{replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "j">]>}> : (tensor<4xcomplex<f32>>) -> tensor<4xcomplex<f32>>
    // CHECK-NEXT: %[[E:.*]] = "stablehlo.collective_broadcast"(%arg0)
    // CHECK-NEXT: {{.*}} = "stablehlo.all_reduce"
    // CHECK-SAME: axes = [#stablehlo.axis_ref<name = "j">]
    // CHECK-NOT: stablehlo.constant
    // CHECK: return
    %0 = "stablehlo.all_reduce"(%e) <{replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "j">]>}> ({
    ^bb0(%a: tensor<complex<f32>>, %b: tensor<complex<f32>>):
      %s = stablehlo.add %a, %b : tensor<complex<f32>>
      stablehlo.return %s : tensor<complex<f32>>
    }) : (tensor<4xcomplex<f32>>) -> tensor<4xcomplex<f32>>
    return %0 : tensor<4xcomplex<f32>>
  }
}

// -----

// CHECK-LABEL: module @a_product_is_a_power
module @a_product_is_a_power {
  sdy.mesh @mesh = <["i"=4, "j"=2]>
  // CHECK: func.func public @main
  func.func public @main(%x: tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"i"}]>})
      -> (tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"i"}]>})
      attributes {sdy.manual_axes = #sdy<manual_axes{"i", "j"}>} {
    %e = "stablehlo.collective_broadcast"(%x) <{replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "j">]>}> : (tensor<4xf32>) -> tensor<4xf32>
    // CHECK-NEXT: %[[E:.*]] = "stablehlo.collective_broadcast"(%arg0)
    // CHECK-NEXT: {{.*}} = "stablehlo.all_reduce"
    // CHECK-SAME: axes = [#stablehlo.axis_ref<name = "j">]
    // CHECK-NOT: stablehlo.constant
    // CHECK: return
    %0 = "stablehlo.all_reduce"(%e) <{replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "j">]>}> ({
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %s = stablehlo.multiply %a, %b : tensor<f32>
      stablehlo.return %s : tensor<f32>
    }) : (tensor<4xf32>) -> tensor<4xf32>
    return %0 : tensor<4xf32>
  }
}

// -----

// CHECK-LABEL: module @groups_of_device_ids_stay
module @groups_of_device_ids_stay {
  sdy.mesh @mesh = <["i"=2, "j"=2]>
  // CHECK: func.func public @main
  func.func public @main(%x: tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"i"}]>})
      -> (tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"i"}]>})
      attributes {sdy.manual_axes = #sdy<manual_axes{"i", "j"}>} {
    // CHECK-NEXT: %0 = "stablehlo.all_reduce"
    // CHECK-SAME: dense<
    %0 = "stablehlo.all_reduce"(%x) <{replica_groups = dense<[[0, 1], [2, 3]]> : tensor<2x2xi64>}> ({
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %s = stablehlo.add %a, %b : tensor<f32>
      stablehlo.return %s : tensor<f32>
    }) : (tensor<4xf32>) -> tensor<4xf32>
    return %0 : tensor<4xf32>
  }
}

// -----

// CHECK-LABEL: module @an_axis_of_size_one_is_left_to_another_pass
module @an_axis_of_size_one_is_left_to_another_pass {
  sdy.mesh @mesh = <["i"=4, "j"=1]>
  // CHECK: func.func public @main
  func.func public @main(%x: tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"i"}]>})
      -> (tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"i"}]>})
      attributes {sdy.manual_axes = #sdy<manual_axes{"i", "j"}>} {
    %e = "stablehlo.collective_broadcast"(%x) <{replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "j">]>}> : (tensor<4xf32>) -> tensor<4xf32>
    // CHECK-NEXT: %[[E:.*]] = "stablehlo.collective_broadcast"(%arg0)
    // CHECK-NEXT: {{.*}} = "stablehlo.all_reduce"
    // CHECK-SAME: axes = [#stablehlo.axis_ref<name = "j">]
    // CHECK-NOT: stablehlo.constant
    // CHECK: return
    %0 = "stablehlo.all_reduce"(%e) <{replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "j">]>}> ({
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %s = stablehlo.add %a, %b : tensor<f32>
      stablehlo.return %s : tensor<f32>
    }) : (tensor<4xf32>) -> tensor<4xf32>
    return %0 : tensor<4xf32>
  }
}

// -----

// With check_vma=False, programs return arrays whose copies differ, which others then reduce.
// CHECK-LABEL: module @copies_of_an_argument_may_differ
module @copies_of_an_argument_may_differ {
  sdy.mesh @mesh = <["i"=4, "j"=2]>
  // CHECK: func.func public @main
  func.func public @main(%x: tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"i"}]>})
      -> (tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"i"}]>})
      attributes {sdy.manual_axes = #sdy<manual_axes{"i", "j"}>} {
    // CHECK-NEXT: %[[SUM:.*]] = "stablehlo.all_reduce"(%arg0)
    // CHECK-SAME: axes = [#stablehlo.axis_ref<name = "j">]
    %0 = "stablehlo.all_reduce"(%x) <{replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "j">]>}> ({
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %s = stablehlo.add %a, %b : tensor<f32>
      stablehlo.return %s : tensor<f32>
    }) : (tensor<4xf32>) -> tensor<4xf32>
    // CHECK: return %[[SUM]]
    return %0 : tensor<4xf32>
  }
}

// -----

// CHECK-LABEL: module @copies_of_an_argument_of_another_function_may_differ
module @copies_of_an_argument_of_another_function_may_differ {
  sdy.mesh @mesh = <["i"=4, "j"=2]>
  func.func public @main(%x: tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"i"}]>})
      -> (tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"i"}]>})
      attributes {sdy.manual_axes = #sdy<manual_axes{"i", "j"}>} {
    %0 = func.call @largest(%x) : (tensor<4xf32>) -> tensor<4xf32>
    return %0 : tensor<4xf32>
  }
  // CHECK: func.func private @largest(%arg0: tensor<4xf32>) -> tensor<4xf32> {
  // CHECK-NEXT: "stablehlo.all_reduce"(%arg0)
  func.func private @largest(%z: tensor<4xf32>) -> tensor<4xf32> {
    %0 = "stablehlo.all_reduce"(%z) <{replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "j">]>}> ({
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %s = stablehlo.maximum %a, %b : tensor<f32>
      stablehlo.return %s : tensor<f32>
    }) : (tensor<4xf32>) -> tensor<4xf32>
    return %0 : tensor<4xf32>
  }
}

// -----

// CHECK-LABEL: module @copies_of_an_argument_that_are_equal
module @copies_of_an_argument_that_are_equal {
  sdy.mesh @mesh = <["i"=4, "j"=2]>
  func.func public @main(
      %x: tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}]>},
      %y: tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"i"}]>})
      -> (tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}]>},
          tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"i"}]>})
      attributes {sdy.manual_axes = #sdy<manual_axes{"i", "j"}>, shmap.equal_arguments = array<i64: 1>} {
    // CHECK: %[[X:.*]] = "stablehlo.all_reduce"(%arg0)
    // CHECK-SAME: axes = [#stablehlo.axis_ref<name = "i">, #stablehlo.axis_ref<name = "j">]
    %0 = "stablehlo.all_reduce"(%x) <{replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">, #stablehlo.axis_ref<name = "j">]>}> ({
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %s = stablehlo.maximum %a, %b : tensor<f32>
      stablehlo.return %s : tensor<f32>
    }) : (tensor<4xf32>) -> tensor<4xf32>
    // CHECK: %[[Y:.*]] = "stablehlo.all_reduce"(%arg1)
    // CHECK-SAME: axes = [#stablehlo.axis_ref<name = "i">]
    %1 = "stablehlo.all_reduce"(%y) <{replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">, #stablehlo.axis_ref<name = "j">]>}> ({
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %s = stablehlo.maximum %a, %b : tensor<f32>
      stablehlo.return %s : tensor<f32>
    }) : (tensor<4xf32>) -> tensor<4xf32>
    // CHECK: return %[[X]], %[[Y]]
    return %0, %1 : tensor<4xf32>, tensor<4xf32>
  }
}

// -----

// CHECK-LABEL: module @with_automatic_axes
module @with_automatic_axes {
  sdy.mesh @mesh = <["i"=2, "j"=2, "k"=2]>
  // CHECK: func.func public @main
  func.func public @main(%x: tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"i"}]>})
      -> (tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"i"}]>})
      attributes {sdy.manual_axes = #sdy<manual_axes{"i", "j"}>} {
    %e = "stablehlo.collective_broadcast"(%x) <{replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "j">]>}> : (tensor<4xf32>) -> tensor<4xf32>
    // CHECK-NEXT: %[[E:.*]] = "stablehlo.collective_broadcast"(%arg0)
    // CHECK-NEXT: %[[N:.*]] = stablehlo.constant dense<2.000000e+00> : tensor<4xf32>
    // CHECK-NEXT: %[[R:.*]] = stablehlo.multiply %[[E]], %[[N]]
    // CHECK-NEXT: return %[[R]]
    %0 = "stablehlo.all_reduce"(%e) <{replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "j">]>}> ({
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %s = stablehlo.add %a, %b : tensor<f32>
      stablehlo.return %s : tensor<f32>
    }) : (tensor<4xf32>) -> tensor<4xf32>
    return %0 : tensor<4xf32>
  }
}

// -----

// CHECK-LABEL: module @only_some_devices_come_to_a_branch
module @only_some_devices_come_to_a_branch {
  sdy.mesh @mesh = <["i"=4, "j"=2]>
  // CHECK: func.func public @main
  func.func public @main(%x: tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"i"}]>})
      -> (tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"i"}]>})
      attributes {sdy.manual_axes = #sdy<manual_axes{"i", "j"}>} {
    %e = "stablehlo.collective_broadcast"(%x) <{replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "j">]>}> : (tensor<4xf32>) -> tensor<4xf32>
    %i = stablehlo.custom_call @shmap.axis_index() {api_version = 4 : i32, backend_config = {axes = ["j"]}} : () -> tensor<i32>
    // CHECK: "stablehlo.case"
    // CHECK-NEXT: "stablehlo.all_reduce"
    %0 = "stablehlo.case"(%i) ({
      %1 = "stablehlo.all_reduce"(%e) <{replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "j">]>}> ({
      ^bb0(%a: tensor<f32>, %b: tensor<f32>):
        %s = stablehlo.add %a, %b : tensor<f32>
        stablehlo.return %s : tensor<f32>
      }) : (tensor<4xf32>) -> tensor<4xf32>
      stablehlo.return %1 : tensor<4xf32>
    }, {
      stablehlo.return %e : tensor<4xf32>
    }) : (tensor<i32>) -> tensor<4xf32>
    return %0 : tensor<4xf32>
  }
}

// -----

// The sum of summands stays.
// CHECK-LABEL: module @summands_are_not_equal
module @summands_are_not_equal {
  sdy.mesh @mesh = <["i"=4]>
  // CHECK: "stablehlo.all_reduce"(%arg0)
  func.func public @main(%x: tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}], unreduced={"i"}>}) -> (tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}]>}) attributes {sdy.manual_axes = #sdy<manual_axes{"i"}>} {
    %0 = "stablehlo.all_reduce"(%x) <{replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>}> ({
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %s = stablehlo.add %a, %b : tensor<f32>
      stablehlo.return %s : tensor<f32>
    }) : (tensor<4xf32>) -> tensor<4xf32>
    return %0 : tensor<4xf32>
  }
}

// -----

// CHECK-LABEL: module @arguments_of_other_functions_are_not_those_of_main
module @arguments_of_other_functions_are_not_those_of_main {
  sdy.mesh @mesh = <["i"=4, "j"=2]>
  func.func public @main(
      %x: tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"i"}]>},
      %y: tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}]>})
      -> (tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"i"}]>},
          tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}]>})
      attributes {sdy.manual_axes = #sdy<manual_axes{"i", "j"}>} {
    %e = "stablehlo.collective_broadcast"(%y) <{replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>}> : (tensor<4xf32>) -> tensor<4xf32>
    %0 = func.call @largest(%e) : (tensor<4xf32>) -> tensor<4xf32>
    return %x, %0 : tensor<4xf32>, tensor<4xf32>
  }
  // CHECK: func.func private @largest(%arg0: tensor<4xf32>) -> tensor<4xf32> {
  // CHECK-NEXT: return %arg0
  func.func private @largest(%z: tensor<4xf32>) -> tensor<4xf32> {
    %0 = "stablehlo.all_reduce"(%z) <{replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>}> ({
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %s = stablehlo.maximum %a, %b : tensor<f32>
      stablehlo.return %s : tensor<f32>
    }) : (tensor<4xf32>) -> tensor<4xf32>
    return %0 : tensor<4xf32>
  }
}

// -----

// The operations of XLA's own dialect are not all functions of their operands.
// CHECK-LABEL: module @the_id_of_the_device_in_another_dialect
module @the_id_of_the_device_in_another_dialect {
  sdy.mesh @mesh = <["i"=4]>
  // CHECK: %[[ID:.*]] = mhlo.partition_id
  // CHECK: %[[TWICE:.*]] = mhlo.add %[[ID]], %[[ID]]
  // CHECK-NEXT: "stablehlo.all_reduce"(%[[TWICE]])
  func.func public @main() -> (tensor<ui32> {sdy.sharding = #sdy.sharding<@mesh, []>}) attributes {sdy.manual_axes = #sdy<manual_axes{"i"}>} {
    %p = mhlo.partition_id : tensor<ui32>
    %q = mhlo.add %p, %p : tensor<ui32>
    %0 = "stablehlo.all_reduce"(%q) <{replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>}> ({
    ^bb0(%a: tensor<ui32>, %b: tensor<ui32>):
      %s = stablehlo.add %a, %b : tensor<ui32>
      stablehlo.return %s : tensor<ui32>
    }) : (tensor<ui32>) -> tensor<ui32>
    return %0 : tensor<ui32>
  }
}

// -----

// CHECK-LABEL: module @arithmetic_in_another_dialect
module @arithmetic_in_another_dialect {
  sdy.mesh @mesh = <["i"=4]>
  // CHECK: %[[E:.*]] = "stablehlo.collective_broadcast"(%arg0)
  // CHECK: %[[TWICE:.*]] = mhlo.add %[[E]], %[[E]]
  // CHECK-NEXT: return %[[TWICE]]
  func.func public @main(%x: tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}]>}) -> (tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}]>}) attributes {sdy.manual_axes = #sdy<manual_axes{"i"}>} {
    %e = "stablehlo.collective_broadcast"(%x) <{replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>}> : (tensor<4xf32>) -> tensor<4xf32>
    %q = mhlo.add %e, %e : tensor<4xf32>
    %0 = "stablehlo.all_reduce"(%q) <{replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>}> ({
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %s = stablehlo.maximum %a, %b : tensor<f32>
      stablehlo.return %s : tensor<f32>
    }) : (tensor<4xf32>) -> tensor<4xf32>
    return %0 : tensor<4xf32>
  }
}

// -----

// Its groups may be of different sizes.
// CHECK-LABEL: module @a_sum_in_an_old_form
module @a_sum_in_an_old_form {
  sdy.mesh @mesh = <["i"=4]>
  // CHECK: %[[SUM:.*]] = "stablehlo.cross-replica-sum"
  // CHECK-NEXT: "stablehlo.all_reduce"(%[[SUM]])
  func.func public @main(%x: tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}]>}) -> (tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}]>}) attributes {sdy.manual_axes = #sdy<manual_axes{"i"}>} {
    %e = "stablehlo.collective_broadcast"(%x) <{replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>}> : (tensor<4xf32>) -> tensor<4xf32>
    %q = "stablehlo.cross-replica-sum"(%e) {replica_groups = dense<[[0, 1, 2], [3, -1, -1]]> : tensor<2x3xi64>} : (tensor<4xf32>) -> tensor<4xf32>
    %0 = "stablehlo.all_reduce"(%q) <{replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>}> ({
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %s = stablehlo.maximum %a, %b : tensor<f32>
      stablehlo.return %s : tensor<f32>
    }) : (tensor<4xf32>) -> tensor<4xf32>
    return %0 : tensor<4xf32>
  }
}

// -----

// CHECK-LABEL: module @a_sum_that_promotes_its_elements_stays
module @a_sum_that_promotes_its_elements_stays {
  sdy.mesh @mesh = <["i"=4]>
  // CHECK: %[[E:.*]] = "stablehlo.collective_broadcast"(%arg0)
  // CHECK: "stablehlo.all_reduce"(%[[E]])
  func.func public @main(%x: tensor<4xbf16> {sdy.sharding = #sdy.sharding<@mesh, [{}]>}) -> (tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}]>}) attributes {sdy.manual_axes = #sdy<manual_axes{"i"}>} {
    %e = "stablehlo.collective_broadcast"(%x) <{replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>}> : (tensor<4xbf16>) -> tensor<4xbf16>
    %0 = "stablehlo.all_reduce"(%e) <{replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "i">]>}> ({
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %s = stablehlo.add %a, %b : tensor<f32>
      stablehlo.return %s : tensor<f32>
    }) : (tensor<4xbf16>) -> tensor<4xf32>
    return %0 : tensor<4xf32>
  }
}
