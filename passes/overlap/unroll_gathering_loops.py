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

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from jaxlib.mlir import ir
from jaxlib.mlir.dialects.builtin import ModuleOp

from ..base import Count
from ..ir.body_form import BodyForm
from ..ir.ops import terminator
from ..ir.types import Value
from .find.loops import WHILE, CountedLoop, GatheringLoop, gathering_loops
from .form import Empty, Form
from .rewrite.first_step import first_alone
from .rewrite.inline_steps import inline_steps
from .rewrite.pieces import constant_like
from .rewrite.rewriting import RewritingPass
from .rewrite.stacks import forward_stacks
from .rewrite.steps import Steps

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
    parts: Count = 0
    barriers: bool = False
    empty: Empty = "zeros"

    def run(self, module: ModuleOp) -> bool:
        if self.is_chosen:
            return super().run(module)
        inline_steps(module)
        super().run(module)
        return True

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
    for step in range(loop.trips):
        values[loop.counter] = _counter_before(loop, loop.op, step)
        copy = _copy(loop)
        new = _results(loop, copy) if step == 0 else {}
        returned = _put_before(loop.op, copy, values)
        if step == 0 and loop.trips > 1:
            first_alone(found, values, new, returned)
        values = returned
    _replace(loop, values)


def _unroll(loop: CountedLoop, steps: int) -> None:
    """Makes `steps` steps of the loop one."""
    values = list(loop.op.operands)
    before = loop.trips % steps
    for step in range(before):
        values[loop.counter] = _counter_before(loop, loop.op, step)
        values = _put_before(loop.op, _copy(loop), values)
    if before:
        values[loop.counter] = _counter_before(loop, loop.op, before)
        for number, value in enumerate(values):
            loop.op.operands[number] = value
    _repeat(loop, steps)


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


def _repeat(loop: CountedLoop, times: int) -> None:
    """Lets the body of a loop do what it does so many times."""
    end = terminator(loop.body)
    values = list(end.operands)
    for copy in [_copy(loop) for _ in range(times - 1)]:
        values = _put_before(end, copy, values)
    for number, value in enumerate(values):
        end.operands[number] = value


def _copy(loop: CountedLoop) -> ir.Operation:
    """A copy of the loop, whose body can be put in its place.

    To copy all operations at once takes a fraction of copying one after the other.
    """
    return loop.op.clone(ip=ir.InsertionPoint(loop.op)).operation


def _results(loop: CountedLoop, copy: ir.Operation) -> dict[Value, Value]:
    """By value that an operation of the body computes, what the copy computes."""
    both = zip(loop.body.operations, copy.regions[1].blocks[0].operations, strict=True)
    pairs = (zip(old.results, new.results, strict=True) for old, new in both)
    return dict(itertools.chain.from_iterable(pairs))


def _put_before(op: ir.Operation, copy: ir.Operation, values: Sequence[Value]) -> list[Value]:
    """Moves the operations of a copy's body to where `op` is; what the body returns.

    Args:
      values: what takes the place of the arguments of the body.
    """
    body = copy.regions[1].blocks[0]
    for argument, value in zip(body.arguments, values, strict=True):
        argument.replace_all_uses_with(value)
    *operations, end = body.operations
    for each in operations:
        each.operation.move_before(op)
    returned = list(end.operation.operands)
    copy.erase()
    return returned
