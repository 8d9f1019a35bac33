// RUN: shmap-opt %s --shmap-import-custom-calls --split-input-file --verify-diagnostics

module @no_region {
  // expected-error @+1 {{the module has no @SPMDFullToShardShape or @SPMDShardToFullShape around a region, so there is no region to import; for modules with sdy.manual_computation use shmap-import-manual-computation}}
  func.func public @main(%x: tensor<8xf32>) -> tensor<8xf32> {
    return %x : tensor<8xf32>
  }
}

// -----

module @shardings_that_cannot_be_read {
  func.func public @main(%x: tensor<8xf32>) -> tensor<8xf32> {
    // expected-error @+1 {{the sharding of @SPMDFullToShardShape's operand is missing; give it one}}
    %0 = stablehlo.custom_call @SPMDFullToShardShape(%x) {mhlo.sharding = "{manual}"} : (tensor<8xf32>) -> tensor<2xf32>
    // expected-error @+1 {{the sharding of @SPMDShardToFullShape's result "{maximal device=1}" puts the array on one device}}
    %1 = stablehlo.custom_call @SPMDShardToFullShape(%0) {mhlo.sharding = "{maximal device=1}"} : (tensor<2xf32>) -> tensor<8xf32>
    // expected-error @+1 {{result "{split=4}" is not a form of XLA's shardings that is known here}}
    %2 = stablehlo.custom_call @SPMDShardToFullShape(%0) {mhlo.sharding = "{split=4}"} : (tensor<2xf32>) -> tensor<8xf32>
    // expected-error @+1 {{result "{devices=[4]0,1,1,3}" does not name each device once}}
    %3 = stablehlo.custom_call @SPMDShardToFullShape(%0) {mhlo.sharding = "{devices=[4]0,1,1,3}"} : (tensor<2xf32>) -> tensor<8xf32>
    // expected-error @+1 {{result "{devices=[4]0,1,3,2}" has an order of devices that is no product of axes of a mesh}}
    %4 = stablehlo.custom_call @SPMDShardToFullShape(%0) {mhlo.sharding = "{devices=[4]0,1,3,2}"} : (tensor<2xf32>) -> tensor<8xf32>
    return %1 : tensor<8xf32>
  }
}

// -----

module @shardings_that_no_mesh_has {
  func.func public @main(%x: tensor<24xf32>) -> tensor<24xf32> {
    %0 = stablehlo.custom_call @Sharding(%x) {mhlo.sharding = "{devices=[2,3]<=[6] last_tile_dim_replicate}"} : (tensor<24xf32>) -> tensor<24xf32>
    %1 = stablehlo.custom_call @SPMDFullToShardShape(%0) {mhlo.sharding = "{manual}"} : (tensor<24xf32>) -> tensor<12xf32>
    // expected-error @+1 {{no mesh has axes of which this sharding and those before it are products: blocks of 3 devices are split across}}
    %3 = stablehlo.custom_call @SPMDShardToFullShape(%1) {mhlo.sharding = "{devices=[3,2]<=[6] last_tile_dim_replicate}"} : (tensor<12xf32>) -> tensor<36xf32>
    return %x : tensor<24xf32>
  }
}

// -----

module @blocks_that_do_not_divide_the_array {
  func.func public @main(%x: tensor<10xf32>) -> tensor<10xf32> {
    %0 = stablehlo.custom_call @Sharding(%x) {mhlo.sharding = "{devices=[4]<=[4]}"} : (tensor<10xf32>) -> tensor<10xf32>
    // expected-error @+1 {{the array tensor<10xf32> is split as [{"axis_0"}], and its block is tensor<3xf32>, which is not the array divided by the @mesh [axis_0=4]; pad the array to a multiple}}
    %1 = stablehlo.custom_call @SPMDFullToShardShape(%0) {mhlo.sharding = "{manual}"} : (tensor<10xf32>) -> tensor<3xf32>
    return %x : tensor<10xf32>
  }
}

// -----

module @an_unknown_number_of_devices {
  // expected-error @+1 {{nothing in the module says on how many devices it runs; name the mesh, as in --shmap-import-custom-calls=mesh=i=4,j=2}}
  func.func public @main(%x: tensor<8xf32>) -> tensor<8xf32> {
    %0 = stablehlo.custom_call @Sharding(%x) {mhlo.sharding = "{replicated}"} : (tensor<8xf32>) -> tensor<8xf32>
    %1 = stablehlo.custom_call @SPMDFullToShardShape(%0) {mhlo.sharding = "{manual}"} : (tensor<8xf32>) -> tensor<8xf32>
    return %x : tensor<8xf32>
  }
}

// -----

// 12 of four bits is -4.
module @a_negative_number_of_devices attributes {mhlo.num_partitions = 12 : i4} {
  // expected-error @+1 {{nothing in the module says on how many devices it runs; name the mesh, as in --shmap-import-custom-calls=mesh=i=4,j=2}}
  func.func public @main(%x: tensor<8xf32>) -> tensor<8xf32> {
    %0 = stablehlo.custom_call @Sharding(%x) {mhlo.sharding = "{replicated}"} : (tensor<8xf32>) -> tensor<8xf32>
    %1 = stablehlo.custom_call @SPMDFullToShardShape(%0) {mhlo.sharding = "{manual}"} : (tensor<8xf32>) -> tensor<8xf32>
    return %x : tensor<8xf32>
  }
}

// -----

module @regions_over_different_devices {
  func.func public @main(%x: tensor<8xf32>) -> tensor<8xf32> {
    %0 = stablehlo.custom_call @Sharding(%x) {mhlo.sharding = "{devices=[2,2]<=[4] last_tile_dim_replicate}"} : (tensor<8xf32>) -> tensor<8xf32>
    %1 = stablehlo.custom_call @SPMDFullToShardShape(%0) {mhlo.sharding = "{manual}"} : (tensor<8xf32>) -> tensor<4xf32>
    // expected-error @+1 {{the regions are manual over different devices; a module in body form has one set of manual axes}}
    %2 = stablehlo.custom_call @SPMDFullToShardShape(%0) {mhlo.sharding = "{devices=[1,2,2]<=[4] last_tile_dims={manual, replicated}}"} : (tensor<8xf32>) -> tensor<4xf32>
    return %x : tensor<8xf32>
  }
}

// -----

module @blocks_among_full_arrays {
  func.func public @main(%x: tensor<8xf32>, %y: tensor<4xf32>) -> tensor<4xf32> {
    %0 = stablehlo.custom_call @Sharding(%x) {mhlo.sharding = "{devices=[2]<=[2]}"} : (tensor<8xf32>) -> tensor<8xf32>
    %1 = stablehlo.custom_call @SPMDFullToShardShape(%0) {mhlo.sharding = "{manual}"} : (tensor<8xf32>) -> tensor<4xf32>
    // expected-error @+1 {{stablehlo.add takes blocks of one device and full arrays; bring the full arrays into the region first}}
    %2 = stablehlo.add %1, %y : tensor<4xf32>
    // expected-error @+1 {{@main returns the block of one device; return the full array that SPMDShardToFullShape makes of it}}
    return %2 : tensor<4xf32>
  }
}

// -----

// expected-error @+1 {{the module runs as 2 replicas, and body form describes the devices of one}}
module @replicas attributes {mhlo.num_partitions = 4 : i32, mhlo.num_replicas = 2 : i32} {
  func.func public @main(%x: tensor<8xf32>) -> tensor<2xf32> {
    %0 = stablehlo.custom_call @Sharding(%x) {mhlo.sharding = "{devices=[4]<=[4]}"} : (tensor<8xf32>) -> tensor<8xf32>
    %1 = stablehlo.custom_call @SPMDFullToShardShape(%0) {mhlo.sharding = "{manual}"} : (tensor<8xf32>) -> tensor<2xf32>
    return %1 : tensor<2xf32>
  }
}
