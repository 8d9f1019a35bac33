"""Orders exchanges and sums that are computed in chunks by the whole arrays that they need."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from jaxlib.mlir import ir

from ...ir.dataflow import Dataflow, Node
from ...ir.types import Value
from .cuts import Cut
from .exchanges import ALL_TO_ALL
from .products import DOT, Product


@dataclass(frozen=True)
class Segment:
    """All_to_alls between which no array is joined.

    Attributes:
      exchanges: in program order.
      lags: for each, by how many chunks it is behind the first.
      sums: the products that sum over what is cut, and those whose chunks are joined.
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
    ops: Sequence[Node], kept: Sequence[Node], cuts: Mapping[Value, Cut], flow: Dataflow
) -> tuple[Segment, ...] | None:
    """The segments of a block; None if it cannot be computed in their order.

    Args:
      ops: what is computed in chunks, in program order, with all_to_alls and sums.
      kept: those of them that are also computed whole.
    """
    in_chunks = [node for node in ops if node.result in cuts]
    numbers, needing = _numbers(flow.nodes, {*ops}, {*kept}, cuts)
    found: list[Segment] = []
    before = -1
    for number in range(max(numbers.values()) + 1):
        inside = [node for node in ops if numbers[node] == number]
        exchanges = [node for node in inside if node.name == ALL_TO_ALL]
        sums = [node for node in inside if node.result not in cuts]
        if not exchanges:
            if sums:
                return None
            continue
        end = exchanges[-1].number
        if end < before:
            return None
        sources = [flow.source(value) for node in sums for value in node.operands]
        if any(each is not None and each not in numbers and each.number > end for each in sources):
            return None
        late = [node.op for node, at in needing.items() if at == number and node.number < end]
        products = [Product.of(node.op) for node in inside if node.name == DOT and node not in sums]
        found.append(
            Segment(
                tuple(node.op for node in exchanges),
                _lags(exchanges, in_chunks),
                tuple(node.op for node in sums),
                tuple(products),
                tuple(late),
            )
        )
        before = end
    # What is exchanged must be computed in chunks, too.
    return tuple(found) if any(any(segment.lags) for segment in found) else None


def _numbers(
    block: Sequence[Node], inside: set[Node], kept: set[Node], cuts: Mapping[Value, Cut]
) -> tuple[dict[Node, int], dict[Node, int]]:
    """The segment of each operation inside, and that after which others have their operands."""
    numbers: dict[Node, int] = {}
    after: dict[Value, int] = {}  # the segment that must be computed before a whole array
    needing: dict[Node, int] = {}
    chunks: dict[Value, int] = {}
    for node in block:
        is_inside = node in inside
        if is_inside:
            known = [
                chunks[value] if value in chunks else after.get(value, -1) + 1
                for value in node.operands
            ]
            numbers[node] = max(known)
            if node.result in cuts:
                chunks[node.result] = numbers[node]
            if node not in kept:
                after[node.result] = numbers[node]
        if not is_inside or node in kept:
            needed = [after[value] for value in (*node.operands, *node.inner) if value in after]
            if needed:
                needing[node] = max(needed)
                after.update((result, needing[node]) for result in node.results)
    return numbers, needing


def _lags(exchanges: Sequence[Node], ops: Sequence[Node]) -> tuple[int, ...]:
    """One chunk for each exchange of what products have computed from another.

    What is exchanged only element by element is not behind.
    """
    lags: dict[Value, int] = {}
    behind: dict[Value, int] = {}
    for node in ops:
        lag = max([lags[value] for value in node.operands if value in lags], default=0)
        products = max([behind[value] for value in node.operands if value in behind], default=0)
        if node.name == DOT:
            products = 1
        if node in exchanges:
            lag, products = lag + products, 0
        lags[node.result], behind[node.result] = lag, products
    return tuple(lags[node.result] for node in exchanges)
