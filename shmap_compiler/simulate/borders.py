"""Reads how full arrays are cut into blocks: from shardings of Shardy's and texts of GSPMD's."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from math import prod

import numpy as np
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import sdy
from shmap_passes.ir.mesh import Mesh

from shmap_compiler.simulate.cuts import Cut, Window
from shmap_compiler.simulate.part_axes import AxisPart, FinerMesh, ImpossiblePart, part_of

_V2 = re.compile(
    r"\{devices=\[([\d,]+)\](?:<=\[([\d,]+)\](?:T\(([\d,]+)\))?|([\d,]+))"
    r"(?: (last_tile_dim_replicate)| last_tile_dims=\{([^}]*)\})?\}"
)


class UnreadableSharding(Exception):
    """A sharding in a form that is not known."""


def by_axes(
    mesh: Mesh,
    dims: Sequence[Sequence[str]],
    shape: Sequence[int],
    region: Sequence[str],
    unreduced: Sequence[str] = (),
) -> Cut:
    """A cut along mesh axes.

    Args:
      shape: of the full array.
      region: the axes that become manual at this border.
    """
    windows: list[Window] = []
    for device in range(mesh.size):
        at = mesh.coordinates(device)
        window = []
        for size, axes in zip(shape, dims, strict=True):
            index, parts = 0, 1
            for axis in axes:
                index, parts = index * mesh.sizes[axis] + at[axis], parts * mesh.sizes[axis]
            block = size // parts
            window.append((index * block, (index + 1) * block))
        windows.append(tuple(window))
    groups = tuple(map(tuple, mesh.groups([a for a in mesh.names if a in region])))
    return Cut(tuple(windows), groups, _summands(mesh, unreduced))


def _summands(mesh: Mesh, unreduced: Sequence[str]) -> tuple[int, ...]:
    """The number of the summand that each device holds; () without unreduced axes."""
    if not unreduced:
        return ()
    numbers = {d: k for group in mesh.groups(unreduced) for k, d in enumerate(group)}
    return tuple(numbers[device] for device in range(mesh.size))


def read_sdy(
    attribute: ir.Attribute, mesh: Mesh, shape: Sequence[int], region: Collection[str]
) -> Cut:
    """The cut that a `#sdy.sharding` describes, along those of its axes that are in `region`."""
    sharding = sdy.TensorShardingAttr(attribute)
    dims = [
        [part_of(sdy.AxisRefAttr(axis)) for axis in sdy.DimensionShardingAttr(dim).axes]
        for dim in sharding.dimension_shardings
    ]
    unreduced = [part_of(sdy.AxisRefAttr(axis)) for axis in sharding.unreduced_axes]
    try:
        finer = FinerMesh(mesh, [part for parts in (*dims, unreduced) for part in parts])
    except ImpossiblePart as error:
        raise UnreadableSharding(f"{attribute}, which has {error}") from None

    def in_region(parts: Sequence[AxisPart]) -> list[str]:
        return [axis for part in parts if part.name in region for axis in finer.axes(part)]

    names = [axis for name in region for axis in finer.axes(AxisPart(name))]
    return by_axes(finer.mesh, list(map(in_region, dims)), shape, names, in_region(unreduced))


def read_text(text: str, shape: Sequence[int], count: int, region: str = "{manual}") -> Cut:
    """The cut that a text of GSPMD describes, for `count` devices.

    Args:
      region: the sharding of the blocks. Along axes that are automatic there, the partitioner owns
        summands, and every device computes with the sum.
    """
    everyone = (tuple(range(count)),)
    whole = tuple((0, size) for size in shape)
    if text in ("{replicated}", "{unreduced}"):
        each = range(count) if text == "{unreduced}" else ()
        return Cut((whole,) * count, everyone, _of_region(tuple(each), region))
    if text == "{manual}":
        return Cut((whole,) * count, tuple((d,) for d in range(count)))
    ids, kinds = _read_tiles(text)
    tile, rank = ids.shape, len(shape)
    where = {int(device): index for index, device in np.ndenumerate(ids)}
    windows, groups, summands = [], {}, []
    if sorted(where) != list(range(count)):
        raise UnreadableSharding(f"{text}, which must name each of {count} devices once")
    for device in range(count):
        index = where[device]
        manual = _coordinates(index[rank:], kinds, "manual")
        groups.setdefault(manual, []).append(device)
        blocks = zip(index, shape, tile, strict=False)
        windows.append(tuple((k * (n // t), (k + 1) * (n // t)) for k, n, t in blocks))
        summands.append(_coordinates(index[rank:], kinds, "unreduced"))
    order = {each: number for number, each in enumerate(sorted(set(summands)))}
    numbers = tuple(order[each] for each in summands) if "unreduced" in kinds else ()
    return Cut(tuple(windows), tuple(map(tuple, groups.values())), _of_region(numbers, region))


def _coordinates(index: Sequence[int], kinds: Sequence[str], wanted: str) -> tuple[int, ...]:
    return tuple(k for k, kind in zip(index, kinds, strict=True) if kind == wanted)


def _of_region(summands: tuple[int, ...], region: str) -> tuple[int, ...]:
    """The summands along manual axes: those of the first device with the same manual position."""
    if not summands or _V2.fullmatch(region) is None:
        return summands
    ids, kinds = _read_tiles(region)
    rank = ids.ndim - len(kinds)
    first: dict[tuple[int, ...], int] = {}
    found = [0] * len(summands)
    for index, device in sorted(np.ndenumerate(ids), key=lambda each: int(each[1])):
        manual = _coordinates(index[rank:], kinds, "manual")
        found[int(device)] = summands[first.setdefault(manual, int(device))]
    return tuple(found) if len(set(found)) > 1 else ()


def _read_tiles(text: str) -> tuple[np.ndarray, list[str]]:
    """The devices of a tiled sharding by tile, and the kinds of its last dimensions."""
    match = _V2.fullmatch(text)
    if match is None:
        raise UnreadableSharding(text)
    tile = _numbers(match[1])
    if match[2]:
        sizes = _numbers(match[2])
        ids = np.arange(prod(sizes)).reshape(sizes)
        ids = ids.transpose(_numbers(match[3])) if match[3] else ids
    else:
        ids = np.array(_numbers(match[4]))
    kinds = ["replicated"] if match[5] else [k.strip() for k in (match[6] or "").split(",") if k]
    if ids.size != prod(tile):
        raise UnreadableSharding(f"{text}, which names {ids.size} devices for {prod(tile)} tiles")
    return ids.reshape(tile), kinds


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split(",")))
