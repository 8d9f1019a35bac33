"""Finds gradients of blocks of layers, which are sums over gathered rows.

In the gradient of a block of layers, rows are gathered twice: those of the block, and those of its
cotangent. Weights' gradients are products that sum over the rows of both.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterator, Sequence

from jaxlib.mlir import ir
from jaxlib.mlir.dialects.builtin import ModuleOp

from ...ir.analyses import analysis
from ...ir.body_form import BodyForm, read_body_form
from ...ir.collective_ops import ALL_GATHER, REDUCE_SCATTER, with_whole_axes
from ...ir.dataflow import Dataflow, dataflows
from ...ir.find_ops import find_ops
from ...ir.ops import Position
from ...ir.types import shape_of
from .row_block import RowBlock, row_block
from .row_results import rows_through
from .row_ways import Way, gathered_dimension, sums_over, ways


@analysis
def row_blocks_of(module: ModuleOp) -> tuple[RowBlock, ...]:
    """The blocks of a module in body form, in program order.

    They have a gathered array that is summed over its rows, and a sum that is scattered.
    """
    form, flows = read_body_form(module), dataflows(module)
    ops = find_ops(module.operation, [ALL_GATHER, REDUCE_SCATTER])
    scattering = {op.block for op in ops if op.name == REDUCE_SCATTER}
    gathers = with_whole_axes(op for op in ops if op.name == ALL_GATHER)
    found: list[RowBlock] = []
    for block in dict.fromkeys(op.block for op, _ in gathers if op.block in scattering):
        flow = flows.of(block)
        here = [_found_in(alike, axes, flow, form) for alike, axes in _alike(flow)]
        found += sorted(itertools.chain(*here), key=lambda each: Position(each.op))
    return tuple(found)


def _alike(flow: Dataflow) -> list[tuple[list[ir.Operation], tuple[str, ...]]]:
    """The gathers of a block by their axes and the number of rows, and the axes.

    There are none in a block without what each `RowBlock` has.
    """
    gathers = with_whole_axes(node.op for node in flow.nodes if node.name == ALL_GATHER)
    if not any(_is_summed(op, flow) for op, _ in gathers):
        return []
    families = dict.fromkeys((axes, _rows(op)) for op, axes in gathers)
    return [
        ([op for op, others in gathers if (others, _rows(op)) == (axes, rows)], axes)
        for axes, rows in families
    ]


def _found_in(
    gathers: list[ir.Operation], axes: tuple[str, ...], flow: Dataflow, form: BodyForm
) -> Iterator[RowBlock]:
    """The blocks of some gathers of as many rows, each in the first way that does."""
    count = form.mesh.product(axes)
    if count < 2 or not any(_is_summed(op, flow) for op in gathers):
        return
    for way in ways(gathers, count, flow):
        for family in _joined(gathers, way, count, flow):
            each = None
            if any(_is_summed(op, flow) for op in family):
                each = row_block(family, axes, way, flow, form)
            if each is not None and _adds_gathered(each):
                yield each
                gathers = [op for op in gathers if op not in family]
        if not any(_is_summed(op, flow) for op in gathers):
            return


def _joined(
    gathers: Sequence[ir.Operation], way: Way, count: int, flow: Dataflow
) -> list[list[ir.Operation]]:
    """The gathers by family: those whose rows an operation reads are in one."""
    if len(gathers) == 1:
        return [list(gathers)]
    cuts = {gather.results[0]: way.gathered(gather, count) for gather in gathers}
    families = {value: number for number, value in enumerate(cuts)}  # each that of a gather
    joined = [*range(len(gathers))]  # to which family each was joined

    def first(family: int) -> int:
        while joined[family] != family:
            family = joined[family]
        return family

    todo = sorted({user.number for value in cuts for user in flow.users(value)})
    while todo:
        node = flow.nodes[heapq.heappop(todo)]
        if todo and todo[0] == node.number:
            continue  # It reads several.
        read = [(k, value) for k, value in enumerate(node.operands) if value in cuts]
        if not read:
            continue  # What is in its regions does.
        first_of_all = min(first(families[value]) for _, value in read)
        for _, value in read:
            joined[first(families[value])] = first_of_all
        for number, value in read:
            cut = rows_through(node, number, cuts[value])
            if cut is not None:
                cuts[node.result], families[node.result] = cut, first_of_all
                for user in flow.users(node.result):
                    heapq.heappush(todo, user.number)
                break
    found: dict[int, list[ir.Operation]] = {}
    for number, gather in enumerate(gathers):
        found.setdefault(first(number), []).append(gather)
    return [*found.values()]


def _adds_gathered(block: RowBlock) -> bool:
    """Whether a sum over the rows has an operand that is gathered."""
    gathered = {gather.results[0] for gather in block.gathers}
    return any(value in gathered for op in block.sums for value in op.operands)


def _is_summed(gather: ir.Operation, flow: Dataflow) -> bool:
    """Whether a product sums over the rows of a gather."""
    return any(True for _ in sums_over(gather, flow))


def _rows(gather: ir.Operation) -> int:
    return shape_of(gather.results[0])[gathered_dimension(gather)]
