"""Diagnostics of collectives and axis indices, for shmap-verify.

Each function yields one message per error: what was found, what is needed, what to do.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from jaxlib.mlir import ir

from ..ir.body_form import BodyForm
from ..ir.collective_ops import (
    GROUPS,
    PAIRS,
    PERMUTE,
    device_ids,
    group_axes,
    group_mesh,
    indexed_axes,
    split_group_axes,
)

_MOST_NAMED = 8


def axis_index_diagnostics(op: ir.Operation, form: BodyForm) -> Iterator[str]:
    axes = indexed_axes(op)
    if not axes:
        yield (
            "axis_index names no axis; say which in its configuration, as in "
            'backend_config = {axes = ["i"]}'
        )
    yield from _axes_complaints("axis_index", axes, form)
    scalar = len(op.results) == 1 and isinstance(op.results[0].type, ir.RankedTensorType)
    if op.operands or not scalar or str(op.results[0].type) != "tensor<i32>":
        yield "axis_index takes no operand and gives one tensor<i32>"


def collective_diagnostics(
    op: ir.Operation, form: BodyForm, good_groups: set[ir.Attribute]
) -> Iterator[str]:
    """
    Args:
      good_groups: those of other collectives that were found to be correct. They are extended.
    """
    name = op.name.removeprefix("stablehlo.")
    if op.name == PERMUTE:
        yield from _permute_complaints(op, form)
        return
    groups = op.attributes[GROUPS]
    if groups not in good_groups:
        complaints = list(_group_complaints(op, name, form))
        yield from complaints
        if complaints:
            return
        good_groups.add(groups)
    axes = group_axes(op)
    size = form.mesh.product(axes) if axes is not None else len(device_ids(op, GROUPS)[0])
    yield from size_diagnostics(op, size)


def _group_complaints(op: ir.Operation, name: str, form: BodyForm) -> Iterator[str]:
    axes = group_axes(op)
    if axes is None:
        yield from _dense_complaints(name, device_ids(op, GROUPS), form)
        return
    yield from _axes_complaints(name, axes, form)
    mesh = group_mesh(op)
    if not isinstance(mesh, ir.FlatSymbolRefAttr) or mesh.value != form.mesh.symbol:
        yield f"{name} names its groups on mesh {mesh}; name the module's, @{form.mesh.symbol}"
    for axis in split_group_axes(op):
        yield f'{name} groups over part of axis "{axis}"; name whole axes'


def _axes_complaints(name: str, axes: Sequence[str], form: BodyForm) -> Iterator[str]:
    for axis in dict.fromkeys(axes):
        if axis not in form.mesh.sizes:
            yield f'{name} over axis "{axis}": {no_such_axis(form)}'
        elif axis not in form.region:
            yield (
                f'{name} over axis "{axis}", which is not manual here '
                f"(manual: {quoted(form.region)}); make it manual or leave it out"
            )
        if axes.count(axis) > 1:
            yield f'{name} names axis "{axis}" {axes.count(axis)} times; name it once'


def _dense_complaints(name: str, groups: list[list[int]], form: BodyForm) -> Iterator[str]:
    mesh = form.mesh
    # StableHLO lets an all_reduce have groups of unequal sizes, filled up with -1.
    groups = [[device for device in group if device != -1] for group in groups]
    ids = [device for group in groups for device in group]
    strangers = [device for device in ids if not 0 <= device < mesh.size]
    if strangers:
        yield f"{name} groups name device {_listed(strangers)}; {_ids_of(form)}"
        return
    named = set(ids)
    missing = len(named) < mesh.size
    if missing or len(ids) != mesh.size:
        absent = itertools.islice((d for d in range(mesh.size) if d not in named), _MOST_NAMED + 1)
        yield (
            f"{name} groups hold {len(ids)} ids and leave out device {_listed(list(absent))}; they "
            f"must name each of the {mesh.size} devices of {mesh} once"
        )
        return
    for group in groups:
        yield from _crossing(f"{name} group {group}", group, form)


def _permute_complaints(op: ir.Operation, form: BodyForm) -> Iterator[str]:
    size = form.mesh.size
    for pair in device_ids(op, PAIRS):
        strangers = [device for device in pair if not 0 <= device < size]
        if not (strangers or form.automatic):
            continue
        what = f"collective_permute {pair[0]} -> {pair[1]}"
        if strangers:
            yield f"{what} names device {_listed(strangers)}; {_ids_of(form)}"
        else:
            yield from _crossing(what, pair, form)


def _crossing(what: str, devices: Sequence[int], form: BodyForm) -> Iterator[str]:
    """Devices that communicate may differ along manual axes only."""
    for axis in form.automatic:
        if len({form.mesh.position(device, axis) for device in devices}) > 1:
            yield (
                f'{what} joins devices along axis "{axis}", which is not manual here '
                f"(manual: {quoted(form.region)})"
            )


def size_diagnostics(op: ir.Operation, group_size: int) -> Iterator[str]:
    """What is wrong with a collective, because its groups have this number of devices."""
    name = op.name.removeprefix("stablehlo.")
    if name == "all_to_all":
        count = ir.IntegerAttr(op.attributes["split_count"]).value
        if count != group_size:
            yield (
                f"all_to_all splits into {count} parts for a group of {group_size} devices; "
                f"split_count must be {group_size}"
            )
    elif name in ("all_gather", "reduce_scatter"):
        for operand, result in zip(op.operands, op.results, strict=True):
            yield from _gather_or_scatter_complaint(op, name, operand.type, result.type, group_size)


def _gather_or_scatter_complaint(
    op: ir.Operation, name: str, operand: ir.Type, result: ir.Type, group_size: int
) -> Iterator[str]:
    which = "all_gather_dim" if name == "all_gather" else "scatter_dimension"
    dimension = ir.IntegerAttr(op.attributes[which]).value
    before = ir.RankedTensorType(operand).shape[dimension]
    after = ir.RankedTensorType(result).shape[dimension]
    where = f"{name}, dimension {dimension}, group of {group_size} devices"
    if name == "all_gather":
        if before * group_size != after:
            yield (
                f"{where}: {before} per device makes {before} x {group_size} = "
                f"{before * group_size}, the result has {after}"
            )
    elif before % group_size:
        yield (
            f"{where}: {group_size} does not divide {before}; pad the dimension to a multiple "
            f"of {group_size}"
        )
    elif before // group_size != after:
        yield (
            f"{where}: {before} makes {before} / {group_size} = {before // group_size} per device, "
            f"the result has {after}"
        )


def no_such_axis(form: BodyForm) -> str:
    return f"the mesh is {form.mesh}; name one of {quoted(form.mesh.names)}"


def quoted(axes: Sequence[str]) -> str:
    return ", ".join(f'"{axis}"' for axis in axes) or "none"


def _ids_of(form: BodyForm) -> str:
    return f"the devices of {form.mesh} are 0 to {form.mesh.size - 1}"


def _listed(devices: Sequence[int]) -> str:
    more = ["..."] if len(devices) > _MOST_NAMED else []
    return ", ".join([*map(str, devices[:_MOST_NAMED]), *more]) or "none"
