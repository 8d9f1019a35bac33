// RUN: shmap-opt %s --shmap-legalize-collectives=groups=ids --split-input-file --verify-diagnostics

module @a_mesh_of_more_devices_than_can_be_listed {
  sdy.mesh @mesh = <["i"=2097152]>
  // expected-error @+1 {{groups=ids lists every device, and @mesh [i=2097152] has 2097152, more than 1048576; use groups=axes}}
  func.func public @main() attributes {sdy.manual_axes = #sdy<manual_axes{"i"}>} {
    return
  }
}
