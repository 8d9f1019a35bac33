"""Copies the steps of a loop one after the other, with its collectives beside other steps.

What a step gathers is gathered beside the step before, and what it reduces is reduced beside the
step after. XLA for GPUs combines collectives that do not need each other, and what is combined
waits for the operands of all steps, so optimization barriers give the order:

    %g0 = gather of step 0
    %w1, %h0 = barrier of what step 1 gathers, and %g0
    %g1 = gather of step 1                                    // beside step 0
    %c1, %d0 = step 0 on %c0 and %h0
    %c2, %h1 = barrier of %c1, %g1
    %e0, %c3 = barrier of %d0, which step 0 reduces, and %c2
    %r0 = reduction of step 0                                 // beside step 1
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from jaxlib.mlir import ir

from ...ir.collective_ops import ALL_GATHER
from ...ir.ops import defining_op, replace_operands, terminator
from ...ir.types import Value, shape_of
from ..find.loops import CountedLoop
from .pieces import barrier


@dataclass
class _Step:
    """One copy of the body: what takes the place of its arguments and results."""

    values: dict[Value, Value]

    def copy(self, ops: Sequence[ir.Operation]) -> None:
        for op in ops:
            copied = op.clone().operation
            replace_operands(copied, self.values)
            self.values.update(zip(op.results, copied.results, strict=True))

    def order(self, *pairs: tuple[_Step, Value]) -> None:
        """Lets nothing use any of some values of steps before all are there."""
        if len(pairs) > 1:
            for (step, value), later in zip(
                pairs, barrier(*(step.values[value] for step, value in pairs)), strict=True
            ):
                step.values[value] = later


@dataclass
class Steps:
    """The operations of a body, by when they run.

    Attributes:
      gathers: those that do not need the step before.
      reductions: those that the step after does not need.
      taken: what the gathers, and the counter of the next step, are computed from.
      middle: the rest of a step.
      late: what is computed from the reductions; without them.
      kept: the results of `middle` that the next step reads.
    """

    loop: CountedLoop
    gathers: list[ir.Operation] = field(default_factory=list)
    reductions: list[ir.Operation] = field(default_factory=list)
    taken: list[ir.Operation] = field(default_factory=list)
    middle: list[ir.Operation] = field(default_factory=list)
    late: list[ir.Operation] = field(default_factory=list)
    kept: list[Value] = field(default_factory=list)

    @classmethod
    def of(cls, loop: CountedLoop, collectives: Collection[ir.Operation]) -> Steps:
        """Those of a loop, some of whose collectives do not need, or delay, other steps."""
        ops = [each.operation for each in loop.body.operations][:-1]
        returned = list(terminator(loop.body).operands)
        gathers = [op for op in ops if op in collectives and op.name == ALL_GATHER]
        reductions = [op for op in ops if op in collectives and op.name != ALL_GATHER]
        taken = _before([returned[loop.counter], *(op.operands[0] for op in gathers)], ops)
        # A gather of what another gives stays in its step.
        gathers = [
            op for op in gathers if op not in taken and not _before(op.operands, ops) & {*gathers}
        ]
        late = _after(reductions, ops)
        if _reads_later(loop, returned, late) or late & (taken | set(gathers)):
            reductions, late = [], set()
        steps = cls(loop, gathers, reductions)
        for op in ops:
            if op in taken:
                steps.taken.append(op)
            elif op not in late and op not in gathers:
                steps.middle.append(op)
            elif op in late and op not in reductions:
                steps.late.append(op)
        middle = set(steps.middle)
        for value in returned:
            source = defining_op(value)
            is_stack = source is not None and source.name == "stablehlo.dynamic_update_slice"
            if source in middle and not is_stack and value not in steps.kept:
                steps.kept.append(value)
        return steps

    def copy(self, values: Sequence[Value], counters: Sequence[Value]) -> list[Value]:
        """Copies steps to the insertion point.

        Args:
          values: what the first step starts with.
          counters: the counter of each step.

        Returns:
          What the last step returns.
        """
        body = self.loop.body
        arguments, returned = list(body.arguments), list(terminator(body).operands)
        delayed = {result for op in (*self.reductions, *self.late) for result in op.results}
        step = _Step(dict(zip(arguments, values, strict=True)))
        step.values[arguments[self.loop.counter]] = counters[0]
        ahead = self._ahead(step, counters)
        step.copy(self.taken)
        step.copy(self.gathers)
        before: _Step | None = None
        for number in range(len(counters)):
            following: _Step | None = None
            if number + 1 < len(counters):
                following = self._next(step, counters[number + 1])
                if number < len(ahead):
                    following = ahead[number]
                else:
                    following.copy(self.taken)
                self._gather(following, step, ahead if number == 0 else [])
            reduced: list[tuple[_Step, Value]] = []
            if before is not None:
                reduced = self._reduce(before, step, returned)
            step.copy(self.middle)
            gathered = [(following, op.results[0]) for op in self.gathers] if following else []
            step.order(*((step, value) for value in self.kept), *gathered, *reduced)
            if before is not None:
                self._finish(before, step, returned)
            if following is None:
                break
            for argument, value in zip(arguments, returned, strict=True):
                if argument != arguments[self.loop.counter] and value not in delayed:
                    following.values[argument] = step.values.get(value, value)
            before, step = step, following
        step.copy(self.reductions)
        step.copy(self.late)
        return [step.values.get(value, value) for value in returned]

    def _next(self, step: _Step, counter: Value) -> _Step:
        values = dict(step.values)
        values[self.loop.body.arguments[self.loop.counter]] = counter
        return _Step(values)

    def _ahead(self, step: _Step, counters: Sequence[Value]) -> list[_Step]:
        """Steps that take what they gather beside the first gather, when nothing else can run.

        It has at most about half as many bytes as one step gathers.
        """
        if not self.gathers:
            return []
        most = 1 + min(map(_blocks, self.gathers)) // 2
        steps = [self._next(step, counter) for counter in counters[1 : 1 + most]]
        for each in steps:
            each.copy(self.taken)
        return steps

    def _gather(self, following: _Step, step: _Step, ahead: Sequence[_Step]) -> None:
        """Begins to gather for the following step when that for this one is done."""
        for op in self.gathers:
            operand = op.operands[0]
            others = [(each, operand) for each in ahead if each is not following]
            step.order((following, operand), *others, (step, op.results[0]))
            following.copy([op])

    def _reduce(
        self, before: _Step, step: _Step, returned: Sequence[Value]
    ) -> list[tuple[_Step, Value]]:
        """Reduces what the step before has computed, when this step begins."""
        arguments = list(self.loop.body.arguments)
        read = [arguments[k] for k, value in enumerate(returned) if value in self.kept]
        for op in self.reductions:
            step.order((before, op.operands[0]), *((step, argument) for argument in read))
            before.copy([op])
        return [(before, op.results[0]) for op in self.reductions]

    def _finish(self, before: _Step, step: _Step, returned: Sequence[Value]) -> None:
        """Computes what the step before computes from its reductions."""
        before.copy(self.late)
        late = {result for op in self.late for result in op.results}
        for argument, value in zip(self.loop.body.arguments, returned, strict=True):
            if value in late:
                step.values[argument] = before.values[value]


def _blocks(gather: ir.Operation) -> int:
    """How many blocks are gathered."""
    dimension = ir.IntegerAttr(gather.attributes["all_gather_dim"]).value
    whole, block = (shape_of(value)[dimension] for value in (gather.results[0], gather.operands[0]))
    return whole // block


def _before(values: Sequence[Value], ops: Sequence[ir.Operation]) -> set[ir.Operation]:
    """The operations of a body from which values are computed."""
    inside, found = set(ops), set[ir.Operation]()
    pending = [defining_op(value) for value in values]
    while pending:
        op = pending.pop()
        if op is not None and op in inside and op not in found:
            found.add(op)
            pending += [defining_op(operand) for operand in op.operands]
    return found


def _after(sources: Sequence[ir.Operation], ops: Sequence[ir.Operation]) -> set[ir.Operation]:
    """Operations of a body, and those that are computed from them."""
    found = set(sources)
    results = {result for op in sources for result in op.results}
    for op in ops:
        if op not in found and any(operand in results for operand in op.operands):
            found.add(op)
            results.update(op.results)
    return found


def _reads_later(
    loop: CountedLoop, returned: Sequence[Value], late: Collection[ir.Operation]
) -> bool:
    """Whether a step reads, other than in late operations, what late ones have returned."""
    for argument, value in zip(loop.body.arguments, returned, strict=True):
        if defining_op(value) in late and any(
            use.owner.operation not in late for use in argument.uses
        ):
            return True
    return False
