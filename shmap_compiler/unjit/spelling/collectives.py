"""Collectives, and the position of a device."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

from shmap_passes.ir.collective_ops import (
    GROUPS,
    PAIRS,
    device_ids,
    group_axes,
    indexed_axes,
    is_axis_index,
    split_group_axes,
)
from shmap_passes.ir.mesh import Mesh

from shmap_compiler.unjit.layout import Code, call, display, numbers
from shmap_compiler.unjit.signature import quoted
from shmap_compiler.unjit.spelling.draws import is_draw, spelled_draw
from shmap_compiler.unjit.spelling.operation import Op, Row
from shmap_compiler.unjit.types import element_of

_REDUCTIONS = {
    "stablehlo.add": "lax.psum",
    "stablehlo.maximum": "lax.pmax",
    "stablehlo.minimum": "lax.pmin",
    "stablehlo.or": "lax.pmax",
    "stablehlo.and": "lax.pmin",
}


_MOST_PAIRS = 4
"""Longer permutations that shift are written as a comprehension."""


def axis_names(axes: tuple[str, ...]) -> Code:
    """One axis, or a tuple of several."""
    return Code(quoted(axes[0])) if len(axes) == 1 else display("(", map(quoted, axes), ")")


def _groups(op: Op) -> tuple[Code, dict[str, Code]] | None:
    """The axes of a collective, and what else says who takes part."""
    axes = group_axes(op.op)
    if axes is None:
        rows = [numbers(row) for row in device_ids(op.op, GROUPS)]
        listed = display("[", rows, "]")
        return axis_names(op.values.mesh.names), {"axis_index_groups": listed}
    if split_group_axes(op.op) or not axes:
        return None
    return axis_names(axes), {}


def _all_reduce(op: Op) -> Code | None:
    groups, name = _groups(op), op.region_op() or ""
    if groups is None:
        return None
    if name == "stablehlo.multiply" and len(op.operands) == 1:
        # JAX has no such collective. Its derivative is known where the number is a Python one.
        one = {"jnp.float32": "1.0", "jnp.int32": "1"}.get(op.dtype, f"{op.dtype}(1)")
        gathered = call("lax.all_gather", op.exact(0), groups[0], **groups[1])
        return call("lax.reduce", gathered, one, "lax.mul", "(0,)")
    function = _REDUCTIONS.get(name)
    is_bitwise = name in ("stablehlo.or", "stablehlo.and")
    if function is None or (is_bitwise and element_of(op.result) != "i1"):
        return None
    return call(function, _arrays(op), groups[0], **groups[1])


def _arrays(op: Op) -> Code:
    """The operand, or a tuple of several."""
    arrays = op.all_exact()
    return arrays[0] if len(arrays) == 1 else display("(", arrays, ")")


def _all_gather(op: Op) -> Code | None:
    groups = _groups(op)
    if groups is None:
        return None
    dim = str(op.integer("all_gather_dim"))
    return call("lax.all_gather", _arrays(op), groups[0], **groups[1], axis=dim, tiled="True")


def _reduce_scatter(op: Op) -> Code | None:
    groups = _groups(op)
    if groups is None or op.region_op() != "stablehlo.add":
        return None
    dim = str(op.integer("scatter_dimension"))
    return call(
        "lax.psum_scatter",
        op.exact(0),
        groups[0],
        **groups[1],
        scatter_dimension=dim,
        tiled="True",
    )


def _all_to_all(op: Op) -> Code | None:
    groups = _groups(op)
    if groups is None:
        return None
    return call(
        "lax.all_to_all",
        _arrays(op),
        groups[0],
        **groups[1],
        split_axis=str(op.integer("split_dimension")),
        concat_axis=str(op.integer("concat_dimension")),
        tiled="True",
    )


def _permute(op: Op) -> Code:
    """A permutation, along the fewest axes along which all devices do the same."""
    mesh = op.values.mesh
    pairs = [(source, target) for source, target in device_ids(op.op, PAIRS)]
    for count in range(1, len(mesh.names) + 1):
        for axes in combinations(mesh.names, count):
            along = _along(mesh, axes, pairs)
            if along is not None:
                table = _pairs(along, mesh.product(axes))
                return call("lax.ppermute", op.exact(0), axis_names(axes), table)
    return call("lax.ppermute", op.exact(0), axis_names(mesh.names), _pairs(pairs, mesh.size))


def _along(
    mesh: Mesh, axes: tuple[str, ...], pairs: Sequence[tuple[int, int]]
) -> list[tuple[int, int]] | None:
    """The pairs of positions along axes; None if the devices of another row send otherwise."""
    position = {
        device: (row, number)
        for row, devices in enumerate(mesh.groups(axes))
        for number, device in enumerate(devices)
    }
    found: dict[tuple[int, int], int] = {}
    for source, target in pairs:
        (row, start), (other, end) = position[source], position[target]
        if row != other:
            return None
        found[start, end] = found.get((start, end), 0) + 1
    rows = mesh.size // mesh.product(axes)
    return list(found) if found and all(count == rows for count in found.values()) else None


def _pairs(pairs: Sequence[tuple[int, int]], size: int) -> Code:
    """The pairs of a permutation: long shifts by what they compute, others one by one."""
    steps = {(target - source) % size for source, target in pairs}
    if len(pairs) > _MOST_PAIRS and len(steps) == 1:
        (step,) = steps
        sources = sorted(source for source, _ in pairs)
        shift = step if step <= size // 2 else step - size
        moved = f"k + {shift}" if shift >= 0 else f"k - {-shift}"
        if sources == list(range(size)):
            return Code(f"[(k, ({moved}) % {size}) for k in range({size})]")
        first, last = sources[0], sources[-1]
        stays = all(source + shift == target for source, target in pairs)
        if stays and sources == list(range(first, last + 1)):
            start = f"{first}, " if first else ""
            return Code(f"[(k, {moved}) for k in range({start}{last + 1})]")
    return display("[", map(numbers, pairs), "]")


def _custom_call(op: Op) -> Code | None:
    if is_axis_index(op.op):
        return call("lax.axis_index", axis_names(indexed_axes(op.op)))
    return spelled_draw(op) if is_draw(op.op) else None


def _partition_id(op: Op) -> Code:
    index = call("lax.axis_index", axis_names(op.values.mesh.names))
    return call(f"{index.text}.astype", op.dtype)


ROWS: dict[str, Row] = {
    "stablehlo.all_reduce": _all_reduce,
    "stablehlo.all_gather": _all_gather,
    "stablehlo.reduce_scatter": _reduce_scatter,
    "stablehlo.all_to_all": _all_to_all,
    "stablehlo.collective_permute": _permute,
    "stablehlo.custom_call": _custom_call,
    "stablehlo.partition_id": _partition_id,
}
