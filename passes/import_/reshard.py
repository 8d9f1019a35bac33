"""Turns the block of an array that is split in one way into its block in another way.

Before:  a block of tensor<8x8xf32>, split as [{"i"}, {}] on the mesh i=4, wanted as [{}, {}]
After:   %0 = "stablehlo.all_gather"(%block) <{all_gather_dim = 0, ... axes = ["i"]}>
             : (tensor<2x8xf32>) -> tensor<8x8xf32>

For each dimension, the axes that both placements have in front stay. In this order:

    take         axes that are new, and split no dimension before: each device takes its part
    all_to_all   axes that leave one dimension for another
    all_gather   axes that split a dimension no more
    take         axes that split another dimension before
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from ..ir.boundary import Dims
from ..ir.mesh import Mesh
from ..ir.slices import scalar, take_at
from ..ir.types import Value, shape_of
from .name_groups import groups_over
from .name_positions import axis_index
from .placement import Placement


def reshard(value: Value, before: Placement, after: Placement, mesh: Mesh) -> Value:
    """The block of `after`, from that of `before`, at the current insertion point.

    Both are without summands. Bit by bit, the full array stays the same.
    """
    for kind, dimensions, axes in _steps(before.dims, after.dims):
        value = _BUILD[kind](value, dimensions, axes, mesh)
    return value


_TAKE = "take"
_Step = tuple[str, tuple[int, ...], tuple[str, ...]]


def _steps(before: Dims, after: Dims) -> Iterator[_Step]:
    """(what to do, along which dimensions, over which axes), in order."""
    now = [list(axes) for axes in before]
    yield from _takes(now, after)
    for dimension, axes in enumerate(now):
        leaving = tuple(axes[_common(axes, after[dimension]) :])
        to = _destination(now, after, dimension, leaving)
        if to is not None:
            yield "all_to_all", (dimension, to), leaving
            now[dimension] = now[dimension][: -len(leaving)]
            now[to] += leaving
    for dimension, axes in enumerate(now):
        leaving = tuple(axes[_common(axes, after[dimension]) :])
        if leaving:
            yield "all_gather", (dimension,), leaving
            now[dimension] = now[dimension][: -len(leaving)]
    yield from _takes(now, after)


def _takes(now: list[list[str]], after: Dims) -> Iterator[_Step]:
    for dimension, wanted in enumerate(after):
        new = tuple(wanted[len(now[dimension]) :])
        used = {axis for axes in now for axis in axes}
        if new and list(wanted[: len(now[dimension])]) == now[dimension] and not used & set(new):
            yield _TAKE, (dimension,), new
            now[dimension] += new


def _destination(
    now: list[list[str]], after: Dims, dimension: int, leaving: Sequence[str]
) -> int | None:
    """The dimension that `leaving` split next, as its last axes; None if there is none."""
    for to, wanted in enumerate(after):
        if leaving and to != dimension and [*now[to], *leaving] == list(wanted):
            return to
    return None


def _common(left: Sequence[str], right: Sequence[str]) -> int:
    """How many axes two lists have in common in front."""
    count = 0
    while count < min(len(left), len(right)) and left[count] == right[count]:
        count += 1
    return count


def _take(value: Value, dimensions: tuple[int, ...], axes: tuple[str, ...], mesh: Mesh) -> Value:
    (dimension,) = dimensions
    size = shape_of(value)[dimension] // mesh.product(axes)
    start = stablehlo.multiply(axis_index(axes), scalar(size))
    return take_at(value, dimension, start, size)


def _gather(value: Value, dimensions: tuple[int, ...], axes: tuple[str, ...], mesh: Mesh) -> Value:
    (dimension,) = dimensions
    shape = shape_of(value)
    shape[dimension] *= mesh.product(axes)
    return _collective("all_gather", value, shape, axes, mesh, all_gather_dim=dimension)


def _exchange(
    value: Value, dimensions: tuple[int, ...], axes: tuple[str, ...], mesh: Mesh
) -> Value:
    concat, split = dimensions
    shape, count = shape_of(value), mesh.product(axes)
    shape[split] //= count
    shape[concat] *= count
    return _collective(
        *("all_to_all", value, shape, axes, mesh),
        split_dimension=split, concat_dimension=concat, split_count=count,
    )  # fmt: skip


_BUILD = {_TAKE: _take, "all_gather": _gather, "all_to_all": _exchange}


def _collective(
    name: str, value: Value, shape: Sequence[int], axes: Sequence[str], mesh: Mesh, **numbers: int
) -> Value:
    i64 = ir.IntegerType.get_signless(64)
    attributes: dict[str, Any] = {
        name: ir.IntegerAttr.get(i64, number) for name, number in numbers.items()
    }
    attributes["replica_groups"] = groups_over(axes, mesh)
    element = ir.RankedTensorType(value.type).element_type
    op = ir.Operation.create(
        f"stablehlo.{name}",
        results=[ir.RankedTensorType.get(shape, element)],
        operands=[value],
        attributes=attributes,
    )
    return op.results[0]
