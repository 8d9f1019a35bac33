"""Computes with gathered rows chunk by chunk: a gather beside the products of the chunk before.

A chunk has some rows of each device. Chunks are never joined: products that sum over the rows add
one product for each chunk, and each partial sum over devices is of the rows of one chunk.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from jaxlib.mlir import ir

from ...ir import build
from ...ir.body_form import BodyForm
from ...ir.slices import put_at, scalar
from ...ir.types import Value, array_bytes, element_of
from ..find.row_block import RowBlock
from ..find.scatters import ScatteredProducts
from ..form import Form
from .called import Alike, Called
from .equal_sites import SiteFunctions
from .pieces import adding_type, empty
from .rings import Ring, place_in, ring
from .row_pieces import RowPieces
from .row_products import BlockOfAll, BlockOfRows
from .row_rounds import segments


def compute_in_chunks(block: RowBlock, body: BodyForm, form: Form) -> None:
    """Rewrites a block, if chunks have as many rows of each device."""
    parts = form.chunks(block.size)
    if not parts:
        return
    around = ring(body, block.axes, form.order)
    functions = SiteFunctions(block.all_ops, form)
    _Chunks(block, form, parts, around, functions).rewrite()


@dataclass
class _Chunks(RowPieces):
    """A block whose partial sums go round.

    Between two gathers, or sums over devices, only what cannot be computed from one array with rows
    is kept.
    """

    around: Ring
    functions: SiteFunctions

    def rewrite(self) -> None:
        for head, ops, end in list(segments(self.block)):
            if isinstance(head, ScatteredProducts):
                with ir.InsertionPoint(head.op), head.op.location:
                    head.op.results[0].replace_all_uses_with(self._scattered(head))
                with ir.InsertionPoint(end), head.op.location:
                    for known in self.known:
                        self.compute(known, ops)
                    self.sum_all(op for op in ops if op in self.block.sums)
            else:
                with ir.InsertionPoint(end), head.location:
                    self._gathered(head, ops)
            for op in self.block.late:
                if op.is_before_in_block(end):
                    op.move_before(end)
        for op in reversed(self.block.all_ops):
            op.erase()

    def _gathered(self, gather: ir.Operation, ops: Sequence[ir.Operation]) -> None:
        """Gathers chunk by chunk, with what comes before the next gather or scatter."""
        whole = gather.results[0]
        here = [op for op in ops if op in self.block.sums and whole in op.operands]
        kept = self._kept(ops)
        functions = self.functions
        for value, piece in self.known[0].items():
            functions.add(piece, "piece", *functions.names([value]))
        label = functions.names([whole, *self.known[0]]), functions.names(kept)
        compute_chunk = Alike[Value](
            "shmap_chunk",
            lambda known: self._chunk(known, ops, here, kept),
            by=functions.labelled(*label),
        )
        sums: list[Value] = []
        pieces: list[Value] = []
        following = self.gather(gather, 0)
        for part, known in enumerate(self.known):
            current, is_last = following, part + 1 == self.parts
            if not is_last:
                chunk, current = self.order(self.own(gather, part + 1), current)
                following = self.gather_chunk(gather, chunk)
            known[whole] = current
            if part == 0:
                functions.add(current, "piece", *functions.names([whole]))
            computed = compute_chunk(known)
            products, computed = computed[: len(here)], computed[len(here) :]
            sums = list(map(build.add, sums, products)) if part else products
            if not is_last:
                *values, following = self.order(*sums, *computed, following)
                sums, computed = values[: len(here)], values[len(here) :]
            pieces += computed
        pieces = self.order(*pieces)
        for part, known in enumerate(self.known):
            known.update(zip(kept, pieces[part * len(kept) :], strict=False))
        for op, total in zip(here, sums, strict=True):
            self.put(op.results[0], total)
        self.sum_all(op for op in ops if op in self.block.sums and op not in here)

    def _chunk(
        self,
        known: Mapping[Value, Value],
        ops: Sequence[ir.Operation],
        here: Sequence[ir.Operation],
        kept: Sequence[Value],
    ) -> list[Value]:
        """Products that sum over the rows of a chunk, and what is kept of it."""
        pieces = dict(known)
        self.compute(pieces, ops)
        products = [self.product(pieces, op) for op in here]
        return [*products, *(self.piece(pieces, value) for value in kept)]

    def _kept(self, ops: Sequence[ir.Operation]) -> list[Value]:
        """What is kept of some operations for those after them."""
        inside = {*ops}
        values = [op.results[0] for op in ops if op not in self.block.sums]
        found: dict[Value, None] = {}
        several: dict[Value, set[Value]] = {}
        for value in values:
            if any(use.owner.operation not in inside for use in value.uses):
                sources = self.block.sources(value)
                if len(sources) > 1:
                    several[value] = sources
                elif (alone := sources.pop()) in values:
                    found[alone] = None
        # What is computed from several arrays is kept unless all of them are, or are smaller.
        kept = {*found, *self.known[0]}
        missing = [value for value, sources in several.items() if not sources <= kept]
        instead = {source for value in missing for source in several[value]} - kept
        if instead <= {*values} and sum(map(array_bytes, instead)) < sum(map(array_bytes, missing)):
            missing = [value for value in values if value in instead]
        found.update(dict.fromkeys(missing))
        return list(found)

    def _scattered(self, scattered: ScatteredProducts) -> Value:
        """Partial sums, one for each chunk, that go round; every other one goes backward."""
        kind = BlockOfRows if self.block.way.dimension is None else BlockOfAll
        block = kind(self, scattered, self.place, self.around.count)
        result = scattered.op.results[0]
        sent_as, count = element_of(result), self.around.count
        numbers, sources = self._numbers, block.sources

        def computed(number: Value, *arrays: Value) -> list[Value]:
            return [block.product(number, arrays, adding_type(sent_as))]

        def added(received: Value, number: Value, *others: Value) -> list[Value]:
            """A sum with its piece of the product, and what must be there before but `arrays`."""
            received, *values = self.order(received, *others)
            (product,) = piece(number, *values[: len(sources)])
            return [_added(received, product), *values[len(sources) :]]

        self.functions.add(self.table, "table")
        by = self.functions.labelled(*self.functions.names([scattered.summed, *sources]))
        piece = Called("shmap_product", computed, by=by)
        add = Called("shmap_add", added, by=by)
        chunks = [[self.piece(known, value) for value in sources] for known in self.known]
        ways = [-1 if part % 2 else 1 for part in range(self.parts)]
        sums = [
            build.convert(piece(numbers[way], *arrays)[0], sent_as)
            for way, arrays in zip(ways, chunks, strict=True)
        ]
        # Written out: with a function for each step, libtpu starts transfers in another order, and
        # the gradient of an MLP block takes 9.89 ms on v5e instead of 9.73.
        for step in range(2, count):
            for part, way in enumerate(ways):
                received = self.around.shift(sums[part], way)
                (sums[part],) = add(received, numbers[way * step], *chunks[part])
        buffer = empty(result.type, self.form.empty)
        own = self.block.scattered_cut(scattered)
        for part, way in enumerate(ways):
            received = self.around.shift(sums[part], way)
            rounded, buffer = add(received, numbers[0], *chunks[part], buffer)
            place = scalar(part * self.size * own.inner)
            buffer = put_at(buffer, rounded, own.dimension, place)
        return buffer

    def place(self, number: Value, size: int) -> Value:
        """Where the block of a device begins, if blocks have `size` indices.

        Args:
          number: of the device, in the table.
        """
        start = self.around.start(self.table, number, size)
        return place_in(size * self.around.count, start)

    @cached_property
    def table(self) -> Value:
        """The table of the ring on which partial sums go; built before the first of all."""
        return self.around.table()

    @cached_property
    def _numbers(self) -> list[Value]:
        """Of the members in the table."""
        return [scalar(number) for number in range(self.around.count)]


def _added(received: Value, product: Value) -> Value:
    element = element_of(received)
    return build.convert(build.add(build.convert(received, element_of(product)), product), element)
