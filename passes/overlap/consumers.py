"""Finds the elementwise operations that can be computed on pieces of products."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from jaxlib.mlir import ir

from ..ir.elementwise import ELEMENTWISE
from ..ir.ops import defining_op
from ..ir.types import Value, shape_of
from .cuts import Cut, cut_of_operand, cut_through

_MOST = 64
"""More operations are not looked at."""


@dataclass(frozen=True)
class Consumers:
    """Operations that are computed from values in pieces, and what others use of them.

    Attributes:
      ops: in program order.
      cuts: of the values that they are computed from, and of their results.
      outs: the values, of these, that other operations use.
    """

    ops: tuple[ir.Operation, ...]
    cuts: dict[Value, Cut]
    outs: tuple[Value, ...]


def consumers(cuts: dict[Value, Cut]) -> Consumers:
    """The elementwise operations after some values, as far as they add nothing to what is used.

    Args:
      cuts: the cuts of values of one block, each of which has a use.
    """
    ops, known = _reachable(cuts)
    while True:
        values = [*cuts, *(op.results[0] for op in ops)]
        outs = _used_outside(values, set(ops))
        if len(outs) <= len(cuts):
            return Consumers(tuple(ops), {value: known[value] for value in values}, tuple(outs))
        ops.pop()


def _reachable(cuts: dict[Value, Cut]) -> tuple[list[ir.Operation], dict[Value, Cut]]:
    known = dict(cuts)
    ops: list[ir.Operation] = []
    first = defining_op(next(iter(cuts)))
    assert first is not None, "a product is an operation"
    for each in first.block.operations:
        op = each.operation
        if op.name not in ELEMENTWISE or len(ops) == _MOST:
            continue
        result = _result(op, known)
        if result is not None:
            known[op.results[0]] = result
            ops.append(op)
    return ops, known


def _result(op: ir.Operation, known: dict[Value, Cut]) -> Cut | None:
    """The cut of the result of an op, if some operands are cut, and cut alike."""
    numbers = [k for k, operand in enumerate(op.operands) if operand in known]
    if not numbers:
        return None
    cut = known[op.operands[numbers[0]]]
    result = cut_through(op, numbers[0], cut)
    if result is None or any(
        cut_of_operand(op, k, result) != known[op.operands[k]] for k in numbers
    ):
        return None
    sizes = [shape_of(operand) for operand in op.operands]
    whole = shape_of(op.results[0])
    return result if all(size in ([], whole) for size in sizes) else None


def _used_outside(values: Sequence[Value], inside: set[ir.Operation]) -> list[Value]:
    return [
        value for value in values if any(use.owner.operation not in inside for use in value.uses)
    ]
