"""Finds quickly the arrays of which blocks of devices may be a part, a sum or the whole.

A program has thousands of values, and a full comparison with each value of another program takes
too long. A few numbers at fixed positions, compared with those of many arrays at once, rule out
most.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
from shmap_passes.ir.mesh import Mesh

from shmap_compiler.simulate.agreement import differences, largest_number
from shmap_compiler.simulate.layouts import parts_of, widened

_POSITIONS = 16
"""How many numbers of a block are compared first."""

_MOST = 2**22
"""How many numbers of one shape are kept; if there are more, nothing is ruled out by them."""


@dataclass(frozen=True)
class _Probes:
    """The numbers at fixed positions of arrays of one shape, as parts of the shape of a block.

    Attributes:
      numbers: of each array, each of its parts, and each position in the part.
      limits: the largest magnitude of each array.
      at: the positions in a block.
    """

    numbers: np.ndarray
    limits: np.ndarray
    at: np.ndarray

    def differ(self, values: np.ndarray, tolerance: float) -> np.ndarray:
        return differences(values, self.numbers) > tolerance * self.limits[:, None, None]


class Candidates:
    """Arrays in which blocks are looked for."""

    def __init__(self, arrays: Sequence[np.ndarray], mesh: Mesh):
        self._arrays = arrays
        self._groups: dict[tuple[tuple[int, ...], bool], list[int]] = defaultdict(list)
        for number, array in enumerate(arrays):
            self._groups[array.shape, is_whole(array)].append(number)
        self._probes: dict[tuple[tuple[int, ...], bool, tuple[int, ...]], _Probes | None] = {}
        axes = [axis for axis in mesh.names if mesh.sizes[axis] > 1]
        self._summed = [
            next(group for group in mesh.groups(summed) if 0 in group)
            for count in range(len(axes) + 1)
            for summed in itertools.combinations(axes, count)
        ]

    def of(self, blocks: Sequence[np.ndarray], tolerance: float, tiles: bool) -> Iterator[int]:
        """The numbers of the arrays that `layout_of` may find a layout for, in order.

        Args:
          tiles: whether each block may be any part of an array.
        """
        found: list[int] = []
        for (shape, whole), members in self._groups.items():
            if whole != is_whole(blocks[0]) or parts_of(blocks[0].shape, shape) is None:
                continue
            probes = self._probes_of(shape, whole, blocks[0].shape)
            if probes is None:
                found += members
                continue
            values = widened(np.stack([block.reshape(-1)[probes.at] for block in blocks]))
            possible = self._may_be_summed(values, probes, tolerance)
            if tiles:
                possible |= _may_be_tiles(values, probes, tolerance)
            found += [members[k] for k in np.flatnonzero(possible)]
        yield from sorted(found)

    def _may_be_summed(self, values: np.ndarray, probes: _Probes, tolerance: float) -> np.ndarray:
        """Of which arrays the first part may be a sum of blocks."""
        first = _Probes(probes.numbers[:, :1], probes.limits, probes.at)
        possible = np.zeros(len(probes.limits), bool)
        for group in self._summed:
            with np.errstate(invalid="ignore", over="ignore"):
                total = np.sum([values[device] for device in group], 0)
            possible |= ~np.any(first.differ(total, tolerance), (1, 2))
        return possible

    def _probes_of(
        self, shape: tuple[int, ...], whole: bool, block: tuple[int, ...]
    ) -> _Probes | None:
        key = shape, whole, block
        if key not in self._probes:
            self._probes[key] = self._make([self._arrays[k] for k in self._groups[key[:2]]], block)
        return self._probes[key]

    def _make(self, arrays: Sequence[np.ndarray], block: tuple[int, ...]) -> _Probes | None:
        parts = parts_of(block, arrays[0].shape)
        assert parts is not None
        at = np.unique(np.linspace(0, prod(block) - 1, _POSITIONS).astype(int))
        if len(arrays) * prod(parts) * len(at) > _MOST:
            return None
        sizes = block if len(block) == len(parts) else tuple(n for n in block if n != 1)
        split = [n for pair in zip(parts, sizes, strict=True) for n in pair]
        order = [*range(0, len(split), 2), *range(1, len(split), 2)]
        places = (*[slice(None)] * len(parts), *np.unravel_index(at, sizes))
        picked = [array.reshape(split).transpose(order)[places] for array in arrays]
        numbers = np.stack([widened(each.reshape(prod(parts), len(at))) for each in picked])
        limits = np.array([largest_number(widened(array)) for array in arrays])
        return _Probes(numbers, limits, at)


def _may_be_tiles(values: np.ndarray, probes: _Probes, tolerance: float) -> np.ndarray:
    """Of which arrays each block may be some part, or zero where it is not filled yet."""
    possible = np.ones(len(probes.limits), bool)
    for block in values:
        some = np.flatnonzero(possible)
        if not some.size:
            break
        left = _Probes(probes.numbers[some], probes.limits[some], probes.at)
        differ = left.differ(block, tolerance) & (block != 0)
        possible[some] = np.any(~np.any(differ, 2), 1)
    return possible


def is_whole(array: np.ndarray) -> bool:
    """Whether the elements are integers or booleans."""
    return array.dtype.kind in "iub"
