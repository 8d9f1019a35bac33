"""A device mesh as the passes see it: named axes with sizes, devices numbered row-major.

A device id is the position of the device in the mesh, counted row-major over the axes in order.
Replica groups, permutations and `partition_id` use these ids.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod

# Beyond this many devices nothing is computed device by device, nor listed.
MOST_LISTED = 2**20


@dataclass(frozen=True)
class Mesh:
    """The axes of a mesh as (name, size), major axis first, and the symbol that names it."""

    symbol: str
    axes: tuple[tuple[str, int], ...]

    @cached_property
    def sizes(self) -> dict[str, int]:
        """Axis name -> size, major axis first."""
        return dict(self.axes)

    @cached_property
    def names(self) -> tuple[str, ...]:
        return tuple(self.sizes)

    @cached_property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.sizes.values())

    @cached_property
    def size(self) -> int:
        """The number of devices."""
        return prod(self.shape)

    def product(self, axes: Iterable[str]) -> int:
        """The number of devices along `axes` together."""
        sizes, devices = self.sizes, 1
        for axis in axes:
            devices *= sizes[axis]
        return devices

    def without(self, axes: Iterable[str]) -> tuple[str, ...]:
        """The names of all other axes, in mesh order."""
        taken = set(axes)
        return tuple(name for name in self.names if name not in taken)

    def stride(self, axis: str) -> int:
        """The difference of the ids of two devices that are neighbours along `axis`."""
        return prod(self.shape[self.names.index(axis) + 1 :])

    def groups(self, axes: Sequence[str]) -> list[list[int]]:
        """Device ids that differ only along `axes`: one row per group, first axis major in a row.

        Rows are in the row-major order of the remaining axes.
        """
        starts = self._offsets(self.without(axes))
        members = self._offsets(axes)
        return [[start + member for member in members] for start in starts]

    def coordinates(self, device: int) -> dict[str, int]:
        """Axis name -> position of `device` along it."""
        return {axis: self.position(device, axis) for axis in self.names}

    def position(self, device: int, axis: str) -> int:
        """The position of `device` along an axis."""
        return device // self.stride(axis) % self.sizes[axis]

    def _offsets(self, axes: Sequence[str]) -> list[int]:
        steps = [range(0, self.sizes[axis] * self.stride(axis), self.stride(axis)) for axis in axes]
        return [sum(point) for point in itertools.product(*steps)]

    def __str__(self) -> str:
        return f"@{self.symbol} [{', '.join(f'{name}={size}' for name, size in self.axes)}]"
