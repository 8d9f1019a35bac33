"""Finds what is computed from gathered rows, up to sums over devices and sums over the rows.

In the gradient of a block of layers, rows are gathered twice: those of the block, and those of its
cotangent. Weights' gradients are products that sum over the rows of both.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import prod

from jaxlib.mlir import ir
from jaxlib.mlir.dialects.builtin import ModuleOp

from ...ir.analyses import analysis
from ...ir.body_form import BodyForm, read_body_form
from ...ir.collective_ops import ALL_GATHER, REDUCE_SCATTER, with_whole_axes
from ...ir.dataflow import Dataflow, Node, dataflows
from ...ir.find_ops import find_ops
from ...ir.ops import Position, defining_op
from ...ir.types import Value, shape_of
from .cuts import Cut
from .products import DOT, Product
from .row_results import (
    are_scattered,
    has_rows_once,
    is_computed_again,
    result_of_rows,
    rows_through,
    sums_rows,
)
from .row_sums import REDUCE, reduced_dimensions
from .row_ways import Way, gathered_dimension, sums_over, ways
from .scatters import ADD, ScatteredProducts, scattered_products


@dataclass(frozen=True)
class RowBlock:
    """Operations on gathered rows, none of whose rows anything else reads.

    Attributes:
      op: the first gather.
      axes: the group, first axis major.
      count: the number of devices in the group.
      way: in which rows are cut.
      gathers: in program order, as all of these.
      scatters: what is summed over devices; each has an operand with rows.
      sums: what sums over the rows: products of two arrays that have them, and sums of one.
      ops: the gathers, what has rows, and the sums; not what is computed to be scattered.
      cuts: of every value that has rows.
      late: what needs sums, before the last of `ops` or the last scatter.
    """

    op: ir.Operation
    axes: tuple[str, ...]
    count: int
    way: Way
    gathers: tuple[ir.Operation, ...]
    scatters: tuple[ScatteredProducts, ...]
    sums: tuple[ir.Operation, ...]
    ops: tuple[ir.Operation, ...]
    cuts: dict[Value, Cut]
    late: tuple[ir.Operation, ...]

    @property
    def size(self) -> int:
        """How many indices of a device are cut."""
        return self.way.own(self.op).size

    @property
    def rows(self) -> int:
        """How many rows of all devices are added to a sum."""
        op = self.sums[0]
        dimensions = reduced_dimensions(op) if op.name == REDUCE else Product.of(op).contracted[0]
        shape = shape_of(op.operands[0])
        return prod(shape[d] for d in dimensions)

    def scattered_cut(self, scattered: ScatteredProducts) -> Cut:
        """The cut of what a device has of a sum."""
        return self.way.scattered(scattered.cut) or self.cuts[scattered.summed]

    @property
    def all_ops(self) -> tuple[ir.Operation, ...]:
        """With what is scattered."""
        scattered = [op for each in self.scatters for op in (*each.ops, each.op)]
        return (*self.ops, *scattered)

    @property
    def touched(self) -> tuple[ir.Operation, ...]:
        return (*self.all_ops, *self.late)

    @property
    def products(self) -> tuple[Product, ...]:
        return tuple(Product.of(op) for op in self.ops if op.name == DOT)

    def sources(self, value: Value) -> set[Value]:
        """The values with rows from which one is computed again where it is needed."""
        found: set[Value] = set()
        seen = {value}
        pending = [value]
        while pending:
            value = pending.pop()
            op = defining_op(value)
            if op is None or not is_computed_again(op):
                found.add(value)
                continue
            more = {operand for operand in op.operands if operand in self.cuts} - seen
            seen |= more
            pending += more
        return found


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
                each = _found(family, axes, way, flow, form)
            if each is not None:
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


def _is_summed(gather: ir.Operation, flow: Dataflow) -> bool:
    """Whether a product sums over the rows of a gather."""
    return any(True for _ in sums_over(gather, flow))


def _rows(gather: ir.Operation) -> int:
    return shape_of(gather.results[0])[gathered_dimension(gather)]


def _found(
    gathers: list[ir.Operation],
    axes: tuple[str, ...],
    way: Way,
    flow: Dataflow,
    form: BodyForm,
) -> RowBlock | None:
    count = form.mesh.product(axes)
    cuts = {each.results[0]: way.gathered(each, count) for each in gathers}
    gathered = set(cuts)
    ops: list[ir.Operation] = []
    sums: list[ir.Operation] = []
    scatters: list[ScatteredProducts] = []
    late: list[ir.Operation] = []
    needing: set[Value] = set()
    pending: list[ir.Operation] = []
    unread = sum(len(flow.users(value)) for value in gathered)
    todo = [flow.node(each).number for each in gathers]  # first in program order
    seen = {*todo}

    def look_at_readers(values: Iterable[Value]) -> None:
        for number in {user.number for value in values for user in flow.users(value)} - seen:
            seen.add(number)
            heapq.heappush(todo, number)

    while todo:
        node = flow.nodes[heapq.heappop(todo)]
        op, operands = node.op, node.operands
        if needing and _reads(node, needing):
            needing.update(node.results)
            look_at_readers(node.results)
            pending.append(op)
        read = [number for number, value in enumerate(operands) if value in cuts]
        unread -= len(read)
        is_gather = node.name == ALL_GATHER and op in gathers
        if is_gather or read:
            if op in pending:
                return None
            late += pending
            pending = []
        if is_gather:
            ops.append(op)
            look_at_readers(node.results)
        elif not read:
            continue
        elif node.name == REDUCE_SCATTER:
            scattered = next(scattered_products([op], form), None)
            if scattered is None or scattered.axes != axes:
                return None
            if any(each.name != ADD for each in scattered.chain):
                return None
            if not are_scattered(cuts[operands[0]], scattered, way):
                return None
            if not has_rows_once(scattered, cuts):
                return None
            scatters.append(scattered)
        elif sums_rows(node, cuts):
            sums.append(op)
            ops.append(op)
            needing.update(node.results)
            look_at_readers(node.results)
        else:
            result = result_of_rows(node, read[0], cuts, way, flow)
            if result is None:
                return None
            ops.append(op)
            cuts[node.result] = result
            unread += len(flow.users(node.result))
            look_at_readers(node.results)
        if not unread:
            break
    if unread:  # by operations inside of others
        return None
    scattered_ops = {op for each in scatters for op in each.ops}
    if not scatters or not any(value in gathered for op in sums for value in op.operands):
        return None
    return RowBlock(
        gathers[0],
        axes,
        count,
        way,
        tuple(gathers),
        tuple(scatters),
        tuple(sums),
        tuple(op for op in ops if op not in scattered_ops),
        cuts,
        tuple(late),
    )


def _reads(node: Node, values: set[Value]) -> bool:
    """Whether an operation, or one inside of it, has one of some values as an operand."""
    return not (values.isdisjoint(node.operands) and values.isdisjoint(node.inner))
