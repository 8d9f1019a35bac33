"""Orders exchanges and sums that are computed in chunks by the whole arrays that they need."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from jaxlib.mlir import ir

from ..ir.ops import defining_op, walk
from ..ir.types import Value
from .cuts import Cut
from .exchanges import ALL_TO_ALL
from .products import DOT, Product


@dataclass(frozen=True)
class Segment:
    """All_to_alls between which no array is joined.

    Attributes:
      exchanges: in program order.
      lags: for each, by how many chunks it is behind the first.
      sums: the products that sum over what is cut.
      products: the others.
      late: what others compute from results of the segment before its last exchange.
    """

    exchanges: tuple[ir.Operation, ...]
    lags: tuple[int, ...]
    sums: tuple[ir.Operation, ...]
    products: tuple[Product, ...]
    late: tuple[ir.Operation, ...]

    @property
    def all_products(self) -> tuple[Product, ...]:
        return (*self.products, *map(Product.of, self.sums))

    @property
    def end(self) -> ir.Operation:
        """Where it is computed: at its last exchange."""
        return self.exchanges[-1]


def segments(
    ops: Sequence[ir.Operation], kept: Sequence[ir.Operation], cuts: Mapping[Value, Cut]
) -> tuple[Segment, ...] | None:
    """The segments of a block; None if it cannot be computed in their order.

    Args:
      ops: what is computed in chunks, in program order, with all_to_alls and sums.
      kept: those of them that are also computed whole.
    """
    block = [each.operation for each in ops[0].block.operations]
    places = {op: place for place, op in enumerate(block)}
    numbers, needing = _numbers(block, {*ops}, {*kept}, cuts)
    found: list[Segment] = []
    for number in range(max(numbers.values()) + 1):
        inside = [op for op in ops if numbers[op] == number]
        exchanges = [op for op in inside if op.name == ALL_TO_ALL]
        sums = [op for op in inside if op.results[0] not in cuts]
        if not exchanges:
            if sums:
                return None
            continue
        end = places[exchanges[-1]]
        if found and end < places[found[-1].end]:
            return None
        sources = [defining_op(value) for op in sums for value in op.operands]
        if any(op not in numbers and places.get(op, 0) > end for op in sources if op is not None):
            return None
        late = [op for op, at in needing.items() if at == number and places[op] < end]
        products = [Product.of(op) for op in inside if op.name == DOT and op not in sums]
        lags = _lags(exchanges, [op for op in ops if op.results[0] in cuts])
        found.append(Segment(tuple(exchanges), lags, tuple(sums), tuple(products), tuple(late)))
    # What is exchanged must be computed in chunks, too.
    return tuple(found) if any(any(segment.lags) for segment in found) else None


def _numbers(
    block: Sequence[ir.Operation],
    inside: set[ir.Operation],
    kept: set[ir.Operation],
    cuts: Mapping[Value, Cut],
) -> tuple[dict[ir.Operation, int], dict[ir.Operation, int]]:
    """The segment of each operation inside, and that after which others have their operands."""
    numbers: dict[ir.Operation, int] = {}
    after: dict[Value, int] = {}  # the segment that must be computed before a whole array
    needing: dict[ir.Operation, int] = {}
    chunks: dict[Value, int] = {}
    for op in block:
        if op in inside:
            known = [chunks[value] for value in op.operands if value in chunks]
            known += [after.get(value, -1) + 1 for value in op.operands if value not in chunks]
            numbers[op] = max(known)
            result = op.results[0]
            if result in cuts:
                chunks[result] = numbers[op]
            if op not in kept:
                after[result] = numbers[op]
        if op not in inside or op in kept:
            needed = [
                after[value] for each in walk(op) for value in each.operands if value in after
            ]
            if needed:
                needing[op] = max(needed)
                after.update((result, needing[op]) for result in op.results)
    return numbers, needing


def _lags(exchanges: Sequence[ir.Operation], ops: Sequence[ir.Operation]) -> tuple[int, ...]:
    """One chunk for each exchange of what products have computed from another.

    What is exchanged only element by element is not behind.
    """
    lags: dict[Value, int] = {}
    behind: dict[Value, int] = {}
    found: list[int] = []
    for op in ops:
        result = op.results[0]
        lags[result] = max((lags.get(value, 0) for value in op.operands), default=0)
        behind[result] = max((behind.get(value, 0) for value in op.operands), default=0)
        if op.name == DOT:
            behind[result] = 1
        if op in exchanges:
            lags[result] += behind[result]
            behind[result] = 0
            found.append(lags[result])
    return tuple(found)
