"""The handle on a lowered xmap: a `Lowered` that has its named program, too."""

from __future__ import annotations

from dataclasses import dataclass

from shmap_compiler.stages.lowered import Lowered
from shmap_compiler.xmap.named_program import NamedProgram


@dataclass(frozen=True, repr=False)
class NamedLowered(Lowered):
    """A `Lowered` of an xmap.

    Made by `XMapped.lower`.

    Attributes:
      named: The program with its named axes.

    Examples:
      >>> f = xmap(lambda x: x * 2, in_axes=["rows", ...], out_axes=["rows", ...])
      >>> "{rows:16}" in f.lower(x).as_text("named")
      True
    """

    named: NamedProgram

    def as_text(self, stage: str = "stablehlo") -> str:
        return str(self.named) if stage == "named" else super().as_text(stage)
