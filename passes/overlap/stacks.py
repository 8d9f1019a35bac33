"""Reads of a stack, one index of which was written before, take what was written.

A loop puts what its steps compute in an array, one index for each step, and another loop, such as
that of the gradient, takes them out again. If both are unrolled, every index is a constant:

Before:  %s0 = stablehlo.dynamic_update_slice %s, %p, %zero
         %s1 = stablehlo.dynamic_update_slice %s0, %q, %one
         %r = stablehlo.dynamic_slice %s1, %zero, sizes = [1, ...]
After:   %p is used for %r. Updates that nothing reads any more are removed.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from ..ir.types import Value, shape_of

_UPDATE = "stablehlo.dynamic_update_slice"
_SLICE = "stablehlo.dynamic_slice"
_DEAD = (_UPDATE, _SLICE, "stablehlo.broadcast_in_dim", "stablehlo.constant", "stablehlo.reshape")

_ARITHMETIC: Mapping[str, Callable[[int, int], int]] = {
    "stablehlo.add": operator.add,
    "stablehlo.subtract": operator.sub,
    "stablehlo.multiply": operator.mul,
}
_COMPARISONS: Mapping[str, Callable[[int, int], bool]] = {
    "EQ": operator.eq,
    "NE": operator.ne,
    "LT": operator.lt,
    "LE": operator.le,
    "GT": operator.gt,
    "GE": operator.ge,
}


@dataclass(frozen=True)
class _Stack:
    """What was written into an array, by index of one dimension."""

    dimension: int
    pieces: Mapping[int, Value]


def forward_stacks(block: ir.Block) -> None:
    """Lets the dynamic_slices of a block take what its dynamic_update_slices have written."""
    numbers: dict[Value, int] = {}
    stacks: dict[Value, _Stack] = {}
    ops = [each.operation for each in block.operations]
    for op in ops:
        if op.name == _UPDATE:
            stack = _updated(op, numbers, stacks)
            if stack is not None:
                stacks[op.results[0]] = stack
        elif op.name == _SLICE:
            piece = _taken(op, numbers, stacks)
            if piece is not None:
                op.results[0].replace_all_uses_with(piece)
        else:
            number = _number(op, numbers)
            if number is not None:
                numbers[op.results[0]] = number
    _erase_dead(reversed(ops))


def _updated(
    op: ir.Operation, numbers: Mapping[Value, int], stacks: Mapping[Value, _Stack]
) -> _Stack | None:
    whole, piece, *starts = op.operands
    place = _place(shape_of(whole), shape_of(piece), starts, numbers)
    if place is None:
        return None
    dimension, index = place
    before = stacks.get(whole)
    pieces = before.pieces if before is not None and before.dimension == dimension else {}
    return _Stack(dimension, {**pieces, index: piece})


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
    """The value of an integer that is computed from constants."""
    if len(op.results) != 1 or not isinstance(op.results[0].type, ir.RankedTensorType):
        return None
    type_ = ir.RankedTensorType(op.results[0].type)
    if type_.shape or not isinstance(type_.element_type, ir.IntegerType):
        return None
    if op.name == "stablehlo.constant":
        return int(ir.DenseIntElementsAttr(op.attributes["value"])[0])
    known = [numbers.get(operand) for operand in op.operands]
    if op.name == "stablehlo.select" and known[0] is not None:
        return known[1] if known[0] else known[2]
    given = [number for number in known if number is not None]
    if len(given) != len(known):
        return None
    if op.name == "stablehlo.compare":
        direction = stablehlo.ComparisonDirectionAttr(op.attributes["comparison_direction"]).value
        return int(_COMPARISONS[direction](given[0], given[1]))
    if op.name in _ARITHMETIC:
        result = _ARITHMETIC[op.name](given[0], given[1])
        # Larger ones would wrap around.
        return result if abs(result) < 2 ** (type_.element_type.width - 1) else None
    return None


def _erase_dead(ops: Iterable[ir.Operation]) -> None:
    """Removes what nothing uses any more, the last one first."""
    for op in ops:
        if op.name in _DEAD and not any(op.results[0].uses):
            op.erase()
