"""The products that a chunk of rows adds to the sum of a device, which has a block of each chunk.

If rows are cut, a chunk has some of each device; if another dimension is, all of all devices.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

from jaxlib.mlir import ir

from ...ir import build
from ...ir.ops import defining_op, needed_first
from ...ir.slices import take_at
from ...ir.types import Value, tensor
from ..find.cuts import Cut
from ..find.row_results import is_computed_again
from ..find.scatters import ScatteredProducts
from .pieces import compute, no_rows, piece_type
from .row_pieces import RowPieces

Place = Callable[[Value, int], Value]
"""Where the block of a device, by its number on a ring, begins if blocks have so many indices."""


@dataclass
class BlockOfRows:
    """What is computed of a device's rows of a chunk.

    Attributes:
      count: the number of devices.
    """

    pieces: RowPieces
    scattered: ScatteredProducts
    place: Place
    count: int

    @property
    def sources(self) -> list[Value]:
        """What the products are computed from."""
        return self._before[1]

    def product(self, number: Value, arrays: Sequence[Value], element: ir.Type) -> Value:
        """What a chunk adds to the sum of a device.

        Args:
          number: of the device on the ring.
          arrays: the pieces of `sources`.
          element: the type of the numbers that are added.
        """
        size = self.pieces.size
        cuts = {
            value: Cut(cut.dimension, cut.size * self.count, inner=cut.inner)
            for value, cut in self.pieces.block.cuts.items()
        }
        starts: dict[int, Value] = {}
        known: dict[Value, Value] = {}
        for value, array in zip(self.sources, arrays, strict=True):
            cut = cuts[value]
            if cut.inner not in starts:
                starts[cut.inner] = self.place(number, size * cut.inner)
            known[value] = take_at(array, cut.dimension, starts[cut.inner], size * cut.inner)
        known = compute(self._before[0], known, cuts, size, no_rows)
        products = compute(self.scattered.ops, known, cuts, size, no_rows, element)
        return products[self.scattered.summed]

    @cached_property
    def _before(self) -> tuple[list[ir.Operation], list[Value]]:
        """What is computed again for the products, and the known values it needs."""
        known, cuts = self.pieces.known[0], self.pieces.block.cuts

        def computed(value: Value) -> ir.Operation | None:
            op = None if value in known else defining_op(value)
            return op if op is not None and is_computed_again(op) else None

        def needed(value: Value) -> list[Value]:
            op = computed(value)
            return [] if op is None else [each for each in op.operands if each in cuts]

        values = needed_first(self.scattered.operands_with_rows, needed)
        ops = [op for value in values if (op := computed(value)) is not None]
        return ops, [value for value in values if computed(value) is None]


@dataclass
class BlockOfAll(BlockOfRows):
    """The same if another dimension is cut than that of rows."""

    @property
    def sources(self) -> list[Value]:
        return self.scattered.operands_with_rows

    def product(self, number: Value, arrays: Sequence[Value], element: ir.Type) -> Value:
        rows = self.scattered.cut.size
        cuts = self.scattered.cuts(self.scattered.cut)
        assert cuts is not None, "what is added has the same dimensions"

        def computed(op: ir.Operation, operands: Sequence[Value]) -> Value:
            result = op.results[0]
            shape = piece_type(result, self.pieces.block.cuts[result], self.pieces.size).shape
            shape[cuts[result].dimension] = rows
            return build.like(op, tensor(shape, element), operands)

        place = self.place(number, rows)
        pieces = dict(zip(self.sources, arrays, strict=True))
        known: dict[Value, Value] = {}
        for product, side in zip(self.scattered.products, self.scattered.rows, strict=True):
            operands: list[Value] = [*product.op.operands]
            dimension = product.operand_dimensions(cuts[product.result].dimension)[side]
            operands[side] = take_at(pieces[operands[side]], dimension, place, rows)
            known[product.result] = computed(product.op, operands)
        for op in self.scattered.chain:
            known[op.results[0]] = computed(op, [known[operand] for operand in op.operands])
        return known[self.scattered.summed]
