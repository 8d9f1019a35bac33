"""Refuses modules whose specs, mesh or groups do not fit, before XLA can abort on them.

XLA's partitioner ends the process on much of what is refused here. Everything wrong is reported at
once, each at its own line.

Before:  "stablehlo.all_reduce"(%x) <{replica_groups = ...mesh_axes<mesh = @mesh, axes = ["k"]>}>
After:   error: all_reduce over axis "k": the mesh is @mesh [i=4, j=2]; name one of "i", "j"
Needs:   nothing.
Leaves:  the module as it is.

MLIR's own verifiers refuse while parsing, and so before this pass: in the entry's shardings an
unknown mesh or axis, an axis used twice, a rank that does not match; dense groups that name a
device twice or leave one out of 0..n-1 (n: how many ids they list); a permutation with a repeated
or negative source or target; an all_to_all whose dimension is no multiple of its split count. What
is refused here is what they let through:

    form       no @main, no mesh or several, no manual axes, a boundary without sharding
    axes       manual axes unknown or repeated; a spec over an axis that is not manual;
               a group or axis index over an axis that is unknown, repeated or not manual
    ids        dense groups that do not cover the mesh or have unequal sizes; groups and
               permutations with ids that no device has, or that join devices along an axis that
               is not manual
    sizes      all_gather, reduce_scatter, all_to_all results that contradict the group size;
               full dimensions beyond 64 bits
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from jaxlib.mlir import ir
from jaxlib.mlir.dialects.builtin import ModuleOp

from .base import Pass, Problem, Refused
from .body_form import BodyForm, Boundary, read_body_form, walk
from .collective_ops import (
    GROUPS,
    PAIRS,
    PERMUTE,
    axis_index_calls,
    body_collectives,
    device_ids,
    group_axes,
    indexed_axes,
)

_LARGEST_DIMENSION = 2**63 - 1


@dataclass(frozen=True)
class Verify(Pass):
    """Refuses modules whose specs, mesh or groups do not fit, before XLA can abort on them."""

    name = "shmap-verify"

    def run(self, module: ModuleOp) -> None:
        form = read_body_form(module)
        problems = [Problem(form.main.location, text) for text in _entry_complaints(form)]
        ops = walk(module.operation)
        for op in ops:
            if (
                op.name == "func.call"
                and ir.FlatSymbolRefAttr(op.attributes["callee"]).value == "main"
            ):
                problems.append(
                    Problem(
                        op.location,
                        "calls @main, which is the entry; move its body to a function of its own",
                    )
                )
        for op in axis_index_calls(ops):
            problems += [Problem(op.location, text) for text in _axis_index_complaints(op, form)]
        for op in body_collectives(ops):
            problems += [Problem(op.location, text) for text in _collective_complaints(op, form)]
        if problems:
            raise Refused(problems)


# ---- the entry -----------------------------------------------------------------------------------


def _entry_complaints(form: BodyForm) -> Iterator[str]:
    for axis in (*form.manual, *form.outer):
        if axis not in form.mesh.sizes:
            yield f'manual axis "{axis}": {_no_such_axis(form)}'
    for axis, count in Counter((*form.manual, *form.outer)).items():
        if count > 1:
            yield f'axis "{axis}" is made manual {count} times; name it once'
    for boundary in (*form.inputs, *form.outputs):
        yield from _boundary_complaints(boundary, form)


def _boundary_complaints(boundary: Boundary, form: BodyForm) -> Iterator[str]:
    for dimension, axes in enumerate(boundary.dims or ()):
        where = f"@main's {boundary.name}, dimension {dimension}"
        for axis in axes:
            if axis not in form.manual:
                yield (
                    f'{where} is split over "{axis}", which @main does not make manual '
                    f"(manual: {_quoted(form.manual)}); leave it out or make it manual"
                )
        size = ir.RankedTensorType(boundary.type).shape[dimension]
        full = size * form.mesh.product(axes)
        if full > _LARGEST_DIMENSION:
            yield (
                f"{where}: {size} per device over {form.mesh.product(axes)} devices is {full} in "
                f"the full array, more than {_LARGEST_DIMENSION}"
            )


# ---- collectives and the axis index --------------------------------------------------------------


def _axis_index_complaints(op: ir.Operation, form: BodyForm) -> Iterator[str]:
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


def _collective_complaints(op: ir.Operation, form: BodyForm) -> Iterator[str]:
    name = op.name.removeprefix("stablehlo.")
    if op.name == PERMUTE:
        yield from _permute_complaints(op, form)
        return
    axes = group_axes(op)
    if axes is None:
        groups = device_ids(op, GROUPS)
        complaints = list(_dense_complaints(name, groups, form))
    else:
        groups = []
        complaints = list(_axes_complaints(name, axes, form))
    yield from complaints
    if not complaints:
        group_size = form.mesh.product(axes) if axes is not None else len(groups[0])
        yield from _size_complaints(op, name, group_size)


def _axes_complaints(name: str, axes: Sequence[str], form: BodyForm) -> Iterator[str]:
    for axis in dict.fromkeys(axes):
        if axis not in form.mesh.sizes:
            yield f'{name} over axis "{axis}": {_no_such_axis(form)}'
        elif axis not in form.region:
            yield (
                f'{name} over axis "{axis}", which is not manual here '
                f"(manual: {_quoted(form.region)}); make it manual or leave it out"
            )
        if axes.count(axis) > 1:
            yield f'{name} names axis "{axis}" {axes.count(axis)} times; name it once'


def _dense_complaints(name: str, groups: list[list[int]], form: BodyForm) -> Iterator[str]:
    mesh = form.mesh
    ids = [device for group in groups for device in group]
    if -1 in ids:
        sizes = ", ".join(str(len(group) - group.count(-1)) for group in groups)
        yield f"{name} has groups of unequal sizes ({sizes}); XLA needs groups of one size"
        return
    strangers = [device for device in ids if not 0 <= device < mesh.size]
    if strangers:
        yield f"{name} groups name device {_listed(strangers)}; {_ids_of(form)}"
        return
    missing = sorted(set(range(mesh.size)) - set(ids))
    if missing or len(ids) != mesh.size:
        yield (
            f"{name} groups hold {len(ids)} ids and leave out device {_listed(missing)}; they must "
            f"name each of the {mesh.size} devices of {mesh} once"
        )
        return
    for group in groups:
        yield from _crossing(f"{name} group {group}", group, form)


def _permute_complaints(op: ir.Operation, form: BodyForm) -> Iterator[str]:
    for pair in device_ids(op, PAIRS):
        what = f"collective_permute {pair[0]} -> {pair[1]}"
        strangers = [device for device in pair if not 0 <= device < form.mesh.size]
        if strangers:
            yield f"{what} names device {_listed(strangers)}; {_ids_of(form)}"
        else:
            yield from _crossing(what, pair, form)


def _crossing(what: str, devices: Sequence[int], form: BodyForm) -> Iterator[str]:
    """Devices that talk to each other may differ along manual axes only."""
    places = [form.mesh.coordinates(device) for device in devices]
    for axis in form.automatic:
        if len({place[axis] for place in places}) > 1:
            yield (
                f'{what} joins devices along axis "{axis}", which is not manual here '
                f"(manual: {_quoted(form.region)})"
            )


def _size_complaints(op: ir.Operation, name: str, group_size: int) -> Iterator[str]:
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


# ---- words ---------------------------------------------------------------------------------------


def _no_such_axis(form: BodyForm) -> str:
    return f"the mesh is {form.mesh}; name one of {_quoted(form.mesh.names)}"


def _ids_of(form: BodyForm) -> str:
    return f"the devices of {form.mesh} are 0 to {form.mesh.size - 1}"


def _quoted(axes: Sequence[str]) -> str:
    return ", ".join(f'"{axis}"' for axis in axes) or "none"


def _listed(devices: Sequence[int]) -> str:
    return ", ".join(map(str, devices)) or "none"
