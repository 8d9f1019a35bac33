"""Gives collectives and the axis index the form that XLA takes.

In body form a collective names mesh axes and nothing else. XLA wants a channel on every collective
that crosses devices of one program, and it has no axis index: the number of a device along an axis
follows from `partition_id`, its row-major position in the mesh.

Before:  %0 = stablehlo.custom_call @shmap.axis_index() {backend_config = {axes = ["i"]}}
         %1 = "stablehlo.all_reduce"(%x) <{replica_groups = ..._axes<mesh = @mesh, axes = ["j"]>}>
After:   %p = stablehlo.partition_id                    // on a mesh of i=4, j=2
         %q = stablehlo.divide %p, 2
         %0 = stablehlo.convert %q : tensor<i32>
         %1 = "stablehlo.all_reduce"(%x) <{channel_handle = <handle = 1, type = 1>,
                                           use_global_device_ids, replica_groups = ...}>
With groups=ids the groups become lists of device ids, for an XLA that does not read mesh axes.

In a region that is manual over some axes only, `partition_id` belongs to no one value: Shardy wants
it inside a computation that is manual over the remaining axes too, the older partitioner wants it
marked as manual and brought into the region's sharding. The older partitioner further aborts on an
all_gather, reduce_scatter or all_to_all there that does not carry the region's sharding (and on
an all_reduce or collective_permute that does).

Needs:   body form.
Leaves:  every collective with a channel, no axis index.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import sdy, stablehlo
from jaxlib.mlir.dialects.builtin import ModuleOp

from .base import Pass
from .body_form import BodyForm, read_body_form, walk
from .collective_ops import (
    CHANNEL_HANDLE,
    GROUPED,
    GROUPS,
    TAKES_GLOBAL_DEVICE_IDS,
    axis_index_calls,
    body_collectives,
    group_axes,
    indexed_axes,
)
from .mesh import Mesh
from .sharding_calls import sharding_call
from .sharding_text import FULLY_MANUAL, region_sharding

# The older partitioner needs the region's sharding on these when some axes are automatic.
_CARRY_REGION_SHARDING = frozenset(
    {"stablehlo.all_gather", "stablehlo.all_to_all", "stablehlo.reduce_scatter"}
)
# A channel between devices of one program. All collectives may share it.
_HANDLE, _DEVICE_TO_DEVICE = 1, 1


@dataclass(frozen=True)
class LegalizeCollectives(Pass):
    """Gives collectives and the axis index the form that XLA takes."""

    name = "shmap-legalize-collectives"

    groups: Literal["axes", "ids"] = "axes"
    partitioner: Literal["gspmd", "shardy"] = "gspmd"

    def run(self, module: ModuleOp) -> None:
        form = read_body_form(module)
        ops = walk(module.operation)
        for op in body_collectives(ops):
            self._legalize(op, form)
        for op in axis_index_calls(ops):
            with ir.InsertionPoint(op), op.location:
                index = self._axis_index(op, form)
            op.results[0].replace_all_uses_with(index)
            op.erase()

    def _legalize(self, op: ir.Operation, form: BodyForm) -> None:
        op.attributes[CHANNEL_HANDLE] = stablehlo.ChannelHandle.get(_HANDLE, _DEVICE_TO_DEVICE)
        if op.name in TAKES_GLOBAL_DEVICE_IDS:
            op.attributes["use_global_device_ids"] = ir.UnitAttr.get()
        if self.groups == "ids" and op.name in GROUPED:
            axes = group_axes(op)
            if axes is not None:
                ids = np.array(form.mesh.groups(axes), np.int64)
                op.attributes[GROUPS] = ir.DenseElementsAttr.get(ids.data)
        if self.partitioner == "gspmd" and form.automatic and op.name in _CARRY_REGION_SHARDING:
            op.attributes["mhlo.sharding"] = ir.StringAttr.get(_region_shardings(op, form))

    def _axis_index(self, op: ir.Operation, form: BodyForm) -> ir.Value:
        axes, type_ = indexed_axes(op), op.results[0].type
        if form.mesh.product(axes) == 1:
            return _constant(type_, 0)
        if not form.automatic:
            return _position(form.mesh, axes, type_)
        if self.partitioner == "shardy":
            return _inside_automatic_axes(form, axes, type_)
        return _from_manual_to_region(form, _position(form.mesh, axes, type_))


def _region_shardings(op: ir.Operation, form: BodyForm) -> str:
    """The region's sharding for each result; XLA writes that of several results as a tuple."""
    types = [ir.RankedTensorType(result.type) for result in op.results]
    texts = [region_sharding(form.mesh, type_.rank, form.region) for type_ in types]
    return texts[0] if len(texts) == 1 else f"{{{', '.join(texts)}}}"


# ---- the axis index ----------------------------------------------------------------------------


def _position(mesh: Mesh, axes: Sequence[str], type_: ir.Type) -> ir.Value:
    """This device's row-major position along `axes`, first axis major, from its partition id."""
    device = stablehlo.partition_id()
    device.owner.attributes["mhlo.sharding"] = ir.StringAttr.get("{manual}")

    def constant(value: int) -> ir.Value:
        return _constant(device.type, value)

    def digit(size: int, stride: int) -> ir.Value:
        value = device
        if stride > 1:
            value = stablehlo.divide(value, constant(stride))
        if size * stride < mesh.size:
            value = stablehlo.remainder(value, constant(size))
        return value

    digits = _digits(mesh, axes)
    position = digit(*digits[0])
    for size, stride in digits[1:]:
        position = stablehlo.add(stablehlo.multiply(position, constant(size)), digit(size, stride))
    return stablehlo.convert(type_, position)


def _constant(type_: ir.Type, value: int) -> ir.Value:
    element = ir.IntegerAttr.get(ir.RankedTensorType(type_).element_type, value)
    return stablehlo.constant(ir.DenseElementsAttr.get_splat(type_, element))


def _digits(mesh: Mesh, axes: Sequence[str]) -> list[tuple[int, int]]:
    """(size, stride) of each digit of the position; neighbours in the mesh make one digit."""
    digits: list[tuple[int, int]] = []
    for axis in axes:
        size, stride = mesh.sizes[axis], mesh.stride(axis)
        if digits and digits[-1][1] == size * stride:
            digits[-1] = (digits[-1][0] * size, stride)
        elif size > 1:
            digits.append((size, stride))
    return digits


def _inside_automatic_axes(form: BodyForm, axes: Sequence[str], type_: ir.Type) -> ir.Value:
    """The position, computed where all axes are manual, which is where Shardy allows it."""
    sharding = sdy.TensorShardingAttr.get(form.mesh.symbol, [])
    computation = sdy.ManualComputationOp(
        [type_],
        [],
        sdy.TensorShardingPerValueAttr.get([]),
        sdy.TensorShardingPerValueAttr.get([sharding]),
        sdy.ManualAxesAttr.get([ir.StringAttr.get(axis) for axis in form.automatic]),
    )
    with ir.InsertionPoint(ir.Block.create_at_start(computation.body)):
        sdy.ReturnOp([_position(form.mesh, axes, type_)])
    return computation.results[0]


def _from_manual_to_region(form: BodyForm, position: ir.Value) -> ir.Value:
    """The position, marked as a value of each device, brought into the region's sharding."""
    for target, sharding in (
        ("Sharding", FULLY_MANUAL),
        ("SPMDShardToFullShape", region_sharding(form.mesh, 0, form.region)),
    ):
        position = sharding_call(target, position, position.type, sharding)
    return position
