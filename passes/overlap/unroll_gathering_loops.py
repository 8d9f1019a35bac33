"""Unrolls loops that gather, so that a gather can run beside the product of the step before.

Weights that are kept in pieces are gathered layer by layer, in a loop over the layers. The gather
of a step does not need the step before, but a loop runs one step after the other. In an unrolled
loop it can begin early. Unrolling also removes the copies of what the loop carries.

Before:  %k, %y = stablehlo.while(%i = %zero, %c = %x) cond { %i < 8 } do {
           %w = stablehlo.dynamic_slice %stack, %i, ...
           %g = "stablehlo.all_gather"(%w)
           %n = stablehlo.dot_general %c, %g
           stablehlo.return %i + 1, %n
         }
After:   %g0 = "stablehlo.all_gather"(stablehlo.dynamic_slice %stack, 0, ...)
         %n0 = stablehlo.dot_general %x, %g0
         %g1 = "stablehlo.all_gather"(stablehlo.dynamic_slice %stack, 1, ...)
         %n1 = stablehlo.dot_general %n0, %g1
         // and 6 more
After, parts=2: a loop of 4 steps, each of which is two of those before
Needs:   what shmap-verify accepts. With form=chosen, the attribute `shmap.overlap` on the loops
         that are to be unrolled.
Leaves:  loops whose number of steps is not a constant or, if they are to be unrolled completely,
         more than 64; loops without products; loops all of whose gathers need the step before, and
         all of whose reduce_scatters are needed in the step after.

With `barriers`, a loop that is unrolled completely gets optimization barriers, so that what a step
gathers is gathered beside the step before, and what it reduces is reduced beside the step after.
With `parts`, steps that are left over run before the loop. What the steps of one loop store in an
array, and those of another take from it, is passed on directly if both are unrolled completely.
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
from .form import Form
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

    def sites(
        self, module: ModuleOp, body: BodyForm
    ) -> Iterator[tuple[ir.Operation, GatheringLoop]]:
        if not self.is_chosen:
            inline_steps(module)
        for found in gathering_loops(module.operation, body):
            yield found.loop.op, found

    def rewrite(self, site: GatheringLoop, body: BodyForm, form: Form) -> None:
        loop = site.loop
        steps = min(form.parts or loop.trips, loop.trips)
        if not 1 <= steps <= _MOST_STEPS:
            return
        block = loop.op.block
        if steps == loop.trips and form.barriers:
            _unroll_in_order(site)
        else:
            _unroll(loop, steps)
        if steps == loop.trips:
            forward_stacks(block)


def _unroll_in_order(found: GatheringLoop) -> None:
    """Makes the whole loop none, with each collective beside another step."""
    loop = found.loop
    steps = Steps.of(loop, [op for op, _ in found.collectives])
    with ir.InsertionPoint(loop.op):
        counters = [_counter(loop, step) for step in range(loop.trips)]
        values = steps.copy(list(loop.op.operands), counters)
    _replace(loop, values)


def _unroll(loop: CountedLoop, steps: int) -> None:
    """Makes `steps` steps of the loop one, or the whole loop none."""
    values = list(loop.op.operands)
    before = loop.trips if steps == loop.trips else loop.trips % steps
    with ir.InsertionPoint(loop.op):
        for step in range(before):
            values[loop.counter] = _counter(loop, step)
            values = _step(loop.body, values)
    if steps == loop.trips:
        _replace(loop, values)
        return
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
    arguments, returned = list(body.arguments), list(end.operands)
    values = list(returned)
    with ir.InsertionPoint(end):
        for _ in range(times - 1):
            values = _copy(ops, arguments, returned, values)
    for number, value in enumerate(values):
        end.operands[number] = value


def _step(body: ir.Block, values: list[Value]) -> list[Value]:
    """Copies the body to the insertion point, and returns what it then returns."""
    ops = [each.operation for each in body.operations][:-1]
    return _copy(ops, list(body.arguments), list(terminator(body).operands), values)


def _copy(
    ops: Sequence[ir.Operation],
    arguments: Sequence[Value],
    returned: Sequence[Value],
    values: Sequence[Value],
) -> list[Value]:
    new = dict(zip(arguments, values, strict=True))
    for op in ops:
        copy = op.clone().operation
        for inner in walk(copy):
            for number, operand in enumerate(inner.operands):
                if operand in new:
                    inner.operands[number] = new[operand]
        for result, copied in zip(op.results, copy.results, strict=True):
            new[result] = copied
    return [new.get(value, value) for value in returned]
