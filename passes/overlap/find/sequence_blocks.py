"""Finds attention between a gather and the reduce_scatter of what is computed of it.

Each sequence goes through all of it by itself: its products, its scores and its sum.
"""

from __future__ import annotations

from jaxlib.mlir import ir
from jaxlib.mlir.dialects.builtin import ModuleOp

from ...ir.analyses import analysis
from ...ir.body_form import BodyForm, read_body_form
from ...ir.collective_ops import ALL_GATHER, REDUCE_SCATTER, with_whole_axes
from ...ir.dataflow import Dataflow, dataflows
from ...ir.find_ops import find_ops
from .products import DOT, Product
from .row_block import RowBlock, row_block
from .row_ways import ways_of_sequences


@analysis
def sequence_blocks_of(module: ModuleOp) -> tuple[RowBlock, ...]:
    """The blocks of a module in body form, in program order.

    They have one gather and one reduce_scatter, a product of two arrays with sequences, and nothing
    that adds over sequences.
    """
    form, flows = read_body_form(module), dataflows(module)
    ops = find_ops(module.operation, [ALL_GATHER, REDUCE_SCATTER])
    scattering = {op.block for op in ops if op.name == REDUCE_SCATTER}
    gathers = [op for op in ops if op.name == ALL_GATHER and op.block in scattering]
    attending = {
        block for block in dict.fromkeys(op.block for op in gathers) if _attends(flows.of(block))
    }
    found = (
        _found(op, axes, flows.of(op.block), form)
        for op, axes in with_whole_axes(gathers)
        if op.block in attending and form.mesh.product(axes) > 1
    )
    return tuple(each for each in found if each is not None)


def _attends(flow: Dataflow) -> bool:
    """Whether there are products with batches, as there are in attention."""
    return any(node.name == DOT and Product.of(node.op).batch[0] for node in flow.nodes)


def _found(
    gather: ir.Operation, axes: tuple[str, ...], flow: Dataflow, form: BodyForm
) -> RowBlock | None:
    """The block of a gather, in the first way in which sequences can be cut."""
    count = form.mesh.product(axes)
    for way in ways_of_sequences(gather, count, flow):
        block = row_block([gather], axes, way, flow, form, takes_others=True)
        if block is None or block.sums or len(block.scatters) > 1:
            continue
        if any(_multiplies_rows(op, block) for op in block.ops if op.name == DOT):
            return block
    return None


def _multiplies_rows(product: ir.Operation, block: RowBlock) -> bool:
    """Whether both operands of a product have sequences."""
    return all(operand in block.cuts for operand in product.operands)
