"""Replaces a gather, and products of it, by a ring: pieces are sent on and multiplied."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from jaxlib.mlir import ir

from ...cost.rings import MOST_UNROLLED
from ...ir import build
from ...ir.body_form import BodyForm
from ...ir.slices import put_at, scalar, take_at
from ...ir.types import Value, element_of, shape_of
from ..find.cuts import Cut
from ..find.gathers import Gather
from ..find.products import DOT, has_default_precision
from ..form import Form
from .called import Called
from .gather_plan import Plan, plan
from .pieces import barrier, compute, empty, take
from .repeated import repeated
from .rings import Ring, can_go_round, place_in, ring

Places = Sequence[tuple[Value, int]]
"""The first index and the size of each part of a piece, in the whole array."""


def gather_by_ring(gather: Gather, body: BodyForm, form: Form) -> None:
    """Rewrites the products of a gather that can be computed block by block.

    Nothing is rewritten if blocks cannot be halved or cannot go round.
    """
    block = gather.op.operands[0]
    size = shape_of(block)[gather.dimension]
    if size < 2 or not can_go_round(gather.op, body, gather.count):
        return
    found = plan(gather, gather.multiplied, Cut(gather.dimension, size * gather.count))
    if found is None:
        return
    with ir.InsertionPoint(found.before), gather.op.location:
        found.replace_by("shmap_ring", form, lambda: _values(found, gather, body, form))


def _values(found: Plan, gather: Gather, body: BodyForm, form: Form) -> list[Value]:
    """What takes the place of the plan's outs."""
    around = ring(body, gather.axes, form.order)
    narrow = form.narrow and _can_narrow(found)
    steps = _Steps(found, gather, around, around.table(), form, narrow)
    return (_unrolled if around.count <= MOST_UNROLLED else _in_loop)(steps)


def _unrolled(steps: _Steps) -> list[Value]:
    count = steps.around.count
    numbers = [scalar(number) for number in range(count)]
    wholes = steps.buffers()
    sent = steps.sent(steps.halves())
    wholes = steps.put_own(wholes, numbers[0])
    wholes, halves = steps.order(wholes, sent)
    many = len(wholes)

    def send_on(*values: Value) -> list[Value]:
        halves = values[many:-2]
        sent = steps.sent(halves)
        wholes, halves = steps.order(steps.put(values[:many], halves, *values[-2:]), sent)
        return [*wholes, *halves]

    step = Called("shmap_step", send_on)
    for number in range(1, count - 1):
        values = step(*wholes, *halves, numbers[number], numbers[-number])
        wholes, halves = values[:many], values[many:]
    return steps.put(wholes, halves, numbers[-1], numbers[1])


def _in_loop(steps: _Steps) -> list[Value]:
    """The same, with a loop of all steps in which halves are sent on but the first.

    A step of the loop is two of the ring, so that what it carries need not be copied.
    """
    around = steps.around
    wholes = steps.buffers()
    sent = steps.sent(steps.halves())
    wholes = steps.put_own(wholes, scalar(0))
    wholes, halves = steps.order(wholes, sent)

    def step(number: Value, wholes: list[Value], halves: Sequence[Value]) -> list[Value]:
        return steps.put(wholes, halves, around.number(number), around.number(number, -1))

    def twice(number: Value, values: list[Value]) -> list[Value]:
        wholes, halves = values[:-2], values[-2:]
        first = build.add(build.multiply(number, scalar(2)), scalar(1))
        for more in range(2):
            sent = steps.sent(halves)
            wholes = step(build.add(first, scalar(more)), wholes, halves)
            wholes, halves = steps.order(wholes, sent)
        return [*wholes, *halves]

    trips = (around.count - 2) // 2
    *wholes, first, second = repeated(trips, [*wholes, *halves], twice)
    halves = [first, second]
    for number in range(1 + 2 * trips, around.count):
        sent = steps.sent(halves) if number + 1 < around.count else []
        wholes = step(scalar(number), wholes, halves)
        wholes, halves = steps.order(wholes, sent)
    return wholes


@dataclass(frozen=True)
class _Steps:
    """What the steps of a ring do.

    Attributes:
      table: of the members, which are known by their numbers in it.
    """

    found: Plan
    gather: Gather
    around: Ring
    table: Value
    form: Form
    narrow: bool

    @cached_property
    def size(self) -> int:
        """The rows of a block."""
        return shape_of(self._block)[self.gather.dimension]

    @property
    def _block(self) -> Value:
        return self.gather.op.operands[0]

    def buffers(self) -> list[Value]:
        """What the results are put in."""
        if self.found.replaced is not None:
            return [self.found.replaced]
        return [empty(out.type, self.form.empty) for out in self.found.outs]

    def halves(self) -> list[Value]:
        """Of the own block, as they are sent."""
        cut, half = Cut(self.gather.dimension, self.size), self.size // 2
        halves = [
            take(self._block, cut, 0, half),
            take(self._block, cut, half, self.size - half),
        ]
        return [build.convert(each, ir.BF16Type.get()) if self.narrow else each for each in halves]

    def sent(self, halves: Sequence[Value]) -> list[Value]:
        """What comes when all devices have sent their halves on."""
        return [self.around.shift(half, by) for half, by in zip(halves, (1, -1), strict=True)]

    def put_own(self, wholes: list[Value], number: Value) -> list[Value]:
        """Computes with the own block, which is one product."""
        return self._put(wholes, self._block, [(self._start(number), self.size)])

    def put(
        self, wholes: Sequence[Value], halves: Sequence[Value], ahead: Value, behind: Value
    ) -> list[Value]:
        """Computes with the halves of the blocks of two members."""
        if self.narrow:
            halves = [build.convert(each, element_of(self._block)) for each in halves]
        first, second = (ahead, scalar(0)), (behind, scalar(self.size // 2))
        if self.form.stacked:
            both = build.concatenate(halves, self.gather.dimension)
            return self._put_called(*wholes, both, *first, *second)
        wholes = self._put_called(*wholes, halves[0], *first)
        return self._put_called(*wholes, halves[1], *second)

    @cached_property
    def _put_called(self) -> Called:
        """Computes with a half, or with two that are stacked.

        For each half, the last arguments are the number of a member and the first row of its block.
        """
        many, half = len(self.found.outs), self.size // 2

        def put(*values: Value) -> list[Value]:
            wholes, piece, *places = values[:many], *values[many:]
            size = shape_of(piece)[self.gather.dimension]
            sizes = [size] if len(places) == 2 else [half, size - half]
            starts = [
                build.add(self._start(number), first)
                for number, first in zip(places[::2], places[1::2], strict=True)
            ]
            return self._put(wholes, piece, list(zip(starts, sizes, strict=True)))

        return Called("shmap_put", put)

    def _start(self, number: Value) -> Value:
        """Where the block of a member begins."""
        return self.around.start(self.table, number, self.size)

    def _put(self, wholes: Sequence[Value], piece: Value, where: Places) -> list[Value]:
        whole = self.size * self.around.count
        places = [(place_in(whole, start), size) for start, size in where]
        return _put(self.found, wholes, piece, places)

    def order(
        self, wholes: list[Value], sent: Sequence[Value]
    ) -> tuple[list[Value], Sequence[Value]]:
        """Both, none of which is used before all are there."""
        if not sent or not self.form.barriers:
            return wholes, sent
        *wholes, first, second = barrier(*wholes, *sent)
        return wholes, [first, second]


def _put(found: Plan, wholes: Sequence[Value], piece: Value, where: Places) -> list[Value]:
    """Computes with a piece of the gathered array, and puts the results in their places."""

    def take_piece(value: Value, cut: Cut) -> Value:
        value = wholes[0] if found.is_replaced(value) else value
        parts = [take_at(value, cut.dimension, start, size) for start, size in where]
        return parts[0] if len(parts) == 1 else build.concatenate(parts, cut.dimension)

    size = sum(each for _, each in where)
    gathered = found.gather.results[0]
    known = compute(found.ops, {gathered: piece}, found.cuts, size, take_piece)
    put: list[Value] = []
    for out, whole in zip(found.outs, wholes, strict=True):
        dimension, first = found.cuts[out].dimension, 0
        for start, each in where:
            part = take(known[out], Cut(dimension, size), first, each)
            whole = put_at(whole, part, dimension, start)
            first += each
        put.append(whole)
    return put


def _can_narrow(found: Plan) -> bool:
    """Whether products round what is gathered to bf16 in any case, on chips that do so."""
    gathered = found.gather.results[0]
    products = [op for op in found.ops if op.name == DOT]
    return (
        isinstance(element_of(gathered), ir.F32Type)
        and all(use.owner.operation in products for use in gathered.uses)
        and all(has_default_precision(op) for op in products)
    )
