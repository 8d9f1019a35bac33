"""Finds what is computed from gathered rows, up to sums over devices and sums over the rows.

In the gradient of a block of layers, rows are gathered twice: those of the block, and those of its
cotangent. Weights' gradients are products that sum over the rows of both.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from jaxlib.mlir import ir
from jaxlib.mlir.dialects.builtin import ModuleOp

from ...ir.analyses import analysis
from ...ir.body_form import BodyForm, read_body_form
from ...ir.collective_ops import ALL_GATHER, REDUCE_SCATTER, with_whole_axes
from ...ir.constants import CONSTANT, is_splat
from ...ir.dataflow import Dataflow, Node, dataflows
from ...ir.elementwise import ELEMENTWISE
from ...ir.find_ops import find_ops
from ...ir.ops import defining_op
from ...ir.types import Value, shape_of
from .cuts import MOVING, Cut, cut_of_operand, cut_through
from .products import DOT, Product
from .row_sums import REDUCE, adds_along
from .scatters import ADD, ScatteredProducts, scattered_products


@dataclass(frozen=True)
class RowBlock:
    """Operations on gathered rows, none of whose rows anything else reads.

    Attributes:
      op: the first gather.
      axes: the group, first axis major.
      count: the number of devices in the group.
      size: the rows of a device.
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
    size: int
    gathers: tuple[ir.Operation, ...]
    scatters: tuple[ScatteredProducts, ...]
    sums: tuple[ir.Operation, ...]
    ops: tuple[ir.Operation, ...]
    cuts: dict[Value, Cut]
    late: tuple[ir.Operation, ...]

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


def is_computed_again(op: ir.Operation) -> bool:
    """Whether an operation stores nothing: what reads its result computes it for each chunk."""
    return op.name in ELEMENTWISE or op.name in MOVING


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
        for together, axes in _together(flow):
            count = form.mesh.product(axes)
            each = _found(together, axes, count, flow, form) if count > 1 else None
            if each is not None:
                found.append(each)
    return tuple(found)


def _together(flow: Dataflow) -> list[tuple[list[ir.Operation], tuple[str, ...]]]:
    """The gathers of a block and their axes; those are together whose rows an operation reads.

    Only gathers over the same axes of as many rows are. There are none in a block without what
    each `RowBlock` has.
    """
    if not any(node.name == REDUCE_SCATTER for node in flow.nodes):
        return []
    gathers = with_whole_axes(node.op for node in flow.nodes if node.name == ALL_GATHER)
    if not any(_is_summed(op, flow) for op, _ in gathers):
        return []
    families: list[tuple[list[ir.Operation], tuple[str, ...]]] = []
    for axes, rows in dict.fromkeys((axes, _rows(op)) for op, axes in gathers):
        alike = [op for op, others in gathers if others == axes and _rows(op) == rows]
        joined = _joined(alike, flow) if len(alike) > 1 else [alike]
        families += [(each, axes) for each in joined if any(_is_summed(op, flow) for op in each)]
    return families


def _joined(gathers: Sequence[ir.Operation], flow: Dataflow) -> list[list[ir.Operation]]:
    """The gathers by family: those whose rows an operation reads are in one."""
    families = {gather.results[0]: [gather] for gather in gathers}
    cuts = {gather.results[0]: Cut(_dimension(gather), _rows(gather)) for gather in gathers}
    todo = sorted({user.number for value in cuts for user in flow.users(value)})
    while todo:
        node = flow.nodes[heapq.heappop(todo)]
        if todo and todo[0] == node.number:
            continue  # It reads several.
        read = [(k, value) for k, value in enumerate(node.operands) if value in cuts]
        if not read:
            continue  # What is in its regions does.
        family = families[read[0][1]]
        for _, value in read[1:]:
            other = families[value]
            if other is not family:
                family += other
                families.update((each, family) for each in families if families[each] is other)
        for number, value in read:
            through = cut_through(node.op, number, cuts[value])
            if through is not None:
                cuts[node.result], families[node.result] = through, family
                for user in flow.users(node.result):
                    heapq.heappush(todo, user.number)
                break
    joined = [families[gather.results[0]] for gather in gathers]
    distinct = {id(family): family for family in joined}.values()
    return [[gather for gather in gathers if gather in family] for family in distinct]


def _is_summed(gather: ir.Operation, flow: Dataflow) -> bool:
    """Whether a product sums over the rows of a gather."""
    dimension, result = _dimension(gather), gather.results[0]
    return any(
        node.operands[side] == result and dimension in Product.of(node.op).contracted[side]
        for node in flow.users(result)
        if node.name == DOT
        for side in (0, 1)
    )


def _rows(gather: ir.Operation) -> int:
    return shape_of(gather.results[0])[_dimension(gather)]


def _dimension(gather: ir.Operation) -> int:
    return ir.IntegerAttr(gather.attributes["all_gather_dim"]).value


def _own(gather: ir.Operation, count: int) -> Cut:
    return Cut(_dimension(gather), _rows(gather) // count, outer=count)


def _found(
    gathers: list[ir.Operation],
    axes: tuple[str, ...],
    count: int,
    flow: Dataflow,
    form: BodyForm,
) -> RowBlock | None:
    cuts = {each.results[0]: _own(each, count) for each in gathers}
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
            if cuts[operands[0]] != scattered.cut:
                return None
            scatters.append(scattered)
        elif _sums_rows(node, cuts):
            sums.append(op)
            ops.append(op)
            needing.update(node.results)
            look_at_readers(node.results)
        else:
            result = _result(node, read[0], cuts, flow)
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
        _rows(gathers[0]) // count,
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


def _sums_rows(node: Node, cuts: dict[Value, Cut]) -> bool:
    """Whether a product sums over the rows of both of its operands, or a sum over those of one."""
    if node.name == REDUCE:
        cut = cuts.get(node.operands[0])
        return cut is not None and adds_along(node.op, cut.dimension)
    if node.name != DOT or not all(value in cuts for value in node.operands):
        return False
    left, right = Product.of(node.op).contracted
    first, second = (cuts[value].dimension for value in node.operands)
    return (first, second) in [*zip(left, right, strict=True)]


def _result(node: Node, number: int, cuts: dict[Value, Cut], flow: Dataflow) -> Cut | None:
    """The cut of what is computed row by row; None if it is not.

    Args:
      number: of an operand that has rows.
    """
    if node.name != DOT and not is_computed_again(node.op):
        return None
    cut = cuts[node.operands[number]]
    result = cut_through(node.op, number, cut)
    if result is None or result.along(cut.dimension) != cut:
        return None  # Rows are not those of a dimension, but of a part of one.
    for k, value in enumerate(node.operands):
        if k == number:
            continue
        if value in cuts:
            if cuts[value] != cut_of_operand(node.op, k, result):
                return None
        else:
            own = cut_of_operand(node.op, k, result)
            if own is not None and not _is_alike(value, own.dimension, flow):
                return None
    return result


def _is_alike(value: Value, dimension: int, flow: Dataflow) -> bool:
    """Whether all elements along a dimension of a value are known to be the same."""
    node = flow.source(value)
    op = defining_op(value) if node is None else node.op
    if op is not None and op.name == CONSTANT:
        return is_splat(op)
    if op is None or op.name != "stablehlo.broadcast_in_dim":
        return False
    dimensions = ir.DenseI64ArrayAttr(op.attributes["broadcast_dimensions"])
    sizes = zip(dimensions, shape_of(op.operands[0]), strict=True)
    return all(size == 1 for along, size in sizes if along == dimension)
