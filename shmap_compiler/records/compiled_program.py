"""The data of a compiled program, whether or not its devices are attached."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Protocol

from shmap_passes.cost.machine import Machine

from shmap_compiler.base.untyped import Analysis
from shmap_compiler.records.signature import Signature
from shmap_compiler.targets import Target


@dataclass(frozen=True)
class MemoryAnalysis:
    """XLA's memory figures for one device, in bytes; the names are those of XLA.

    Attributes:
      temp_size_in_bytes: What is allocated beside arguments and results. The figure of libtpu
        counts what lies idle between arrays twice; it is corrected where JAX gives the sum of all
        allocations, which JAX 0.10.2 does not.
    """

    argument_size_in_bytes: int
    output_size_in_bytes: int
    alias_size_in_bytes: int
    temp_size_in_bytes: int
    generated_code_size_in_bytes: int

    @staticmethod
    def of(figures: Analysis) -> MemoryAnalysis:
        """Copies these attributes of an object, which may have others."""
        names = MemoryAnalysis.__dataclass_fields__
        found = MemoryAnalysis(**{name: getattr(figures, name) for name in names})
        allocated: int | None = getattr(figures, "total_allocation_bytes", None)
        if not allocated:
            return found
        held = found.argument_size_in_bytes + found.output_size_in_bytes - found.alias_size_in_bytes
        temporaries = min(found.temp_size_in_bytes, max(0, allocated - held))
        return replace(found, temp_size_in_bytes=temporaries)

    @property
    def total(self) -> int:
        """Arguments, results that do not alias arguments, temporaries, and the program itself."""
        figures = asdict(self)
        return sum(figures.values()) - 2 * self.alias_size_in_bytes


class CompiledProgram(Protocol):
    """The figures and the text of a compiled program."""

    @property
    def signature(self) -> Signature:
        """The arguments and results of the program, with their types and specs."""
        ...

    @property
    def target(self) -> Target | None:
        """What the program was compiled for; None for the devices of its mesh."""
        ...

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences about how the program was compiled."""
        ...

    def as_text(self) -> str:
        """Returns the optimized HLO of one device, scheduled if the backend schedules it."""
        ...

    def cost_analysis(self) -> Mapping[str, float]:
        """Returns XLA's estimates (flops, bytes accessed, ...) for one device, by name."""
        ...

    def memory_analysis(self) -> Analysis:
        """Returns XLA's memory figures for one device, in bytes."""
        ...

    @property
    def machine(self) -> Machine | None:
        """The chips, their network, and the places of the mesh in it; None if not known."""
        ...
