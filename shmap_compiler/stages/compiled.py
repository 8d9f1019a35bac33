"""The interface of compiled programs, whether or not their devices are attached."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from shmap_passes.cost.machine import Machine

from shmap_compiler.artifacts import write_compiled, write_file
from shmap_compiler.artifacts.container import Container
from shmap_compiler.base.errors import Problem, TargetError
from shmap_compiler.base.untyped import PyTree
from shmap_compiler.explain import Explanation, explain
from shmap_compiler.records.compiled_program import CompiledProgram, MemoryAnalysis
from shmap_compiler.records.signature import Signature
from shmap_compiler.targets import Target


class Compiled(CompiledProgram, Protocol):
    """The interface of compiled programs.

    It is implemented by `Executable` and, for devices that are not attached, `CompiledForTarget`.

    Examples:
      >>> f = shard_map(lambda b: lax.psum(b, "i"), mesh=mesh, in_specs=P("i"), out_specs=P())
      >>> compiled = f.lower(x).compile()
      >>> [(c.kind, c.axes) for c in compiled.explain().collectives]
      [('all-reduce', ('i',))]
    """

    def explain(self) -> Explanation:
        """Returns what the program costs: collectives, time, memory, and layouts of arrays."""
        ...

    def save(self, path: str | Path) -> None:
        """Saves the program; `load` reads it where such devices are attached."""
        ...


@dataclass(frozen=True, repr=False)
class CompiledForTarget:
    """A program compiled for devices that are not attached to this process.

    It can be inspected and saved, but not called. Made by `Lowered.compile`.

    Attributes:
      signature: The arguments and results of the program; its mesh has no devices.
      target: What the program was compiled for.
      container: The saved program, as written by the process that compiled it.
      notes: Sentences about how it was compiled; `explain` repeats them.

    Examples:
      The compiler for TPUs is installed by the extra `tpu`.

      >>> f = shard_map(jnp.sin, mesh=mesh, in_specs=P("i"), out_specs=P("i"))
      >>> compiled = f.lower(x).compile("tpu:v5e:2x4")  # doctest: +SKIP
      >>> compiled.memory_analysis().temp_size_in_bytes  # doctest: +SKIP
      0
    """

    signature: Signature
    target: Target
    container: Container
    notes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        """One line; `as_text` gives the program."""
        return f"<CompiledForTarget of {self.signature.summary}, target {self.target}>"

    @property
    def device_ids(self) -> tuple[int, ...]:
        """The ids of the target's devices, in the order of the mesh."""
        return tuple(self.container.header["device_ids"])

    def as_text(self) -> str:
        """Returns the optimized, scheduled HLO of one device."""
        return self.container.parts["hlo.txt"].decode()

    def cost_analysis(self) -> Mapping[str, float]:
        """Returns the compiler's estimates (flops, bytes accessed, ...) for one device, by name.

        Empty if the compiler provides none.
        """
        return self.container.header["costs"]

    def memory_analysis(self) -> MemoryAnalysis:
        """Returns the compiler's memory figures for one device, in bytes."""
        return MemoryAnalysis(**self.container.header["memory"])

    @property
    def machine(self) -> Machine | None:
        """The chips, their network, and the places of the mesh in it; None if not known."""
        chip, network = self.target.chip, self.target.network
        places = self.container.header["places"]
        if chip is None or network is None or places is None:
            return None
        return Machine(chip, network, tuple(tuple(place) for place in places))

    def explain(self) -> Explanation:
        """Returns what the program costs: collectives, time, memory, and layouts of arrays."""
        return explain(self)

    def save(self, path: str | Path) -> None:
        """Saves the program; `load` reads it where such devices are attached.

        Args:
          path: The file to write.

        Raises:
          ArtifactError: The program contains a value that cannot be saved.
        """
        write_file(path, self.signature.who, write_compiled(self.signature, self.container))

    def __call__(self, *args: PyTree) -> PyTree:
        problem = Problem(
            "a call",
            f"a program compiled for {self.target.where}, whose devices are not attached",
            f"the {self.target.device_count} devices of {self.target}",
            "save() it, and load() it where they are; or compile for target='local'",
        )
        raise TargetError(self.signature.who, [problem])
