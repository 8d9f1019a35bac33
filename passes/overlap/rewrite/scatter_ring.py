"""Replaces a reduce_scatter of products by partial sums that go round a ring."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from jaxlib.mlir import ir

from ...cost.rings import MOST_UNROLLED, STEPS_OF_SUMS
from ...ir import build
from ...ir.body_form import BodyForm
from ...ir.ops import Position
from ...ir.slices import put_at, scalar
from ...ir.types import Value, element_of
from ..find.cuts import TRANSPOSE, Cut
from ..find.scatters import ADD, ScatteredProducts
from ..form import Form
from .called import Called
from .moved_rows import MovedRows, moved_rows
from .pieces import Take, adding_type, barrier, compute, empty, join
from .released import Ordered
from .repeated import repeated
from .replaced_sums import replace_sum
from .rings import Ring, can_go_round, place_in, ring

_USUAL = 4
"""Partial sums that are on the way at a time, if the form does not say how many."""


def scatter_by_ring(scattered: ScatteredProducts, body: BodyForm, form: Form) -> None:
    """Rewrites the reduce_scatter, if blocks are pieces and sums can go round."""
    cuts = _cuts(scattered, body, form)
    if cuts is not None:
        parts = _parts(scattered, form)
        operands = moved_rows(scattered, cuts)
        moving = sorted((op for each in operands for op in each.ops), key=Position)
        build = functools.partial(_value, scattered, body, cuts, operands, parts, form)
        with ir.InsertionPoint(scattered.op), scattered.op.location:
            replace_sum(scattered, "shmap_sums", form, build, moving)


def can_scatter_by_ring(scattered: ScatteredProducts, body: BodyForm, form: Form) -> bool:
    """Whether `scatter_by_ring` rewrites the reduce_scatter."""
    return _cuts(scattered, body, form) is not None


def ordered_sums(scattered: ScatteredProducts, body: BodyForm, form: Form) -> Ordered | None:
    """The products, if others are ordered around their partial sums."""
    if not form.ordered or _cuts(scattered, body, form) is None:
        return None
    products = tuple(product.op for product in scattered.products)
    return Ordered(scattered.op, products, scattered.rows)


def _cuts(scattered: ScatteredProducts, body: BodyForm, form: Form) -> dict[Value, Cut] | None:
    """The cuts of the products and of what is computed from them; None if sums cannot go round."""
    size, parts = scattered.cut.size, _parts(scattered, form)
    if parts < 1 or size % parts or size < parts:
        return None
    if not can_go_round(scattered.op, body, scattered.count):
        return None
    return scattered.cuts(Cut(scattered.cut.dimension, size * scattered.count))


def _parts(scattered: ScatteredProducts, form: Form) -> int:
    size = scattered.cut.size
    return form.parts or next((k for k in (_USUAL, 2) if size % k == 0), 1)


def _value(
    scattered: ScatteredProducts,
    body: BodyForm,
    cuts: dict[Value, Cut],
    operands: Sequence[MovedRows],
    parts: int,
    form: Form,
) -> Value:
    around = ring(body, scattered.axes, form.order)
    steps = _Steps(scattered, around, around.table(), cuts, operands, parts, form)
    sums = (_unrolled if steps.around.count <= MOST_UNROLLED else _in_loop)(steps)
    type_ = scattered.op.results[0].type
    if form.in_place:
        return steps.put(sums, empty(type_, form.empty))
    own = scalar(0)
    rounded = [build.convert(each, steps.sent_as) for each in steps.add(sums, own, own)]
    return join(rounded, Cut(scattered.cut.dimension, steps.size), type_, None)


def _unrolled(steps: _Steps) -> list[Value]:
    """The sums before the last step."""
    numbers = [scalar(number) for number in range(1, steps.around.count)]
    sums = steps.add([], numbers[0], numbers[-1])
    step = Called("shmap_step", lambda *values: steps.add(values[:-2], *values[-2:]))
    for ahead, behind in zip(numbers[1:], reversed(numbers[:-1]), strict=True):
        sums = step(*sums, ahead, behind)
    return sums


def _in_loop(steps: _Steps) -> list[Value]:
    """The same, by a loop; a step of the loop is some of the ring, as its last transfer waits."""
    around = steps.around

    def add(sums: Sequence[Value], step: Value) -> list[Value]:
        after = build.add(step, scalar(1))
        return steps.add(sums, around.number(after), around.number(after, -1))

    def several(number: Value, sums: list[Value]) -> list[Value]:
        first = build.add(build.multiply(number, scalar(STEPS_OF_SUMS)), scalar(1))
        for more in range(STEPS_OF_SUMS):
            sums = add(sums, build.add(first, scalar(more)))
        return sums

    trips = (around.count - 2) // STEPS_OF_SUMS
    sums = repeated(trips, add([], scalar(0)), several)
    for number in range(1 + STEPS_OF_SUMS * trips, around.count - 1):
        sums = add(sums, scalar(number))
    return sums


@dataclass(frozen=True)
class _Steps:
    """What the steps of a ring do.

    Attributes:
      table: of the members, which are known by their numbers in it.
      moved: the operands of the products that have the scattered dimension.
    """

    scattered: ScatteredProducts
    around: Ring
    table: Value
    cuts: dict[Value, Cut]
    moved: Sequence[MovedRows]
    parts: int
    form: Form

    @property
    def size(self) -> int:
        """The rows of a block."""
        return self.scattered.cut.size

    @property
    def sent_as(self) -> ir.Type:
        return element_of(self.scattered.op.results[0])

    def add(self, sums: Sequence[Value], ahead: Value, behind: Value) -> list[Value]:
        """Sends sums on, and adds to each its piece of the product; without sums, the first ones.

        Args:
          ahead, behind: the members whose blocks belong to sums that go forward and backward.
        """
        places = [
            (behind if number % 2 else ahead, self._first(number)) for number in range(self.parts)
        ]
        if not sums:
            return [
                build.convert(self._product(*place, *self._operands)[0], self._kept_as)
                for place in places
            ]
        return [
            self._sum(self._received(number, sent), *place)[0]
            for number, (sent, place) in enumerate(zip(sums, places, strict=True))
        ]

    def put(self, sums: Sequence[Value], buffer: Value) -> Value:
        """The last step of all: the own block, with each sum in its place.

        A sum is used when the one before is in its place. libtpu would wait for all of them first.
        """
        own = scalar(0)
        for number, sent in enumerate(sums):
            before = [buffer] if number else []
            first = self._first(number)
            computed, *put = self._sum(self._received(number, sent), own, first, *before)
            rounded = build.convert(computed, self.sent_as)
            buffer = put_at(put[0] if put else buffer, rounded, self.scattered.cut.dimension, first)
        return buffer

    def _received(self, number: int, sent: Value) -> Value:
        """What comes in place of a sum when all devices have sent theirs on."""
        return self.around.shift(sent, -1 if number % 2 else 1)

    def _first(self, number: int) -> Value:
        """The first row of a sum in its block."""
        return scalar(number * (self.size // self.parts))

    @property
    def _added_as(self) -> ir.Type:
        return adding_type(self.sent_as)

    @property
    def _kept_as(self) -> ir.Type:
        return self._added_as if self.form.wide else self.sent_as

    @cached_property
    def _sum(self) -> Called:
        """What adds the rows of a block from the first one on to a sum that has come."""
        return Called("shmap_add", self._added)

    def _added(self, received: Value, member: Value, first: Value, *before: Value) -> list[Value]:
        """A sum with its piece of the product, and the values that must be there before."""
        operands = self._operands
        if self.form.barriers:
            received, *values = barrier(received, *operands, *before)
            operands, before = values[: len(operands)], tuple(values[len(operands) :])
        (computed,) = self._product(member, first, *operands)
        added = build.add(build.convert(received, self._added_as), computed)
        return [build.convert(added, self._kept_as), *before]

    @property
    def _operands(self) -> list[Value]:
        return list(dict.fromkeys(moved.source for moved in self.moved))

    @cached_property
    def _product(self) -> Called:
        """The rows of the product from the first one on, from its operands that have rows."""

        def product(member: Value, first: Value, *operands: Value) -> list[Value]:
            start = build.add(self.around.start(self.table, member, self.size), first)
            place, piece = place_in(self.size * self.around.count, start), self.size // self.parts
            arrays = dict(zip(self._operands, operands, strict=True))
            taken = {(moved.operand, moved.cut): moved for moved in self.moved}

            def rows(operand: Value, cut: Cut) -> Value:
                moved = taken[operand, cut]
                return moved.piece(arrays[moved.source], place, piece)

            return [_product(self.scattered, self.cuts, rows, piece, self._added_as)]

        return Called("shmap_product", product)


def _product(
    scattered: ScatteredProducts,
    cuts: dict[Value, Cut],
    rows: Take,
    size: int,
    element: ir.Type,
) -> Value:
    """So many rows of the product, as numbers of type `element`."""
    ops, summed = scattered.ops, scattered.summed
    if not _is_only_moved(scattered) or element == element_of(summed):
        return build.convert(compute(ops, {}, cuts, size, rows)[summed], element)
    known: dict[Value, Value] = {}
    for op in ops:
        if op.name == "stablehlo.convert":
            known[op.results[0]] = known[op.operands[0]]
        else:
            known = compute([op], known, cuts, size, rows, element)
    return known[summed]


def _is_only_moved(scattered: ScatteredProducts) -> bool:
    """Whether products reach the sum as they are, but for their order and rounding, or added up."""
    moving = {TRANSPOSE, "stablehlo.convert", ADD}
    values = [op.results[0] for op in scattered.ops]
    return all(op.name in moving for op in scattered.chain) and all(
        isinstance(element_of(value), ir.BF16Type | ir.F16Type | ir.F32Type) for value in values
    )
