"""Lets the first step of an unrolled loop gather before anything is taken for the other steps.

All steps take what they gather from the same array. libtpu takes it for all of them at once, and
the first gather, beside which nothing can run, waits for that:

    %w0 = stablehlo.dynamic_slice %stack, 0
    %later, %v0 = stablehlo.optimization_barrier %stack, %w0
    %g0 = "stablehlo.all_gather"(%v0)
    %w1 = stablehlo.dynamic_slice %later, 1                        // beside the first gather
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from jaxlib.mlir import ir

from ...ir.collective_ops import ALL_GATHER
from ...ir.ops import defining_op
from ...ir.types import Value, shape_of
from ..find.loops import CountedLoop, GatheringLoop
from .pieces import barrier


def first_alone(
    found: GatheringLoop, values: Sequence[Value], new: Mapping[Value, Value], later: list[Value]
) -> None:
    """Puts a barrier between what the first step gathers and what the others take.

    Args:
      values: what the first step was given.
      new: by value of the body, what takes its place in the first step.
      later: what the second step is given; changed.
    """
    gathers = [op for op, _ in found.collectives if op.name == ALL_GATHER]
    stacks = _read(found.loop, gathers)
    if not gathers or not stacks:
        return
    taken = gathers[0].operands[0]
    if taken in found.loop.body.arguments or new[taken] in values:
        return
    copy = defining_op(new[gathers[0].results[0]])
    assert copy is not None, "a copy of a gather"
    with ir.InsertionPoint(copy):
        *rest, own = barrier(*(values[number] for number in stacks), new[taken])
    copy.operands[0] = own
    for number, value in zip(stacks, rest, strict=True):
        later[number] = value


def _read(loop: CountedLoop, gathers: Sequence[ir.Operation]) -> list[int]:
    """The arrays that all steps are given alike, and from which they take what they gather."""
    body = loop.body
    seen: set[Value] = set()
    pending = [op.operands[0] for op in gathers]
    while pending:
        value = pending.pop()
        if value in seen:
            continue
        seen.add(value)
        source = defining_op(value)
        if source is not None and source.block == body:
            pending += source.operands
    return [
        number
        for number, argument in enumerate(body.arguments)
        if argument in seen and shape_of(argument)
    ]
