"""Forms a reduce_scatter from an all_reduce and a slice of the device's own block.

If each device uses only its own block of a sum, it need not receive the other blocks. A
reduce_scatter sends half as many bytes as the all_reduce.

Before:  %i = stablehlo.custom_call @shmap.axis_index() {... axes = ["i"]}
         %1 = "stablehlo.all_reduce"(%0) <{... axes = ["i"]}> ({ add })             // 8x8, i has 4
         %2 = stablehlo.dynamic_slice %1, 2 * %i, 0, sizes = [2, 8]
After:   %2 = "stablehlo.reduce_scatter"(%0) <{scatter_dimension = 0, ... axes = ["i"]}> ({ add })
Needs:   shmap-merge-equal-collectives: if an equal all_reduce is used whole, the slice is free.
Leaves:  no all_reduce of which every use, in the block of the all_reduce, slices out the device's
         own block of one dimension with a known index (passes/analysis/per_device_constants.py),
         unless one of them has frontend attributes (passes/ir/instructions.py). If the blocks lie
         in another order of the axes than the all_reduce names, only integers, whose sum is the
         same in any order.

If some axes are automatic, the all_reduce is kept: GSPMD replicates the operands of reduce_scatters
over automatic axes, with all-gathers.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from jaxlib.mlir import ir
from jaxlib.mlir.dialects.builtin import ModuleOp

from ..analysis.per_device_constants import slices_of, takes_own_block
from ..base import Pass
from ..ir.body_form import BodyForm, read_body_form
from ..ir.collective_ops import (
    ALL_REDUCE,
    GROUPS,
    REDUCE_SCATTER,
    depends_on_order,
    name_group_axes,
    over_whole_axes,
)
from ..ir.instructions import has_instructions


@dataclass(frozen=True)
class FormReduceScatter(Pass):
    """Forms a reduce_scatter from an all_reduce and a slice of the device's own block."""

    name = "shmap-form-reduce-scatter"
    code = "SHM-P07"
    keeps_bits = True
    needs_body_form = True

    def run(self, module: ModuleOp) -> bool:
        reductions = over_whole_axes(module, ALL_REDUCE)
        sliced = [(op, axes, found) for op, axes in reductions if (found := slices_of(op))]
        if not sliced:
            return False
        form = read_body_form(module)
        if form.is_partly_manual:
            return False
        for op, axes, slices in sliced:
            if any(map(has_instructions, (op, *slices))):
                continue
            if _all_uses_are(op, slices) and form.mesh.product(axes) > 1:
                _rewrite(op, slices, axes, form)
        return True


def _all_uses_are(op: ir.Operation, slices: Sequence[ir.Operation]) -> bool:
    """In another block, such as a loop's, the slices may run more often or not at all."""
    in_block = all(slice_.block == op.block for slice_ in slices)
    return in_block and len(slices) == len(list(op.results[0].uses))


def _rewrite(
    op: ir.Operation, slices: Sequence[ir.Operation], axes: Sequence[str], form: BodyForm
) -> None:
    orders = [axes] if depends_on_order(op) else itertools.permutations(axes)
    found = _scatter(slices, orders, form)
    if found is None:
        return
    dimension, order = found
    with ir.InsertionPoint(op), op.location:
        scatter = ir.Operation.create(
            REDUCE_SCATTER,
            results=[slices[0].results[0].type],
            operands=list(op.operands),
            attributes={
                "scatter_dimension": ir.IntegerAttr.get(ir.IntegerType.get_signless(64), dimension),
                GROUPS: op.attributes[GROUPS],
            },
            regions=1,
        )
    name_group_axes(scatter, order)
    op.regions[0].blocks[0].append_to(scatter.regions[0])
    for slice_ in slices:
        slice_.results[0].replace_all_uses_with(scatter.results[0])
        slice_.erase()
    op.erase()


def _scatter(
    slices: Sequence[ir.Operation], orders: Iterable[Sequence[str]], form: BodyForm
) -> tuple[int, Sequence[str]] | None:
    """The dimension of which each slice takes the own block, and the order of devices along it."""
    rank = ir.RankedTensorType(slices[0].operands[0].type).rank
    for dimension, order in itertools.product(range(rank), orders):
        if all(takes_own_block(slice_, dimension, order, form) for slice_ in slices):
            return dimension, order
    return None
