"""Parts of mesh axes, as `"i":(2)4` names them: of axis i, the part of size 4 inside of one of 2.

A mesh whose axes are split numbers its devices alike, so parts become axes of a finer mesh.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from jaxlib.mlir.dialects import sdy, stablehlo
from shmap_passes.ir.mesh import Mesh

from shmap_compiler.base.untyped import OpView


class ImpossiblePart(Exception):
    """Parts of one axis that overlap, or that do not divide it."""


@dataclass(frozen=True)
class AxisPart:
    """A mesh axis, or a part of one.

    Attributes:
      name: of the axis.
      before: the number of devices along what is outside of the part.
      size: the number along the part; None for a whole axis.
    """

    name: str
    before: int = 1
    size: int | None = None


def part_of(reference: OpView) -> AxisPart:
    """What an `AxisRefAttr` names, of Shardy's or of StableHLO's."""
    info = reference.sub_axis_info
    if info is None:
        return AxisPart(reference.name)
    dialect: Any = stablehlo if stablehlo.SubAxisInfoAttr.isinstance(info) else sdy
    part = dialect.SubAxisInfoAttr(info)
    return AxisPart(reference.name, part.pre_size, part.size)


class FinerMesh:
    """A mesh with axes split such that each of some parts is a number of whole axes.

    Raises:
      ImpossiblePart: this cannot be done.
    """

    def __init__(self, mesh: Mesh, parts: Sequence[AxisPart]):
        self._parts: dict[str, list[tuple[str, int, int]]] = {}
        for name, size in mesh.axes:
            cuts = {1, size}
            for part in parts:
                if part.name == name and part.size is not None:
                    cuts |= {part.before, part.before * part.size}
            self._parts[name] = _split(name, sorted(cuts))
        split = (each for name in mesh.names for each in self._parts[name])
        self.mesh = Mesh(mesh.symbol, tuple((name, size) for name, _, size in split))

    def axes(self, part: AxisPart) -> list[str]:
        """The axes of the finer mesh that a part is."""
        if part.size is None:
            return [name for name, _, _ in self._parts[part.name]]
        end = part.before * part.size
        return [name for name, at, _ in self._parts[part.name] if part.before <= at < end]


def _split(name: str, cuts: Sequence[int]) -> list[tuple[str, int, int]]:
    """(name, devices outside of it, size) of each part between neighbouring cuts."""
    if len(cuts) <= 2:
        return [(name, 1, cuts[-1])]
    parts = []
    for at, end in pairwise(cuts):
        if end % at:
            raise ImpossiblePart(f"parts of {name!r} up to {at} and {end} devices")
        parts.append((f"{name}:({at}){end // at}", at, end // at))
    return parts
