"""Rewrites collectives and the axis index to the form that XLA accepts.

In body form a collective names mesh axes only. XLA requires a channel on every collective between
devices of one program. It has no axis index, which becomes arithmetic on `partition_id` (see
axis_index.py).

Before:  %0 = stablehlo.custom_call @shmap.axis_index() {backend_config = {axes = ["i"]}}
         %1 = "stablehlo.all_reduce"(%x) <{replica_groups = ..._axes<mesh = @mesh, axes = ["j"]>}>
After:   %p = stablehlo.partition_id                    // on a mesh of i=4, j=2
         %q = stablehlo.divide %p, 2
         %0 = stablehlo.convert %q : tensor<i32>
         %1 = "stablehlo.all_reduce"(%x) <{channel_handle = <handle = 1, type = 1>,
                                           use_global_device_ids, replica_groups = ...}>
With groups=ids, groups become lists of device ids, for versions of XLA that do not read mesh axes.
With groups=one-axis, those along several axes do: if the program is called in one that has another
mesh of these devices, XLA writes both as axes of one mesh, and aborts if two axes of a group become
parts of one axis. A mesh with too many devices for lists keeps its axes.

If some axes are automatic, GSPMD aborts on an all_gather, reduce_scatter or all_to_all without the
sharding of the region, and on an all_reduce or collective_permute with it. XLA expands an
all_to_all whose split and concat dimensions differ into reshapes, to which it copies the sharding
of the all_to_all, whose rank is wrong for them. This pass therefore concatenates such an all_to_all
along its split dimension, and emits the reshapes itself.

Imported modules may contain hints about automatic axes for the other partitioner, which are
rewritten (see hints.py), and regions inside of the body for Shardy, which are written for GSPMD
(see nested_regions.py). GSPMD also aborts on some calls that return arrays without elements, which
are inlined (see calls_without_elements.py).

Needs:   body form; for Shardy, no region inside that is written for GSPMD.
Leaves:  a channel on every collective; no axis index.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo
from jaxlib.mlir.dialects.builtin import ModuleOp

from ..base import Pass, PassRefused, Violation
from ..ir.body_form import BodyForm, read_body_form
from ..ir.collective_ops import (
    CHANNEL_HANDLE,
    COLLECTIVES,
    GROUPED,
    GROUPS,
    TAKES_GLOBAL_DEVICE_IDS,
    axis_index_calls,
    body_collectives,
    group_axes,
    indexed_axes,
    is_axis_index,
)
from ..ir.memoize import memoized
from ..ir.mesh import MOST_LISTED, Mesh
from ..ir.sharding_text import region_sharding
from .axis_index import axis_index
from .calls_without_elements import inline_calls_without_elements
from .hints import convert_hints, hint_for_gspmd
from .nested_regions import (
    CONSTRAINT,
    nested_regions,
    refuse_gspmds,
    regions_around_indices,
    write_for_gspmd,
)

# The older partitioner needs the region's sharding on these when some axes are automatic.
_CARRY_REGION_SHARDING = frozenset(
    {"stablehlo.all_gather", "stablehlo.all_to_all", "stablehlo.reduce_scatter"}
)
_CALL = "stablehlo.custom_call"
# A channel between devices of one program. All collectives may share it.
_HANDLE, _DEVICE_TO_DEVICE = 1, 1


@dataclass(frozen=True)
class LegalizeCollectives(Pass):
    """Rewrites collectives and the axis index to the form that XLA accepts."""

    name = "shmap-legalize-collectives"
    code = "SHM-P10"
    keeps_bits = True
    needs_body_form = True

    groups: Literal["axes", "one-axis", "ids"] = "axes"
    partitioner: Literal["gspmd", "shardy"] = "gspmd"

    def run(self, module: ModuleOp) -> None:
        form = read_body_form(module)
        if self.groups == "ids" and form.mesh.size > MOST_LISTED:
            text = (
                f"groups=ids lists every device, and {form.mesh} has {form.mesh.size}, more than "
                f"{MOST_LISTED}; use groups=axes"
            )
            raise PassRefused([Violation(form.main.location, text)])
        if self.partitioner == "shardy":
            refuse_gspmds(module)
            for region in regions_around_indices(module, form):
                self._write_indices(region.ops([_CALL]), region.form)
        else:
            regions = nested_regions(module, form)
            for region in regions:
                for op in region.ops(sorted(COLLECTIVES)):
                    self._legalize(op, region.form)
                for op in region.ops([CONSTRAINT]):
                    hint_for_gspmd(op, region.form)
                self._write_indices(region.ops([_CALL]), region.form)
            # After all: what is in a region is part of the one around it then.
            for region in regions:
                write_for_gspmd(region)
            inline_calls_without_elements(module, form)
        for op in body_collectives(module.operation):
            self._legalize(op, form)
        convert_hints(module.operation, form, self.partitioner)
        self._write_indices(axis_index_calls(module.operation), form)

    def _legalize(self, op: ir.Operation, form: BodyForm) -> None:
        _add_channel(op)
        if op.name in GROUPED:
            self._list_device_ids(op, form.mesh)
        if self.partitioner == "gspmd" and form.is_partly_manual:
            _carry_region_sharding(op, form)

    def _list_device_ids(self, op: ir.Operation, mesh: Mesh) -> None:
        axes = group_axes(op)
        if axes is None or self.groups == "axes":
            return
        if self.groups == "ids" or (len(axes) > 1 and mesh.size <= MOST_LISTED):
            op.attributes[GROUPS] = _ids(mesh, axes)

    def _write_indices(self, calls: Iterable[ir.Operation], form: BodyForm) -> None:
        """Writes those of some custom calls that are axis indices, in a region of a form."""
        for op in filter(is_axis_index, calls):
            index = op.results[0]
            with ir.InsertionPoint(op), op.location:
                value = axis_index(form, indexed_axes(op), index.type, self.partitioner)
            index.replace_all_uses_with(value)
            op.erase()


def _add_channel(op: ir.Operation) -> None:
    op.attributes[CHANNEL_HANDLE] = stablehlo.ChannelHandle.get(_HANDLE, _DEVICE_TO_DEVICE)
    if op.name in TAKES_GLOBAL_DEVICE_IDS:
        op.attributes["use_global_device_ids"] = ir.UnitAttr.get()


@memoized
def _ids(mesh: Mesh, axes: tuple[str, ...]) -> ir.Attribute:
    return ir.DenseElementsAttr.get(np.array(mesh.groups(axes), np.int64).data)


def _carry_region_sharding(op: ir.Operation, form: BodyForm) -> None:
    if op.name not in _CARRY_REGION_SHARDING:
        return
    if op.name == "stablehlo.all_to_all":
        op = _concat_where_split(op)
    ranks = [ir.RankedTensorType(result.type).rank for result in op.results]
    texts = [region_sharding(form.mesh, rank, form.region) for rank in ranks]
    # XLA writes the sharding of several results as a tuple.
    text = texts[0] if len(texts) == 1 else f"{{{', '.join(texts)}}}"
    op.attributes["mhlo.sharding"] = ir.StringAttr.get(text)


def _concat_where_split(op: ir.Operation) -> ir.Operation:
    """Replaces `op` by an all_to_all that concatenates along its split dimension, and reshapes.

    The result has the operand's shape, with one part per device along dimension `split`. That
    dimension is split in two, and the one that counts devices moves to dimension `concat`.
    """
    split, concat, count = (
        ir.IntegerAttr(op.attributes[name]).value
        for name in ("split_dimension", "concat_dimension", "split_count")
    )
    if split == concat:
        return op
    with ir.InsertionPoint(op), op.location:
        exchange = stablehlo.AllToAllOp(
            op.operands, split, split, count, op.attributes[GROUPS],
            channel_handle=op.attributes[CHANNEL_HANDLE],
        )  # fmt: skip
        for received, result in zip(exchange.results, op.results, strict=True):
            type_ = ir.RankedTensorType(received.type)
            shape = list(type_.shape)
            shape[split : split + 1] = [count, shape[split] // count]
            parts = stablehlo.reshape(ir.RankedTensorType.get(shape, type_.element_type), received)
            order = [dim for dim in range(len(shape)) if dim != split]
            # With `count` taken out, the dimensions are numbered as in the result.
            order.insert(concat, split)
            moved = stablehlo.transpose(parts, order)
            result.replace_all_uses_with(stablehlo.reshape(result.type, moved))
    op.erase()
    return exchange.operation
