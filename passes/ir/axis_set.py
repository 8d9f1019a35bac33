"""Sets of mesh axes as bit masks, so that joining two is one `|`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property


@dataclass(frozen=True)
class AxisSet:
    """Encodes sets of the axes of one mesh as bit masks, and decodes them.

    Attributes:
      axes: name and size of each axis, in mesh order.
      has_ones: whether axes of size one have bits. Nothing can differ along them (R2 of
        docs/replication.md), but JAX's types name them.
    """

    axes: tuple[tuple[str, int], ...]
    has_ones: bool = False

    @staticmethod
    def of(sizes: Mapping[str, int], *, has_ones: bool = False) -> AxisSet:
        """The encoding for a mesh of these axes."""
        return AxisSet(tuple(sizes.items()), has_ones)

    @cached_property
    def sizes(self) -> dict[str, int]:
        """Axis name -> size, in mesh order."""
        return dict(self.axes)

    @cached_property
    def _bits(self) -> dict[str, int]:
        return {name: (size > 1 or self.has_ones) << k for k, (name, size) in enumerate(self.axes)}

    @cached_property
    def everything(self) -> int:
        """The set of all axes."""
        return self.mask(self.sizes)

    def mask(self, names: Iterable[str]) -> int:
        """Encodes a set. Names that are not mesh axes, such as vmapped ones, are left out."""
        mask = 0
        for name in names:
            mask |= self._bits.get(name, 0)
        return mask

    def names(self, mask: int) -> tuple[str, ...]:
        """Decodes a set, in mesh order."""
        return tuple(name for name, bit in self._bits.items() if bit & mask)
