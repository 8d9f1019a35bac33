"""The values of a block of rows by chunk, as they are built.

A chunk has some rows of each device. Chunks are never joined: products that sum over the rows add
one product for each chunk.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from jaxlib.mlir import ir

from ...ir import build
from ...ir.ops import defining_op, needed_first
from ...ir.types import Value, element_of, shape_of, tensor
from ..find.products import DOT
from ..find.row_block import RowBlock
from ..find.row_sums import REDUCE, row_sum
from ..find.scatters import ScatteredProducts
from ..form import Form
from .pieces import adding_type, barrier, compute, no_rows, piece_type, take


@dataclass
class RowPieces:
    """The pieces of a block that is computed in `parts` chunks.

    What is computed element by element is built where it is needed.

    Attributes:
      known: for each chunk, the pieces of values that have rows.
    """

    block: RowBlock
    form: Form
    parts: int
    known: list[dict[Value, Value]] = field(init=False)

    def __post_init__(self) -> None:
        self.known = [{} for _ in range(self.parts)]

    @property
    def size(self) -> int:
        """How many of the indices of a device that are cut a chunk has."""
        return self.block.size // self.parts

    def gather(self, gather: ir.Operation, part: int) -> Value:
        """Gathers a chunk."""
        return self.gather_chunk(gather, self.own(gather, part))

    def own(self, gather: ir.Operation, part: int) -> Value:
        """The rows of this device in a chunk that is gathered."""
        cut = self.block.way.own(gather)
        return take(gather.operands[0], cut, part * self.size, self.size)

    def gather_chunk(self, gather: ir.Operation, own: Value) -> Value:
        whole = gather.results[0]
        return build.like(gather, piece_type(whole, self.block.cuts[whole], self.size), [own])

    def scatter_chunk(self, scattered: ScatteredProducts, summed: Value) -> Value:
        """Scatters the sum of a chunk."""
        op, cut = scattered.op, self.block.scattered_cut(scattered)
        return build.like(op, piece_type(op.results[0], cut, self.size), [summed])

    def compute(self, known: dict[Value, Value], ops: Iterable[ir.Operation]) -> None:
        """The products of a chunk that keep its rows."""
        for op in ops:
            if op.name == DOT and op not in self.block.sums:
                self.piece(known, op.results[0])

    def product(self, known: dict[Value, Value], op: ir.Operation) -> Value:
        """The sum over the rows of a chunk."""
        element = adding_type(element_of(op.results[0]))
        if op.name == REDUCE:
            return row_sum(op, self.piece(known, op.operands[0]), element)
        type_ = tensor(shape_of(op.results[0]), element)
        return build.like(op, type_, [self.piece(known, value) for value in op.operands])

    def piece(self, known: dict[Value, Value], value: Value) -> Value:
        """The rows of a chunk of a value that has rows, computed of those that are known."""
        for each in needed_first([value], lambda value: self._needed(known, value)):
            op = defining_op(each)
            if each not in known and op is not None:
                known[each] = compute([op], known, self.block.cuts, self.size, no_rows)[each]
        return known[value]

    def _needed(self, known: Mapping[Value, Value], value: Value) -> list[Value]:
        """What has rows and is needed to compute a value, unless its piece is known."""
        if value in known:
            return []
        op = defining_op(value)
        assert op is not None, "what has rows is computed from what is gathered"
        return [operand for operand in op.operands if operand in self.block.cuts]

    def sum_all(self, ops: Iterable[ir.Operation]) -> None:
        """Sums over the rows of all chunks."""
        for op in ops:
            first, *others = self.known
            total = self.product(first, op)
            for known in others:
                total = build.add(total, self.product(known, op))
            self.put(op.results[0], total)

    def put(self, value: Value, total: Value) -> None:
        """Replaces the result of a sum."""
        value.replace_all_uses_with(build.convert(total, element_of(value)))

    def order(self, *values: Value) -> list[Value]:
        """The values, none of which is used before all are there."""
        return barrier(*values) if self.form.barriers and values else list(values)
