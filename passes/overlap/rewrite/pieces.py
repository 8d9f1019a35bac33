"""Takes pieces of values, computes operations on pieces, and joins pieces.

Everything here is built at the current insertion point and location.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from ...ir import build
from ...ir.constants import CONSTANT, with_type
from ...ir.ops import defining_op
from ...ir.slices import put_at, scalar
from ...ir.types import Value, element_of, shape_of, tensor
from ..find.alike import BROADCAST, alike_if, is_alike
from ..find.cuts import SLICE, Cut, cut_of_operand

Take = Callable[[Value, Cut], Value]
"""Takes the piece of a value that is cut."""


def piece_type(value: Value, cut: Cut, size: int) -> ir.RankedTensorType:
    """The type of a piece of which `size` indices are those that are cut."""
    shape = shape_of(value)
    shape[cut.dimension] = cut.outer * size * cut.inner
    return tensor(shape, element_of(value))


def adding_type(element: ir.Type) -> ir.Type:
    """The type in which numbers of a type are added up: f32 for shorter ones."""
    is_short = isinstance(element, ir.BF16Type | ir.F16Type)
    return ir.F32Type.get() if is_short else element


def no_rows(value: Value, cut: Cut) -> Value:
    """A `Take` where pieces of all operands are known."""
    raise AssertionError(f"{value} has no rows in chunks along dimension {cut.dimension}")


def constant_like(value: Value, number: int) -> Value:
    """An integer of the type of a value."""
    type_ = ir.RankedTensorType(value.type)
    attribute = ir.IntegerAttr.get(type_.element_type, number)
    return build.constant(ir.DenseElementsAttr.get_splat(type_, attribute))


def take(value: Value, cut: Cut, start: int, size: int) -> Value:
    """Indices `start` to `start + size` of those that are cut."""
    if size == cut.size:
        return value
    if cut.outer == 1:
        return _slice(value, cut.dimension, start * cut.inner, size * cut.inner)
    apart = _apart(value, cut, cut.size)
    piece = _slice(apart, cut.dimension + 1, start * cut.inner, size * cut.inner)
    return build.reshape(piece_type(value, cut, size), piece)


def _slice(value: Value, dimension: int, start: int, size: int) -> Value:
    shape = shape_of(value)
    starts = [0] * len(shape)
    starts[dimension] = start
    ends = list(shape)
    ends[dimension] = start + size
    return build.slice_(value, starts, ends)


def join(pieces: Sequence[Value], cut: Cut, type_: ir.Type, buffer: Value | None) -> Value:
    """The value whose pieces, of equal sizes, are given in order.

    Args:
      pieces: at least one.
      cut: that of the value.
      type_: that of the value.
      buffer: what the pieces are put in; None to concatenate them.
    """
    if len(pieces) == 1:
        return pieces[0]
    dimension, size = cut.dimension + (cut.outer > 1), cut.size // len(pieces)
    parts = [_apart(piece, cut, size) for piece in pieces]
    if buffer is None:
        joined: Value = build.concatenate(parts, dimension)
    else:
        joined = _apart(buffer, cut, cut.size)
        for number, part in enumerate(parts):
            joined = put_at(joined, part, dimension, scalar(number * size * cut.inner))
    return build.reshape(type_, joined) if cut.outer > 1 else joined


def put(buffer: Value, piece: Value, cut: Cut, start: int, size: int) -> Value:
    """A value with a piece in the place of its indices `start` to `start + size` that are cut.

    Args:
      cut: that of the value.
    """
    dimension = cut.dimension + (cut.outer > 1)
    whole, part = _apart(buffer, cut, cut.size), _apart(piece, cut, size)
    written = put_at(whole, part, dimension, scalar(start * cut.inner))
    return build.reshape(buffer.type, written) if cut.outer > 1 else written


def _apart(value: Value, cut: Cut, size: int) -> Value:
    """A value, or a piece of it, with the dimension that is cut in two, if it is not contiguous."""
    if cut.outer == 1:
        return value
    shape = shape_of(value)
    shape[cut.dimension : cut.dimension + 1] = [cut.outer, size * cut.inner]
    return build.reshape(tensor(shape, element_of(value)), value)


def empty(type_: ir.Type, how: str) -> Value:
    """A buffer every element of which is written before it is read."""
    if how == "allocate":
        call = ir.Operation.create(
            "stablehlo.custom_call",
            results=[type_],
            attributes={"call_target_name": ir.StringAttr.get("AllocateBuffer")},
        )
        return call.results[0]
    return splat(ir.RankedTensorType(type_))


def splat(type_: ir.RankedTensorType) -> Value:
    """Zeros."""
    element = type_.element_type
    if isinstance(element, ir.ComplexType):
        zero = build.constant(
            ir.DenseElementsAttr.get_splat(
                tensor([], element.element_type), ir.FloatAttr.get(element.element_type, 0.0)
            )
        )
        return broadcast(stablehlo.complex(zero, zero), type_)
    attribute = (
        ir.FloatAttr.get(element, 0.0)
        if isinstance(element, ir.FloatType)
        else ir.IntegerAttr.get(element, 0)
    )
    constant = build.constant(ir.DenseElementsAttr.get_splat(tensor([], element), attribute))
    return broadcast(constant, type_)


def broadcast(value: Value, type_: ir.Type) -> Value:
    """A scalar at every place."""
    return build.broadcast_in_dim(type_, value, [])


def barrier(*values: Value) -> list[Value]:
    """The values, none of which is used before all are there."""
    types = [value.type for value in values]
    op = ir.Operation.create("stablehlo.optimization_barrier", types, values)
    return list(op.results)


def compute(
    ops: Iterable[ir.Operation],
    pieces: Mapping[Value, Value],
    cuts: Mapping[Value, Cut],
    size: int,
    take_piece: Take,
    element: ir.Type | None = None,
) -> dict[Value, Value]:
    """Computes operations with one result each on pieces.

    Args:
      ops: in program order.
      pieces: by the value that they are pieces of.
      cuts: of the results of `ops`.
      size: how many of the indices that are cut a piece has.
      take_piece: for operands that are not computed in pieces.
      element: the element type of all results, if it is another than that of the operations.

    Returns:
      `pieces`, and those of the results.
    """
    known = dict(pieces)
    built = dict[tuple[Value, Cut], Value]()
    for op in ops:
        result = op.results[0]
        cut = cuts[result]
        operands = [
            known[operand]
            if operand in known
            else _operand(op, number, cut, size, take_piece, built)
            for number, operand in enumerate(op.operands)
        ]
        type_ = piece_type(result, cut, size)
        if element is not None:
            type_ = tensor(type_.shape, element)
        known[result] = build.like(op, type_, operands)
        if op.name == SLICE:
            _take_all(known[result], cut.dimension)
    return known


def _take_all(sliced: Value, dimension: int) -> None:
    """Has a slice of a piece take all of its indices along a dimension."""
    op = ir.OpResult(sliced).owner.operation
    ends = list(ir.DenseI64ArrayAttr(op.attributes["limit_indices"]))
    ends[dimension] = shape_of(op.operands[0])[dimension]
    op.attributes["limit_indices"] = ir.DenseI64ArrayAttr.get(ends)


def _operand(
    op: ir.Operation,
    number: int,
    result_cut: Cut,
    size: int,
    take_piece: Take,
    built: dict[tuple[Value, Cut], Value],
) -> Value:
    """An operand that is not computed in pieces, or the piece of it that the op needs."""
    operand = op.operands[number]
    cut = cut_of_operand(op, number, result_cut)
    if cut is None:
        return operand
    if is_alike(operand, cut.dimension):
        return _smaller(operand, cut, size, built)
    return take_piece(operand, cut)


def _smaller(value: Value, cut: Cut, size: int, built: dict[tuple[Value, Cut], Value]) -> Value:
    """A piece of a value that is the same along the dimension that is cut.

    Args:
      built: such pieces of what is computed, by value and cut, to which others are added. Constants
        and scalars that are broadcast have a piece for each use.
    """
    todo: list[tuple[Value, Cut | None, bool]] = [(value, cut, False)]
    pieces: list[Value] = []  # of operands, in order, of what is to be built
    while todo:
        value, own, has_operands = todo.pop()
        if own is None:
            pieces.append(value)
            continue
        if (value, own) in built:
            pieces.append(built[value, own])
            continue
        op = defining_op(value)
        assert op is not None, "arguments are not known to be alike"
        needed = alike_if(op, own.dimension)
        assert needed is not None, "what is alike is computed from what is"
        if not has_operands:
            cuts = {operand: own.along(dimension) for operand, dimension in needed}
            todo.append((value, own, True))
            todo += [(operand, cuts.get(operand), False) for operand in reversed(op.operands)]
            continue
        first = len(pieces) - len(op.operands)
        pieces[first:] = [_like(op, piece_type(value, own, size), pieces[first:])]
        if needed:
            built[value, own] = pieces[-1]
    return pieces[0]


def _like(op: ir.Operation, type_: ir.Type, operands: Sequence[Value]) -> Value:
    """What an operation computes whose result is alike, with another size."""
    if op.name == CONSTANT:
        return with_type(op, type_)
    if op.name == BROADCAST:
        dimensions = ir.DenseI64ArrayAttr(op.attributes["broadcast_dimensions"])
        return build.broadcast_in_dim(type_, operands[0], list(dimensions))
    return build.like(op, type_, operands)
