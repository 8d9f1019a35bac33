"""Reads of a stack, one index of which was written before, take what was written.

A loop puts what its steps compute in an array, one index for each step, and another loop, such as
that of the gradient, takes them out again. If both are unrolled, every index is a constant:

Before:  %s0 = stablehlo.dynamic_update_slice %s, %p, %zero
         %s1 = stablehlo.dynamic_update_slice %s0, %q, %one
         %r = stablehlo.dynamic_slice %s1, %zero, sizes = [1, ...]
After:   %p is used for %r. Updates that nothing reads any more are removed.

If every index of an array of zeros is written, it need not be zeros.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from jaxlib.mlir import ir

from ...ir.constants import CONSTANT, integer
from ...ir.elementwise import comparison
from ...ir.ops import defining_op
from ...ir.types import Value, can_hold, shape_of
from ..form import Empty
from .pieces import empty

_UPDATE = "stablehlo.dynamic_update_slice"
_SLICE = "stablehlo.dynamic_slice"
_DEAD = (_UPDATE, _SLICE, "stablehlo.broadcast_in_dim", CONSTANT, "stablehlo.reshape")

_ARITHMETIC: Mapping[str, Callable[[int, int], int]] = {
    "stablehlo.add": operator.add,
    "stablehlo.subtract": operator.sub,
    "stablehlo.multiply": operator.mul,
}

_COMPUTED = {*_ARITHMETIC, CONSTANT, "stablehlo.compare", "stablehlo.select"}


@dataclass(frozen=True)
class _Stack:
    """What was written into an array, by index of one dimension.

    Attributes:
      first: the first of the operations that wrote.
    """

    dimension: int
    pieces: Mapping[int, Value]
    first: ir.Operation


def forward_stacks(block: ir.Block, how: Empty = "zeros") -> None:
    """Lets the dynamic_slices of a block take what its dynamic_update_slices have written.

    Args:
      how: how a buffer is made every element of which is written before it is read.
    """
    numbers: dict[Value, int] = {}
    stacks: dict[Value, _Stack] = {}
    removable: list[ir.Operation] = []
    for each in block.operations:
        op, name = each.operation, each.name
        if name in _DEAD:
            removable.append(op)
        if name == _UPDATE:
            stack = _updated(op, numbers, stacks)
            if stack is not None:
                stacks[op.results[0]] = stack
        elif name == _SLICE:
            piece = _taken(op, numbers, stacks)
            if piece is not None:
                op.results[0].replace_all_uses_with(piece)
        elif name in _COMPUTED:
            number = _number(op, numbers)
            if number is not None:
                numbers[op.results[0]] = number
    if how != "zeros":
        for value, stack in stacks.items():
            _leave_empty(value, stack, how)
    _erase_dead(reversed(removable))


def _leave_empty(value: Value, stack: _Stack, how: Empty) -> None:
    """Lets a stack all of whose indices are written start as an empty buffer, if as zeros."""
    if len(stack.pieces) < shape_of(value)[stack.dimension]:
        return
    start = stack.first.operands[0]
    source = defining_op(start)
    if source is None or source.name not in ("stablehlo.broadcast_in_dim", CONSTANT):
        return
    op = defining_op(value)
    while op is not None and op != stack.first:
        op = defining_op(op.operands[0])
        if op is None or len(list(op.results[0].uses)) != 1:
            return
    with ir.InsertionPoint(stack.first), stack.first.location:
        stack.first.operands[0] = empty(start.type, how)


def _updated(
    op: ir.Operation, numbers: Mapping[Value, int], stacks: Mapping[Value, _Stack]
) -> _Stack | None:
    whole, piece, *starts = op.operands
    place = _place(shape_of(whole), shape_of(piece), starts, numbers)
    if place is None:
        return None
    dimension, index = place
    before = stacks.get(whole)
    if before is None or before.dimension != dimension:
        return _Stack(dimension, {index: piece}, op)
    return _Stack(dimension, {**before.pieces, index: piece}, before.first)


def _taken(
    op: ir.Operation, numbers: Mapping[Value, int], stacks: Mapping[Value, _Stack]
) -> Value | None:
    whole, *starts = op.operands
    stack = stacks.get(whole)
    place = _place(shape_of(whole), shape_of(op.results[0]), starts, numbers)
    if stack is None or place is None or place[0] != stack.dimension:
        return None
    return stack.pieces.get(place[1])


def _place(
    whole: Sequence[int],
    piece: Sequence[int],
    starts: Sequence[Value],
    numbers: Mapping[Value, int],
) -> tuple[int, int] | None:
    """The dimension, and its index, that a piece is; None if it is anything else."""
    found: list[tuple[int, int]] = []
    for dimension, (size, taken, start) in enumerate(zip(whole, piece, starts, strict=True)):
        if size == taken:
            continue  # The start is clamped to zero.
        index = numbers.get(start)
        if taken != 1 or index is None or not 0 <= index < size:
            return None
        found.append((dimension, index))
    return found[0] if len(found) == 1 else None


def _number(op: ir.Operation, numbers: Mapping[Value, int]) -> int | None:
    """The value of an integer that is computed from constants by an operation of _COMPUTED."""
    type_: ir.Type = op.result.type
    if not isinstance(type_, ir.RankedTensorType) or type_.rank:
        return None
    if not isinstance(type_.element_type, ir.IntegerType):
        return None
    if op.name == CONSTANT:
        return integer(op)
    known = [numbers.get(operand) for operand in op.operands]
    if op.name == "stablehlo.select" and known[0] is not None:
        return known[1] if known[0] else known[2]
    given = [number for number in known if number is not None]
    if len(given) != len(known):
        return None
    if op.name == "stablehlo.compare":
        return int(comparison(op)(*given))
    if op.name in _ARITHMETIC:
        result = _ARITHMETIC[op.name](given[0], given[1])
        return result if can_hold(type_.element_type, result) else None
    return None


def _erase_dead(ops: Iterable[ir.Operation]) -> None:
    """Removes what nothing uses any more, the last one first."""
    for op in ops:
        if not any(op.result.uses):
            op.erase()
