"""Finds what is computed from gathered rows, up to sums over devices and sums over the rows.

In the gradient of a block of layers, rows are gathered twice: those of the block, and those of its
cotangent. Weights' gradients are products that sum over the rows of both.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from jaxlib.mlir import ir

from ..ir.body_form import BodyForm
from ..ir.collective_ops import ALL_GATHER, REDUCE_SCATTER, with_whole_axes
from ..ir.elementwise import ELEMENTWISE
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


def row_blocks(ops: Sequence[ir.Operation], form: BodyForm) -> Iterator[RowBlock]:
    """The blocks that begin with some all_gathers.

    They have a gathered array that is summed over its rows, and a sum that is scattered. Each is
    looked for when it is asked for, so those before may be rewritten.
    """
    todo = with_whole_axes(ops)
    while todo:
        op, axes = todo[0]
        gathers = _together(op, axes)
        todo = [each for each in todo if each[0] not in gathers]  # rewriting erases them
        count = form.mesh.product(axes)
        found = _found(gathers, axes, count, form) if gathers[0] == op and count > 1 else None
        if found is not None:
            yield found


def _together(op: ir.Operation, axes: tuple[str, ...]) -> list[ir.Operation]:
    """The gathers of as many rows whose rows some operation reads together with those of `op`."""
    block = [each.operation for each in op.block.operations]
    gathers = [
        each
        for each, others in with_whole_axes(each for each in block if each.name == ALL_GATHER)
        if others == axes and _rows(each) == _rows(op)
    ]
    reached = {each: _reached(each, block) for each in gathers}
    found, before = {op}, 0
    while len(found) > before:
        before = len(found)
        ops = set[ir.Operation]().union(*(reached[each] for each in found))
        found |= {each for each in gathers if reached[each] & ops}
    return [each for each in gathers if each in found]


def _rows(gather: ir.Operation) -> int:
    return shape_of(gather.results[0])[_dimension(gather)]


def _dimension(gather: ir.Operation) -> int:
    return ir.IntegerAttr(gather.attributes["all_gather_dim"]).value


def _own(gather: ir.Operation, count: int) -> Cut:
    return Cut(_dimension(gather), _rows(gather) // count, outer=count)


def _reached(gather: ir.Operation, block: Sequence[ir.Operation]) -> set[ir.Operation]:
    """The operations that read rows of a gather."""
    cuts = {gather.results[0]: Cut(_dimension(gather), _rows(gather))}
    found: set[ir.Operation] = set()
    for op in block:
        number = next((k for k, value in enumerate(op.operands) if value in cuts), None)
        if number is not None:
            found.add(op)
            through = cut_through(op, number, cuts[op.operands[number]])
            if through is not None:
                cuts[op.results[0]] = through
    return found


def _found(
    gathers: list[ir.Operation], axes: tuple[str, ...], count: int, form: BodyForm
) -> RowBlock | None:
    cuts = {each.results[0]: _own(each, count) for each in gathers}
    ops: list[ir.Operation] = []
    sums: list[ir.Operation] = []
    scatters: list[ScatteredProduct] = []
    late: list[ir.Operation] = []
    needing: set[Value] = set()
    pending: list[ir.Operation] = []
    for each in gathers[0].block.operations:
        op = each.operation
        if any(value in needing for inner in walk(op) for value in inner.operands):
            needing.update(op.results)
            pending.append(op)
        if op in gathers or any(value in cuts for value in op.operands):
            if op in pending:
                return None
            late += pending
            pending = []
        if op in gathers:
            ops.append(op)
        elif not any(value in cuts for value in op.operands):
            continue
        elif op.name == REDUCE_SCATTER:
            scattered = next(scattered_products([op], form), None)
            if scattered is None or scattered.chain or scattered.axes != axes:
                return None
            if cuts[op.operands[0]] != scattered.cut:
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
    scattered_ops = {each.product.op for each in scatters}
    used = [use.owner.operation for value in cuts for use in value.uses]
    gathered = {each.results[0] for each in gathers}
    if not scatters or not any(value in gathered for op in sums for value in op.operands):
        return None
    if any(user.block != gathers[0].block for user in used):
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
