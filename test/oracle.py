"""What `shard_map` means, in NumPy: split the arguments, run every device, join the results.

A mesh is a dictionary from axis name to size. A value inside the body is a list of blocks, one for
each device in the row-major order of the mesh; the body works on all devices in lock step.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np

Blocks = list[np.ndarray]
Mesh = dict[str, int]
Groups = Sequence[Sequence[int]]


def shmap(body: Callable[..., Sequence[Blocks]], mesh: Mesh, in_specs, out_specs):
    """The function on full arrays that `body`, a function on lists of blocks, stands for."""

    def run(*args: np.ndarray) -> list[np.ndarray]:
        blocks = [split(arg, spec, mesh) for arg, spec in zip(args, in_specs, strict=True)]
        return [join(out, spec, mesh) for out, spec in zip(body(*blocks), out_specs, strict=True)]

    return run


def split(array: np.ndarray, spec, mesh: Mesh) -> Blocks:
    counts = tiles(spec, array.ndim, mesh)
    shape = [n // count for n, count in zip(array.shape, counts, strict=True)]
    return [array[window(device, shape, spec, mesh)] for device in devices(mesh)]


def join(blocks: Blocks, spec, mesh: Mesh) -> np.ndarray:
    """The array made of the blocks; devices that hold the same part of it must agree on it."""
    block_shape = blocks[0].shape
    counts = tiles(spec, len(block_shape), mesh)
    shape = [n * count for n, count in zip(block_shape, counts, strict=True)]
    array = np.zeros(shape, blocks[0].dtype)
    windows = [window(device, block_shape, spec, mesh) for device in devices(mesh)]
    for place, block in zip(windows, blocks, strict=True):
        array[place] = block
    for place, block in zip(windows, blocks, strict=True):
        np.testing.assert_array_equal(array[place], block, f"{spec} leaves out a varying axis")
    return array


def devices(mesh: Mesh) -> list[dict[str, int]]:
    """The coordinates of each device."""
    return [dict(zip(mesh, place, strict=True)) for place in np.ndindex(*mesh.values())]


def position(device: dict[str, int], axes: Sequence[str], mesh: Mesh) -> int:
    """Where the device stands along `axes` taken as a single axis, the first one major."""
    index = 0
    for axis in axes:
        index = index * mesh[axis] + device[axis]
    return index


def axes_of_dims(spec, rank: int) -> list[tuple[str, ...]]:
    entries = [(e,) if isinstance(e, str) else tuple(e or ()) for e in spec]
    return entries + [()] * (rank - len(entries))


def tiles(spec, rank: int, mesh: Mesh) -> list[int]:
    return [prod(mesh[axis] for axis in axes) for axes in axes_of_dims(spec, rank)]


def window(device: dict[str, int], block_shape: Sequence[int], spec, mesh: Mesh):
    """The part of the full array that the device holds."""
    axes = axes_of_dims(spec, len(block_shape))
    starts = [n * position(device, a, mesh) for n, a in zip(block_shape, axes, strict=True)]
    return tuple(slice(start, start + n) for start, n in zip(starts, block_shape, strict=True))


def teams(mesh: Mesh, axes: Sequence[str], axis_index_groups: Groups | None = None) -> Groups:
    """The devices, by their place in the list of blocks, that a collective over `axes` unites."""
    found: dict[tuple, dict[int, int]] = defaultdict(dict)
    for number, device in enumerate(devices(mesh)):
        elsewhere = tuple(place for axis, place in device.items() if axis not in axes)
        found[elsewhere][position(device, axes, mesh)] = number
    groups = axis_index_groups or [range(prod(mesh[axis] for axis in axes))]
    return [[team[index] for index in group] for team in found.values() for group in groups]


def collective(name: str, mesh: Mesh, *operand: Blocks, axis_name, **params: Any) -> Blocks:
    """`COLLECTIVES[name]` within each team of devices; the arguments are those of `jax.lax`."""
    axes = (axis_name,) if isinstance(axis_name, str) else axis_name
    results: dict[int, np.ndarray] = {}
    for team in teams(mesh, axes, params.pop("axis_index_groups", None)):
        blocks = [operand[0][device] for device in team] if operand else team
        results |= zip(team, COLLECTIVES[name](blocks, **params), strict=True)
    return [np.asarray(results[device]) for device in range(len(results))]


def total(xs: Blocks) -> np.ndarray:
    """The sum, which counts where the blocks hold booleans."""
    return np.sum(xs, axis=0, dtype=np.int32 if xs[0].dtype == bool else xs[0].dtype)


def mean(xs: Blocks) -> np.ndarray:
    result = np.float32 if xs[0].dtype.kind in "bi" else xs[0].dtype
    wide = np.promote_types(result, np.float32)
    return (total(xs).astype(wide) / wide.type(len(xs))).astype(result)


def ppermute(xs: Blocks, perm: Sequence[tuple[int, int]]) -> Blocks:
    source = {target: source for source, target in perm}
    return [xs[source[i]] if i in source else np.zeros_like(xs[i]) for i in range(len(xs))]


def psum_scatter(xs: Blocks, scatter_dimension: int = 0, tiled: bool = False) -> Blocks:
    parts = np.split(total(xs), len(xs), scatter_dimension)
    return parts if tiled else [np.squeeze(part, scatter_dimension) for part in parts]


def all_to_all(xs: Blocks, split_axis: int, concat_axis: int, tiled: bool = False) -> Blocks:
    parts = [np.split(x, len(xs), split_axis) for x in xs]
    if tiled:
        return [np.concatenate(column, concat_axis) for column in zip(*parts, strict=True)]
    return [
        np.stack([np.squeeze(part, split_axis) for part in column], concat_axis)
        for column in zip(*parts, strict=True)
    ]


# From the blocks of one team, in its order, to the blocks that its members receive.
COLLECTIVES: dict[str, Callable[..., Sequence[Any]]] = {
    "psum": lambda xs: [total(xs)] * len(xs),
    "pmean": lambda xs: [mean(xs)] * len(xs),
    "pmax": lambda xs: [np.max(xs, axis=0)] * len(xs),
    "pmin": lambda xs: [np.min(xs, axis=0)] * len(xs),
    "all_gather": lambda xs, axis=0, tiled=False: (
        [np.concatenate(xs, axis) if tiled else np.stack(xs, axis)] * len(xs)
    ),
    "psum_scatter": psum_scatter,
    "all_to_all": all_to_all,
    "ppermute": ppermute,
    "pshuffle": lambda xs, perm: [xs[source] for source in perm],
    "pbroadcast": lambda xs, source: [xs[source]] * len(xs),
    "axis_index": lambda team: [np.int32(index) for index in range(len(team))],
    "axis_size": lambda team: [np.int32(len(team))] * len(team),
}
