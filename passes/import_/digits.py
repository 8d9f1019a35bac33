"""Device ids as sums of digits, and meshes whose axes are these digits.

A sharding or a group lists device ids. Counting through it, the ids usually are those of a mesh
whose axes are taken in some order: a sum of digits, each of which counts to `size` in steps of
`stride`. [0, 4, 1, 5] is a digit of size 2 and stride 1, and in it one of size 2 and stride 4.
A mesh has an axis for every digit that is needed, so that each list is a product of its axes.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from ..ir.mesh import Mesh


@dataclass(frozen=True)
class Digit:
    """Counts to `size` in steps of `stride`."""

    size: int
    stride: int

    @property
    def end(self) -> int:
        return self.size * self.stride


def digits_of(ids: Sequence[int]) -> tuple[Digit, ...] | None:
    """The digits of a list that begins with 0, major first; None if it is not a sum of digits."""
    left = np.asarray(ids, np.int64)
    digits: list[Digit] = []
    while len(left) > 1:
        stride = int(left[1])
        if stride <= 0:
            return None
        differs = np.flatnonzero(left != np.arange(len(left)) * stride)
        size = int(differs[0]) if len(differs) else len(left)
        if size < 2 or len(left) % size:
            return None
        rows = left.reshape(-1, size)
        if np.any(rows - rows[:, :1] != np.arange(size) * stride):
            return None
        digits.append(Digit(size, stride))
        left = rows[:, 0]
    return tuple(reversed(digits)) if left[0] == 0 else None


def digits_of_groups(groups: Sequence[Sequence[int]]) -> tuple[Digit, ...] | None:
    """The digits in which the members of each group differ; None if groups are no such product."""
    rows = [np.asarray(group, np.int64) for group in groups]
    if not rows or len({len(row) for row in rows}) != 1:
        return None
    members = rows[0] - rows[0][0]
    if any(np.any(row - row[0] != members) for row in rows):
        return None
    return digits_of(members.tolist())


class Cuts:
    """The strides between the axes of a mesh of `devices`, which divide one another."""

    def __init__(self, devices: int):
        self.devices = devices
        self._cuts = {1, devices}

    def add(self, digits: Iterable[Digit]) -> int | None:
        """Makes each digit a product of axes. If none can, returns a cut that is in the way."""
        new = {cut for digit in digits for cut in (digit.stride, digit.end)} - self._cuts
        for cut in sorted(new):
            for other in sorted(self._cuts | new):
                if max(cut, other) % min(cut, other):
                    return other
        self._cuts |= new
        return None

    def mesh(self) -> Mesh:
        """The mesh with an axis between each cut and the next."""
        cuts = sorted(self._cuts, reverse=True)
        sizes = [major // minor for major, minor in itertools.pairwise(cuts)]
        return Mesh("mesh", tuple((f"axis_{k}", size) for k, size in enumerate(sizes or [1])))


def axes_of(digits: Iterable[Digit], mesh: Mesh) -> tuple[str, ...] | None:
    """The axes whose product each digit is, major first; None if they are none of whole axes."""
    axes: list[str] = []
    for digit in digits:
        inside = [
            name
            for name, size in mesh.axes
            if size > 1 and digit.stride <= mesh.stride(name) < digit.end
        ]
        if mesh.product(inside) != digit.size or mesh.stride(inside[-1]) != digit.stride:
            return None
        axes += inside
    return tuple(axes)
