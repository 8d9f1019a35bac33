"""The order of gathers, scatters and what is computed between them in a block of rows.

for round_ in rounds_of(block):
    round_.gathers, round_.scatter
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from jaxlib.mlir import ir

from ...ir.ops import Position, next_op
from ..find.products import DOT, Product
from ..find.row_block import RowBlock
from ..find.scatters import ScatteredProducts


def segments(
    block: RowBlock,
) -> Iterator[tuple[ir.Operation | ScatteredProducts, list[ir.Operation], ir.Operation]]:
    """Each gather and scatter, the operations up to the next one, and where these end."""
    scatters = {each.op: each for each in block.scatters}
    head: ir.Operation | ScatteredProducts = block.op
    ops: list[ir.Operation] = []
    inside = sorted((*block.ops, *scatters), key=Position)
    for op in inside:
        if op in scatters or op in block.gathers:
            if op != block.op:
                yield head, ops, op
            head, ops = scatters.get(op, op), []
        else:
            ops.append(op)
    yield head, ops, next_op(inside[-1])


@dataclass
class Round:
    """Gathers whose chunks come at the same time, and the scatter of what is computed from them.

    Attributes:
      end: what comes after all of its operations.
      scatter: None if what is computed is not scattered before the next gather.
      first: the products and sums beside which the next chunk is gathered.
      second: the sums that are computed, with what is scattered, beside the scatter of the chunk
        before.
      after: the products and sums after the scatter.
    """

    end: ir.Operation
    gathers: list[ir.Operation] = field(default_factory=list)
    scatter: ScatteredProducts | None = None
    first: list[ir.Operation] = field(default_factory=list)
    second: list[ir.Operation] = field(default_factory=list)
    after: list[ir.Operation] = field(default_factory=list)

    @property
    def first_products(self) -> list[Product]:
        return [Product.of(op) for op in self.first if op.name == DOT]

    @property
    def last_products(self) -> list[Product]:
        """Those of the scatter, and what is beside or after it."""
        scattered = () if self.scatter is None else self.scatter.products
        others = [Product.of(op) for op in (*self.second, *self.after) if op.name == DOT]
        return [*others, *scattered]

    @property
    def place(self) -> ir.Operation:
        """Before which its stages are computed."""
        return self.end if self.scatter is None else self.scatter.op


def rounds_of(block: RowBlock) -> list[Round]:
    """In program order. No gather, and nothing with rows, needs sums, so chunks need none."""
    found: list[Round] = []
    for head, ops, end in segments(block):
        if not found or found[-1].scatter is not None:
            found.append(Round(end))
        last = found[-1]
        last.end = end
        if isinstance(head, ScatteredProducts):
            last.scatter = head
            last.second += [op for op in ops if _is_computed_before(op, head, block)]
            last.after = [op for op in ops if op not in last.second]
        else:
            last.gathers.append(head)
            gathered = {each.results[0] for each in last.gathers}
            for op in ops:
                needs_more = op in block.sums and gathered.isdisjoint(op.operands)
                (last.second if needs_more else last.first).append(op)
    return found


def _is_computed_before(op: ir.Operation, scatter: ScatteredProducts, block: RowBlock) -> bool:
    """Whether an operation after a scatter is a sum of what is computed before it."""
    rows = [value for value in op.operands if value in block.cuts]
    made = [ir.OpResult(value).owner.operation for value in rows]
    return op in block.sums and all(each.is_before_in_block(scatter.op) for each in made)
