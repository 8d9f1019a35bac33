"""Builds a loop that carries values and counts its steps, at the current insertion point."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from ...ir import build
from ...ir.slices import scalar
from ...ir.types import Value

Step = Callable[[Value, list[Value]], Sequence[Value]]
"""What a step computes from its number, an i32 from 0, and what the step before returned."""


def repeated(trips: int, values: Sequence[Value], step: Step) -> list[Value]:
    """What the last of `trips` steps returns; the first one gets `values`.

    Steps may use values from outside of the loop. It counts as `counted_loop` expects.
    """
    operands = [scalar(0), *values]
    types = [each.type for each in operands]
    loop = ir.Operation.create("stablehlo.while", results=types, operands=operands, regions=2)
    locations = [loop.location] * len(types)
    condition = ir.Block.create_at_start(loop.regions[0], types, locations)
    with ir.InsertionPoint(condition):
        stablehlo.return_([build.less(condition.arguments[0], scalar(trips))])
    body = ir.Block.create_at_start(loop.regions[1], types, locations)
    with ir.InsertionPoint(body):
        arguments: list[Value] = list(body.arguments)
        returned = step(arguments[0], arguments[1:])
        stablehlo.return_([build.add(arguments[0], scalar(1)), *returned])
    return list(loop.results[1:])
