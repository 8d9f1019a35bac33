"""A compiled program whose devices are attached, as data."""

from __future__ import annotations

from dataclasses import dataclass

from jax.sharding import Mesh
from shmap_passes.cost.machine import Machine

from shmap_compiler.base.untyped import Analysis, Wrapped
from shmap_compiler.records.signature import Signature
from shmap_compiler.targets import Target
from shmap_compiler.targets.attached import machine_of_devices, slice_of


@dataclass(frozen=True, repr=False)
class LoadedProgram:
    """A compiled program on its devices.

    Attributes:
      signature: of the program; its mesh has the devices it runs on.
      jax_compiled: the same program as a `jax.stages.Compiled` of the flat inputs.
      target: what it was compiled for; None for the devices of the mesh in the user's program.
      notes: sentences about how it was compiled.
    """

    signature: Signature
    jax_compiled: Wrapped
    target: Target | None = None
    notes: tuple[str, ...] = ()

    def as_text(self) -> str:
        """Returns the optimized HLO of one device."""
        return self.jax_compiled.as_text()

    def cost_analysis(self) -> Analysis:
        """Returns XLA's estimates (flops, bytes accessed, ...) for one device, by name."""
        return self.jax_compiled.cost_analysis()

    def memory_analysis(self) -> Analysis:
        """Returns XLA's memory figures for one device, in bytes."""
        return self.jax_compiled.memory_analysis()

    @property
    def machine(self) -> Machine | None:
        """The chips, their network, and the places of the mesh in it; None if not known."""
        mesh = self.signature.mesh
        if not isinstance(mesh, Mesh):  # a program of JAX on one device, or on meshes of its own
            return None
        devices = list(mesh.devices.flat)
        target = self.target
        if target is None or target.chip is None or target.network is None:
            return machine_of_devices(devices, slice_of(devices), False)
        return Machine(target.chip, target.network, tuple(map(target.place, devices)))
