"""Sets of mesh axes as bit masks: joining two is one `|`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from .mesh import Mesh


@dataclass(frozen=True)
class AxisSet:
    """One bit per mesh axis; none for an axis of size one, along which nothing can differ."""

    mesh: Mesh

    @cached_property
    def _bits(self) -> dict[str, int]:
        return {name: (size > 1) << k for k, (name, size) in enumerate(self.mesh.axes)}

    @cached_property
    def everything(self) -> int:
        return self.mask(self.mesh.names)

    def mask(self, axes: Iterable[str]) -> int:
        mask = 0
        for axis in axes:
            mask |= self._bits[axis]
        return mask

    def names(self, mask: int) -> tuple[str, ...]:
        """In mesh order."""
        return tuple(axis for axis, bit in self._bits.items() if bit & mask)
