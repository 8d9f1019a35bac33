"""What is computed from gathered rows, up to sums over devices and sums over the rows."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod

from jaxlib.mlir import ir

from ...ir.body_form import BodyForm
from ...ir.collective_ops import ALL_GATHER, REDUCE_SCATTER
from ...ir.dataflow import Dataflow, Node
from ...ir.ops import defining_op
from ...ir.types import Value, shape_of
from .cuts import Cut
from .products import DOT, Product
from .row_results import (
    are_scattered,
    has_rows_once,
    is_computed_again,
    result_of_rows,
    sums_rows,
)
from .row_sums import REDUCE, reduced_dimensions
from .row_ways import Way
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
      others: cuts of arrays without rows, of which an operation reads as many, such as masks.
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
    others: dict[Value, Cut]
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


def row_block(
    gathers: Sequence[ir.Operation],
    axes: tuple[str, ...],
    way: Way,
    flow: Dataflow,
    form: BodyForm,
    *,
    takes_others: bool = False,
) -> RowBlock | None:
    """What is computed from some gathers if their rows are cut in a way, up to sums.

    None if nothing of it is scattered, or anything else reads rows.

    Args:
      gathers: over the same axes, in program order.
      flow: of their block.
      takes_others: whether chunks of other arrays can be taken.
    """
    count = form.mesh.product(axes)
    cuts = {each.results[0]: way.gathered(each, count) for each in gathers}
    gathered = set(cuts)
    others = dict[Value, Cut]() if takes_others else None
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
            result = result_of_rows(node, read[0], cuts, way, others)
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
    if not scatters:
        return None
    scattered_ops = {op for each in scatters for op in each.ops}
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
        others or {},
        tuple(late),
    )


def _reads(node: Node, values: set[Value]) -> bool:
    """Whether an operation, or one inside of it, has one of some values as an operand."""
    return not (values.isdisjoint(node.operands) and values.isdisjoint(node.inner))
