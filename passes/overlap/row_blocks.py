"""Finds what is computed from gathered rows, up to sums over devices and sums over the rows.

In the gradient of a block of layers, rows are gathered twice: those of the block, and those of its
cotangent. Weights' gradients are products that sum over the rows of both.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from jaxlib.mlir import ir
from jaxlib.mlir.dialects.builtin import ModuleOp

from ..ir.analyses import analysis
from ..ir.body_form import BodyForm, read_body_form
from ..ir.collective_ops import ALL_GATHER, REDUCE_SCATTER, with_whole_axes
from ..ir.elementwise import ELEMENTWISE
from ..ir.find_ops import find_ops
from ..ir.ops import defining_op, walk
from ..ir.types import Value, shape_of
from .cuts import Cut, cut_of_operand, cut_through
from .products import DOT, Product
from .scatters import ScatteredProduct, scattered_products


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
      sums: the products that sum over the rows; both operands have them.
      ops: the gathers, what has rows, and the sums; not the products that are scattered.
      cuts: of every value that has rows.
      late: what needs sums, before the last of `ops` or the last scatter.
    """

    op: ir.Operation
    axes: tuple[str, ...]
    count: int
    size: int
    gathers: tuple[ir.Operation, ...]
    scatters: tuple[ScatteredProduct, ...]
    sums: tuple[ir.Operation, ...]
    ops: tuple[ir.Operation, ...]
    cuts: dict[Value, Cut]
    late: tuple[ir.Operation, ...]

    @property
    def products(self) -> tuple[Product, ...]:
        return tuple(Product.of(op) for op in self.ops if op.name == DOT)

    def sources(self, value: Value) -> set[Value]:
        """The values with rows that are not computed element by element, from which one is."""
        found: set[Value] = set()
        seen = {value}
        pending = [value]
        while pending:
            value = pending.pop()
            op = defining_op(value)
            if op is None or op.name not in ELEMENTWISE:
                found.add(value)
                continue
            more = {operand for operand in op.operands if operand in self.cuts} - seen
            seen |= more
            pending += more
        return found


def row_blocks(ops: Sequence[ir.Operation], form: BodyForm) -> Iterator[RowBlock]:
    """The blocks that begin with some all_gathers.

    They have a gathered array that is summed over its rows, and a sum that is scattered. Each is
    looked for when it is asked for, so those before may be rewritten.
    """
    firsts = [op for op, _ in with_whole_axes(ops)]
    for block in dict.fromkeys(op.block for op in firsts):
        for gathers, axes in _together(block):
            count = form.mesh.product(axes)
            if count > 1 and gathers[0] in firsts and any(map(_is_summed, gathers)):
                found = _found(gathers, axes, count, form)
                if found is not None:
                    yield found


@analysis
def row_blocks_of(module: ModuleOp) -> tuple[RowBlock, ...]:
    """All of a module in body form."""
    gathers = find_ops(module.operation, [ALL_GATHER])
    return tuple(row_blocks(gathers, read_body_form(module)))


def _together(block: ir.Block) -> list[tuple[list[ir.Operation], tuple[str, ...]]]:
    """The gathers of a block and their axes; those are together whose rows an operation reads.

    Only gathers over the same axes of as many rows are. There are none in a block without what
    each `RowBlock` has.
    """
    ops = [each.operation for each in block.operations]
    gathers = with_whole_axes(op for op in ops if op.name == ALL_GATHER)
    if not any(_is_summed(op) for op, _ in gathers):
        return []
    if not any(op.name == REDUCE_SCATTER for op in ops):
        return []
    families: list[tuple[list[ir.Operation], tuple[str, ...]]] = []
    for axes, rows in dict.fromkeys((axes, _rows(op)) for op, axes in gathers):
        alike = [op for op, others in gathers if others == axes and _rows(op) == rows]
        families += [(family, axes) for family in _joined(alike, ops)]
    return families


def _joined(
    gathers: Sequence[ir.Operation], ops: Sequence[ir.Operation]
) -> list[list[ir.Operation]]:
    """The gathers by family: those whose rows an operation reads are in one."""
    families = {gather.results[0]: [gather] for gather in gathers}
    cuts = {gather.results[0]: Cut(_dimension(gather), _rows(gather)) for gather in gathers}
    for op in ops:
        read = [(k, value) for k, value in enumerate(op.operands) if value in cuts]
        if not read:
            continue
        family = families[read[0][1]]
        for _, value in read[1:]:
            other = families[value]
            if other is not family:
                family += other
                families.update((each, family) for each in families if families[each] is other)
        through = next(filter(None, (cut_through(op, k, cuts[value]) for k, value in read)), None)
        if through is not None:
            cuts[op.results[0]], families[op.results[0]] = through, family
    joined = [families[gather.results[0]] for gather in gathers]
    distinct = {id(family): family for family in joined}.values()
    return [[gather for gather in gathers if gather in family] for family in distinct]


def _is_summed(gather: ir.Operation) -> bool:
    """Whether a product sums over the rows of a gather."""
    dimension = _dimension(gather)
    return any(
        use.owner.name == DOT
        and Product.of(use.owner.operation).role(use.operand_number, dimension) == "contracted"
        for use in gather.results[0].uses
    )


def _rows(gather: ir.Operation) -> int:
    return shape_of(gather.results[0])[_dimension(gather)]


def _dimension(gather: ir.Operation) -> int:
    return ir.IntegerAttr(gather.attributes["all_gather_dim"]).value


def _own(gather: ir.Operation, count: int) -> Cut:
    return Cut(_dimension(gather), _rows(gather) // count, outer=count)


def _found(
    gathers: list[ir.Operation], axes: tuple[str, ...], count: int, form: BodyForm
) -> RowBlock | None:
    cuts = {each.results[0]: _own(each, count) for each in gathers}
    gathered = set(cuts)
    ops: list[ir.Operation] = []
    sums: list[ir.Operation] = []
    scatters: list[ScatteredProduct] = []
    late: list[ir.Operation] = []
    needing: set[Value] = set()
    pending: list[ir.Operation] = []
    unread = sum(map(_uses, gathered))
    for each in gathers[0].block.operations:
        op, operands = each.operation, list(each.operands)
        if needing and _reads(op, operands, needing):
            needing.update(op.results)
            pending.append(op)
        read = sum(value in cuts for value in operands)
        unread -= read
        if op in gathers or read:
            if op in pending:
                return None
            late += pending
            pending = []
        if op in gathers:
            ops.append(op)
        elif not read:
            continue
        elif op.name == REDUCE_SCATTER:
            scattered = next(scattered_products([op], form), None)
            if scattered is None or scattered.chain or scattered.axes != axes:
                return None
            if cuts[operands[0]] != scattered.cut:
                return None
            scatters.append(scattered)
        elif _sums_rows(op, cuts):
            sums.append(op)
            ops.append(op)
            needing.update(op.results)
        else:
            result = _result(op, cuts)
            if result is None:
                return None
            ops.append(op)
            cuts[op.results[0]] = result
            unread += _uses(op.results[0])
        if not unread:
            break
    if unread:  # by operations inside of others
        return None
    scattered_ops = {each.product.op for each in scatters}
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


def _uses(value: Value) -> int:
    return sum(1 for _ in value.uses)


def _reads(op: ir.Operation, operands: Sequence[Value], values: set[Value]) -> bool:
    """Whether an operation, or one inside of it, has one of some values as an operand."""
    if any(value in values for value in operands):
        return True
    inside = walk(op)[1:] if len(op.regions) else []
    return any(value in values for each in inside for value in each.operands)


def _sums_rows(op: ir.Operation, cuts: dict[Value, Cut]) -> bool:
    """Whether a product sums over the rows of both of its operands."""
    if op.name != DOT or not all(value in cuts for value in op.operands):
        return False
    left, right = Product.of(op).contracted
    first, second = (cuts[value].dimension for value in op.operands)
    return (first, second) in [*zip(left, right, strict=True)]


def _result(op: ir.Operation, cuts: dict[Value, Cut]) -> Cut | None:
    """The cut of what is computed row by row; None if it is not."""
    if op.name != DOT and op.name not in ELEMENTWISE:
        return None
    number = next(k for k, value in enumerate(op.operands) if value in cuts)
    result = cut_through(op, number, cuts[op.operands[number]])
    if result is None:
        return None
    for k, value in enumerate(op.operands):
        cut = cut_of_operand(op, k, result)
        if value in cuts:
            if cuts[value] != cut:
                return None
        elif cut is not None and not _is_alike(value):
            return None
    return result


def _is_alike(value: Value) -> bool:
    """Whether all elements of a value are known to be the same."""
    op = defining_op(value)
    if op is not None and op.name == "stablehlo.constant":
        attribute = op.attributes["value"]
        return isinstance(attribute, ir.DenseElementsAttr) and attribute.is_splat
    if op is None or op.name != "stablehlo.broadcast_in_dim":
        return False
    return shape_of(op.operands[0]) == []
