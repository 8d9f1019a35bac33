"""Finds the elementwise operations that can be computed on pieces of products."""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from dataclasses import dataclass

from jaxlib.mlir import ir

from ...ir.elementwise import ELEMENTWISE
from ...ir.instructions import has_instructions
from ...ir.ops import Position, defining_op
from ...ir.types import Value, shape_of
from .cuts import Cut

MOST_CONSUMERS = 64
"""More operations are not looked at."""


@dataclass(frozen=True)
class Consumers:
    """Operations that are computed from values in pieces.

    Attributes:
      ops: in program order.
      cuts: of the values that they are computed from, and of their results.
      users: of these values.
    """

    ops: tuple[ir.Operation, ...]
    cuts: dict[Value, Cut]
    users: dict[Value, set[ir.Operation]]


def consumers(cuts: dict[Value, Cut]) -> Consumers:
    """The elementwise operations after some values, as far as they add nothing to what is used.

    Args:
      cuts: the cuts of values of one block, each of which has a use.
    """
    ops, known, users = _reachable(cuts)
    inside = set(ops)
    outs = {value for value in known if not users[value] <= inside}
    while len(outs) > len(cuts):
        last = ops.pop()
        result = last.results[0]
        del known[result], users[result]
        outs.discard(result)
        outs.update(operand for operand in last.operands if operand in known)
    return Consumers(tuple(ops), known, users)


def _reachable(
    cuts: dict[Value, Cut],
) -> tuple[list[ir.Operation], dict[Value, Cut], dict[Value, set[ir.Operation]]]:
    """The operations, the cuts of what they are computed from and of their results, and users.

    It ends where others use as many values as there are in `cuts`: any operation more, or the last
    one of those after it, has a result that others use, too.
    """
    known = dict(cuts)
    users: dict[Value, set[ir.Operation]] = {}
    first = defining_op(next(iter(cuts)))
    assert first is not None, "a product is an operation"
    block, reached = first.block, set[ir.Operation]()
    pending: list[Position] = []  # the first in program order is taken first
    outs: set[Value] = set()

    def reach(value: Value) -> None:
        users[value] = users_of(value)
        for op in users[value]:
            if op.name not in ELEMENTWISE or op.block != block:
                outs.add(value)
            elif op not in reached:
                heapq.heappush(pending, Position(op))
        reached.update(users[value])

    for value in cuts:
        reach(value)
    ops: list[ir.Operation] = []
    while pending and len(ops) < MOST_CONSUMERS and len(outs) < len(cuts):
        op = heapq.heappop(pending).op
        result = cut_of_consumer(op, known)
        if result is None:
            outs.update(operand for operand in op.operands if operand in known)
        else:
            known[op.results[0]] = result
            reach(op.results[0])
            ops.append(op)
    return ops, known, users


def cut_of_consumer(op: ir.Operation, known: Mapping[Value, Cut]) -> Cut | None:
    """The cut of the result of an elementwise op, some of whose operands are cut, all alike.

    Args:
      known: the cuts of values.
    """
    if len(op.results) != 1 or has_instructions(op):
        return None
    operands, whole = list(op.operands), shape_of(op.results[0])
    cuts = {known[operand] for operand in operands if operand in known}
    alike = len(cuts) == 1 and all(shape_of(operand) in (whole, []) for operand in operands)
    return cuts.pop() if alike else None


def users_of(value: Value) -> set[ir.Operation]:
    """The operations that read a value."""
    return {use.owner.operation for use in value.uses}
