"""Unrolls loops that gather, so that a gather can run beside the product of the step before.

Weights that are split between devices are gathered layer by layer, in a loop over the layers. The
gather of a step does not need the result of the step before, but a loop runs one step after the
other. In an unrolled loop it can begin earlier. Unrolling also removes the copies of the values
that the loop carries.

Before:  %k, %y = stablehlo.while(%i = %zero, %c = %x) cond { %i < 8 } do {
           %w = stablehlo.dynamic_slice %stack, %i, ...
           %g = "stablehlo.all_gather"(%w)
           %n = stablehlo.dot_general %c, %g
           stablehlo.return %i + 1, %n
         }
After:   %later, %w0 = optimization_barrier %stack, (stablehlo.dynamic_slice %stack, 0, ...)
         %g0 = "stablehlo.all_gather"(%w0)
         %n0 = stablehlo.dot_general %x, %g0
         %g1 = "stablehlo.all_gather"(stablehlo.dynamic_slice %later, 1, ...)
         %n1 = stablehlo.dot_general %n0, %g1
         // and 6 more
After, parts=2: a loop of 4 steps, each of which does two of the original steps
Needs:   what shmap-verify accepts. With form=chosen, the attribute `shmap.overlap` on the loops
         that are to be unrolled.
Leaves:  loops whose number of steps is not a constant or, if they are to be unrolled completely,
         more than 64; loops without products; loops all of whose gathers need the step before, and
         all of whose reduce_scatters are needed in the step after.

With `barriers`, optimization barriers in a completely unrolled loop make the gather of a step run
beside the step before, and its reduce_scatter beside the step after. With `parts`, the remaining
steps run before the loop. If the steps of one loop store values in an array that the steps of
another read, and both are unrolled completely, the values are passed on directly. With
`empty=allocate`, an array of zeros that the steps fill becomes an empty buffer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from jaxlib.mlir import ir
from jaxlib.mlir.dialects.builtin import ModuleOp

from ..ir.body_form import BodyForm
from ..ir.ops import terminator, walk
from ..ir.types import Value
from .first_step import first_alone
from .form import Empty, Form
from .inline_steps import inline_steps
from .loops import WHILE, CountedLoop, GatheringLoop, gathering_loops
from .pieces import constant_like
from .rewriting import RewritingPass
from .stacks import forward_stacks
from .steps import Steps

_MOST_STEPS = 64


@dataclass(frozen=True)
class UnrollGatheringLoops(RewritingPass[GatheringLoop]):
    """Unrolls loops that gather, so that a gather can run beside the product of the step before."""

    name = "shmap-unroll-gathering-loops"
    code = "SHM-P19"
    keeps_bits = True
    needs_body_form = True
    forms = ("unroll",)
    op_name = WHILE

    form: Literal["chosen", "unroll"] = "chosen"
    parts: int = 0
    barriers: bool = False
    empty: Empty = "zeros"

    def run(self, module: ModuleOp) -> None:
        if not self.is_chosen:
            inline_steps(module)
        super().run(module)

    def sites(self, ops: Sequence[ir.Operation], body: BodyForm) -> Iterator[GatheringLoop]:
        return gathering_loops(ops, body)

    def rewrite(self, site: GatheringLoop, body: BodyForm, form: Form) -> None:
        loop = site.loop
        steps = min(form.parts or loop.trips, loop.trips)
        if not 1 <= steps <= _MOST_STEPS:
            return
        block = loop.op.block
        if steps < loop.trips:
            _unroll(loop, steps)
            return
        if form.barriers:
            _unroll_in_order(site)
        else:
            _unroll_whole(site)
        forward_stacks(block, form.empty)


def _unroll_in_order(found: GatheringLoop) -> None:
    """Makes the whole loop none, with each collective beside another step."""
    loop = found.loop
    steps = Steps.of(loop, [op for op, _ in found.collectives])
    with ir.InsertionPoint(loop.op):
        counters = [_counter(loop, step) for step in range(loop.trips)]
        values = steps.copy(list(loop.op.operands), counters)
    _replace(loop, values)


def _unroll_whole(found: GatheringLoop) -> None:
    """Makes the whole loop none; what the first step gathers is taken before that of the others."""
    loop = found.loop
    values = list(loop.op.operands)
    with ir.InsertionPoint(loop.op):
        for step in range(loop.trips):
            values[loop.counter] = _counter(loop, step)
            new = _copied(loop.body, values)
            returned = [new.get(value, value) for value in terminator(loop.body).operands]
            if step == 0 and loop.trips > 1:
                first_alone(found, values, new, returned)
            values = returned
    _replace(loop, values)


def _unroll(loop: CountedLoop, steps: int) -> None:
    """Makes `steps` steps of the loop one."""
    values = list(loop.op.operands)
    before = loop.trips % steps
    with ir.InsertionPoint(loop.op):
        for step in range(before):
            values[loop.counter] = _counter(loop, step)
            new = _copied(loop.body, values)
            values = [new.get(value, value) for value in terminator(loop.body).operands]
    if before:
        values[loop.counter] = _counter_before(loop, loop.op, before)
        for number, value in enumerate(values):
            loop.op.operands[number] = value
    _repeat(loop.body, steps)


def _replace(loop: CountedLoop, values: Sequence[Value]) -> None:
    """Replaces a loop by what its last step returns."""
    results = list(values)
    results[loop.counter] = _counter_before(loop, loop.op, loop.trips)
    for result, value in zip(loop.op.results, results, strict=True):
        result.replace_all_uses_with(value)
    loop.op.erase()


def _counter(loop: CountedLoop, step: int) -> Value:
    with loop.op.location:
        return constant_like(loop.op.operands[loop.counter], loop.start + step * loop.step)


def _counter_before(loop: CountedLoop, op: ir.Operation, step: int) -> Value:
    with ir.InsertionPoint(op):
        return _counter(loop, step)


def _repeat(body: ir.Block, times: int) -> None:
    """Lets the body of a loop do what it does so many times."""
    end = terminator(body)
    ops = [each.operation for each in body.operations][:-1]
    returned = list(end.operands)
    values = list(returned)
    with ir.InsertionPoint(end):
        for _ in range(times - 1):
            new = _copied_ops(ops, list(body.arguments), values)
            values = [new.get(value, value) for value in returned]
    for number, value in enumerate(values):
        end.operands[number] = value


def _copied(body: ir.Block, values: Sequence[Value]) -> dict[Value, Value]:
    """Copies the body to the insertion point; by value of the body, what takes its place."""
    ops = [each.operation for each in body.operations][:-1]
    return _copied_ops(ops, list(body.arguments), values)


def _copied_ops(
    ops: Sequence[ir.Operation], arguments: Sequence[Value], values: Sequence[Value]
) -> dict[Value, Value]:
    new = dict(zip(arguments, values, strict=True))
    for op in ops:
        copy = op.clone().operation
        for inner in walk(copy):
            for number, operand in enumerate(inner.operands):
                if operand in new:
                    inner.operands[number] = new[operand]
        for result, copied in zip(op.results, copy.results, strict=True):
            new[result] = copied
    return new
