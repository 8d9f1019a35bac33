"""Finds how blocks of devices are placed in a full array, by their contents."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
from shmap_passes.ir.mesh import Mesh

from shmap_compiler.simulate.agreement import differences, largest_number
from shmap_compiler.simulate.cuts import Window
from shmap_compiler.simulate.trace_values import distance


@dataclass(frozen=True)
class Layout:
    """How blocks are placed in a full array.

    Attributes:
      dims: the mesh axes that split each dimension.
      summed: the axes along which the blocks are summands.
      share: n if the blocks are 1/n of the array. Blocks whose sum is the array are fractions, not
        summands, along an axis along which they are equal.
      moved: whether each block is some part of the array, or a part that is not filled yet: a block
        on its way around a ring, or a buffer for such blocks. Then the others are empty.
    """

    dims: tuple[tuple[str, ...], ...] = ()
    summed: tuple[str, ...] = ()
    share: int = 1
    moved: bool = False


def layout_of(
    blocks: Sequence[np.ndarray], full: np.ndarray, mesh: Mesh, tolerance: float
) -> Layout | None:
    """The placement in which the blocks of all devices are the array; None if there is none.

    Arrays of different ranks are compared without their dimensions of size one.

    Args:
      blocks: one for each device.
      tolerance: how far numbers may be apart, in units of the array's largest magnitude.
    """
    parts = parts_of(blocks[0].shape, full.shape)
    if parts is None:
        return None
    if blocks[0].ndim != full.ndim:
        full, blocks = np.squeeze(full), [np.squeeze(block) for block in blocks]
    shape = blocks[0].shape
    axes = [axis for axis in mesh.names if mesh.sizes[axis] > 1]
    fraction = None
    for count in range(len(axes) + 1):
        for summed in itertools.combinations(axes, count):
            rest = [axis for axis in axes if axis not in summed]
            sums = _sums(blocks, mesh, rest)
            # The first device holds the first block, however the others are placed.
            first = full[tuple(slice(b) for b in shape)]
            if distance(sums[0], widened(first)) > tolerance:
                continue
            for dims in _placements(parts, rest, mesh):
                if _fits(sums, full, mesh, dims, tolerance):
                    equal = [a for a in summed if _are_equal_along(a, blocks, mesh, tolerance)]
                    if not equal:
                        return Layout(dims, summed)
                    left = tuple(axis for axis in summed if axis not in equal)
                    fraction = fraction or Layout(dims, left, mesh.product(equal))
    return Layout(moved=True) if _are_tiles(blocks, full, parts, tolerance) else fraction


def parts_of(block: Sequence[int], full: Sequence[int]) -> list[int] | None:
    """Of how many blocks an array consists along each dimension; None if it does not, or is empty.

    Of different ranks, dimensions of size one are left out.
    """
    if len(block) != len(full):
        block, full = ([n for n in shape if n != 1] for shape in (block, full))
    if not prod(block) or not prod(full) or len(block) != len(full):
        return None
    if any(n % b for n, b in zip(full, block, strict=True)):
        return None
    return [n // b for n, b in zip(full, block, strict=True)]


def widened(array: np.ndarray) -> np.ndarray:
    """The numbers in double precision."""
    return array.astype(np.complex128 if array.dtype.kind == "c" else np.float64)


def _sums(blocks: Sequence[np.ndarray], mesh: Mesh, rest: Sequence[str]) -> dict[int, np.ndarray]:
    """The sums of blocks along all axes but `rest`, by the first device of each."""
    sums: dict[int, np.ndarray] = {}
    for group in mesh.groups([axis for axis in mesh.names if axis not in rest]):
        with np.errstate(invalid="ignore", over="ignore"):  # infinities of both signs
            sums[min(group)] = np.sum([widened(blocks[device]) for device in group], 0)
    return sums


def _are_equal_along(axis: str, blocks: Sequence[np.ndarray], mesh: Mesh, tolerance: float) -> bool:
    return all(
        distance(widened(blocks[device]), widened(blocks[group[0]])) <= tolerance
        for group in mesh.groups([axis])
        for device in group[1:]
    )


def _placements(
    parts: Sequence[int], axes: Sequence[str], mesh: Mesh
) -> Iterator[tuple[tuple[str, ...], ...]]:
    """Every way to split dimensions into so many parts along some of the axes, in any order."""
    if not parts:
        yield ()
        return
    for count in range(len(axes) + 1):
        for chosen in itertools.permutations(axes, count):
            if mesh.product(chosen) == parts[0]:
                left = [axis for axis in axes if axis not in chosen]
                for others in _placements(parts[1:], left, mesh):
                    yield (chosen, *others)


def _fits(
    sums: dict[int, np.ndarray],
    full: np.ndarray,
    mesh: Mesh,
    dims: Sequence[Sequence[str]],
    tolerance: float,
) -> bool:
    for device, block in sums.items():
        window = tuple(slice(*each) for each in _window(device, block, mesh, dims))
        if distance(block, widened(full[window])) > tolerance:
            return False
    return True


def _are_tiles(
    blocks: Sequence[np.ndarray], full: np.ndarray, parts: Sequence[int], tolerance: float
) -> bool:
    """Whether each block is one of the parts of an array, or zero where it is not filled yet."""
    rank, shape = full.ndim, blocks[0].shape
    split = full.reshape([n for pair in zip(parts, shape, strict=True) for n in pair])
    order = [*range(0, 2 * rank, 2), *range(1, 2 * rank, 2)]
    tiles = widened(split.transpose(order).reshape(prod(parts), -1))
    limit = tolerance * largest_number(tiles)
    flat = [widened(block).reshape(1, -1) for block in blocks]
    gaps: list[np.ndarray] = []  # of each block, where it is not the tiles of which it may be parts
    for block in flat:
        differs = differences(block, tiles) > limit
        gaps.append(differs[np.all(~differs | (block == 0), 1)])
        if not gaps[-1].size:
            return False
    if all(np.any(np.all(~gap, 1)) for gap in gaps):
        return True
    for clip in (np.maximum, np.minimum):  # zeros that a function of the elements makes
        clipped = clip(tiles, 0)
        if all(np.any(np.all(differences(block, clipped) <= limit, 1)) for block in flat):
            return False
    most = max(len(blocks), blocks[0].size // 4)
    return all(any(_cells(each.reshape(shape)) <= most for each in gap) for gap in gaps)


def _cells(region: np.ndarray) -> int:
    """How many cells the coarsest grid has that is fine enough for the borders of a region.

    They are few for slices that are not filled yet, many for elements that are zero here and there.
    """
    dims = range(region.ndim)
    changes = (np.any(np.diff(region, axis=d), tuple(e for e in dims if e != d)) for d in dims)
    return prod(1 + int(np.sum(each)) for each in changes)


def _window(device: int, block: np.ndarray, mesh: Mesh, dims: Sequence[Sequence[str]]) -> Window:
    at, window = mesh.coordinates(device), []
    for size, axes in zip(block.shape, dims, strict=True):
        index = 0
        for axis in axes:
            index = index * mesh.sizes[axis] + at[axis]
        window.append((index * size, (index + 1) * size))
    return tuple(window)
