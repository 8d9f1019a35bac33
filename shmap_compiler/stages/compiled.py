"""What every compiled program can tell, whether its devices are here or not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from shmap_compiler.base.errors import Problem, TargetError
from shmap_compiler.records.signature import Signature
from shmap_compiler.targets import Target
from shmap_compiler.targets.networks import Coordinates

if TYPE_CHECKING:
    from shmap_compiler.artifacts.container import Container
    from shmap_compiler.explain import Explanation


@dataclass(frozen=True)
class MemoryAnalysis:
    """XLA's memory figures for one device, in bytes; the names are those of XLA."""

    argument_size_in_bytes: int
    output_size_in_bytes: int
    alias_size_in_bytes: int
    temp_size_in_bytes: int
    generated_code_size_in_bytes: int

    @staticmethod
    def of(figures: Any) -> MemoryAnalysis:
        """From an object that has these attributes, and perhaps others."""
        names = MemoryAnalysis.__dataclass_fields__
        return MemoryAnalysis(**{name: getattr(figures, name) for name in names})

    @property
    def total(self) -> int:
        """Arguments, results that do not lie in arguments, temporaries, and the program itself."""
        figures = asdict(self)
        return sum(figures.values()) - 2 * self.alias_size_in_bytes


class Compiled(Protocol):
    """A compiled program: an `Executable`, or a `CompiledForTarget` whose devices are elsewhere."""

    @property
    def signature(self) -> Signature: ...

    @property
    def target(self) -> Target | None:
        """What it was compiled for; None for the devices of the mesh in the user's program."""
        ...

    def as_text(self) -> str:
        """The optimized HLO of one device; it is scheduled where the backend schedules."""
        ...

    def cost_analysis(self) -> Mapping[str, float]:
        """XLA's own estimates (flops, bytes accessed, ...) for one device, by name."""
        ...

    def memory_analysis(self) -> Any:
        """XLA's memory figures for one device: an object with those of MemoryAnalysis."""
        ...

    @property
    def places(self) -> Sequence[Coordinates] | None:
        """Where each device of the mesh is in the network of the target; None if not known."""
        ...

    def explain(self) -> Explanation:
        """What the program costs: its collectives, time, memory, and how its arrays lie."""
        ...

    def save(self, path: str | Path) -> None:
        """Saves it, to be loaded by `load` where such devices are."""
        ...


@dataclass(frozen=True, repr=False)
class CompiledForTarget:
    """A program compiled for devices that are not here. It can be looked at and saved, not called.

    Attributes:
      signature: of the program; its mesh has no devices.
      target: what it was compiled for.
      container: what the process that compiled it wrote.
    """

    signature: Signature
    target: Target
    container: Container

    def __repr__(self) -> str:
        """One line; `as_text` gives the program."""
        return f"<CompiledForTarget of {self.signature.summary}, target {self.target}>"

    @property
    def device_ids(self) -> tuple[int, ...]:
        """The ids of the target's devices, in the order of the mesh."""
        return tuple(self.container.header["device_ids"])

    def as_text(self) -> str:
        """The optimized, scheduled HLO of one device."""
        return self.container.parts["hlo.txt"].decode()

    def cost_analysis(self) -> Mapping[str, float]:
        """The compiler's own estimates (flops, bytes accessed, ...) for one device, by name.

        Empty for a compiler that makes none.
        """
        return self.container.header["costs"]

    def memory_analysis(self) -> MemoryAnalysis:
        """The compiler's memory figures for one device."""
        return MemoryAnalysis(**self.container.header["memory"])

    @property
    def places(self) -> Sequence[Coordinates] | None:
        """Where each device of the mesh is in the network of the target; None if not known."""
        places = self.container.header["places"]
        return None if places is None else [tuple(place) for place in places]

    def explain(self) -> Explanation:
        """What the program costs there: its collectives, time, memory, and how its arrays lie."""
        from shmap_compiler.explain import explain

        return explain(self)

    def save(self, path: str | Path) -> None:
        """Saves the compiled program, to be loaded by `load` where such devices are.

        Raises:
          ArtifactError: the program holds a value that cannot be saved.
        """
        from shmap_compiler.artifacts import write_compiled, write_file

        write_file(path, self.signature.who, write_compiled(self))

    def __call__(self, *args: Any) -> Any:
        problem = Problem(
            "a call",
            f"a program compiled for {self.target.where}, whose devices are not here",
            f"the {self.target.device_count} devices of {self.target}",
            "save() it, and load() it there; or compile for target='local'",
        )
        raise TargetError(self.signature.who, [problem])
