"""The meshes of some devices, and the ways in which the axes of one can split an array."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import Any

from jax.sharding import PartitionSpec


def meshes(device_count: int) -> list[dict[str, int]]:
    """The meshes of one or two axes, longest axis first: {"x": 8}, {"x": 4, "y": 2}."""
    found = [{"x": device_count}]
    for size in range(math.isqrt(device_count), 1, -1):
        if device_count % size == 0:
            found.append({"x": device_count // size, "y": size})
    return found


def specs(shape: Sequence[int], mesh: Mapping[str, int]) -> list[PartitionSpec]:
    """The ways to split an array along whole axes, each of which divides its dimension.

    Every axis splits at most one dimension, and every dimension is split by the axes in the order
    of the mesh. The array that is not split comes first.
    """
    axes = [axis for axis, size in mesh.items() if size > 1]
    found: dict[PartitionSpec, None] = {}
    for dims in product(range(-1, len(shape)), repeat=len(axes)):
        split = [
            tuple(a for a, d in zip(axes, dims, strict=True) if d == k) for k in range(len(shape))
        ]
        if all(n % math.prod(mesh[a] for a in by) == 0 for n, by in zip(shape, split, strict=True)):
            found[_spec(split)] = None
    return sorted(found, key=lambda spec: sum(entry is not None for entry in spec))


def _spec(split: Sequence[tuple[str, ...]]) -> PartitionSpec:
    entries: list[Any] = [by[0] if len(by) == 1 else by or None for by in split]
    while entries and entries[-1] is None:
        entries.pop()
    return PartitionSpec(*entries)


def block_bytes(
    shape: Sequence[int], itemsize: int, spec: PartitionSpec, mesh: Mapping[str, int]
) -> int:
    """The size of the block of an array that each device holds."""
    axes = [a for entry in spec if entry for a in ((entry,) if isinstance(entry, str) else entry)]
    return math.prod(shape) * itemsize // math.prod(mesh[axis] for axis in axes)


def all_choices(
    each: Sequence[Sequence[PartitionSpec]],
) -> Iterator[tuple[PartitionSpec, ...]]:
    """Every combination of the ways of each array."""
    yield from product(*each)
