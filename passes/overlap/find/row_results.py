"""What operations compute of gathered rows: rows, sums over rows, or what is scattered."""

from __future__ import annotations

from jaxlib.mlir import ir

from ...ir.dataflow import Node
from ...ir.elementwise import ELEMENTWISE
from ...ir.types import Value
from .alike import is_alike
from .cuts import MOVING, Cut, cut_of_operand, cut_through
from .products import DOT, Product
from .row_sums import REDUCE, adds_along, kept_dimension
from .row_ways import ROWS, Way
from .scatters import ScatteredProducts


def is_computed_again(op: ir.Operation) -> bool:
    """Whether an operation stores nothing: what reads its result computes it for each chunk."""
    return op.name in ELEMENTWISE or op.name in MOVING


def sums_rows(node: Node, cuts: dict[Value, Cut]) -> bool:
    """Whether a product sums over the rows of both of its operands, or a sum over those of one."""
    if node.name == REDUCE:
        cut = cuts.get(node.operands[0])
        return cut is not None and adds_along(node.op, cut.dimension)
    if node.name != DOT or not all(value in cuts for value in node.operands):
        return False
    left, right = Product.of(node.op).contracted
    first, second = (cuts[value].dimension for value in node.operands)
    return (first, second) in [*zip(left, right, strict=True)]


def are_scattered(cut: Cut, scattered: ScatteredProducts, way: Way) -> bool:
    """Whether chunks of what is scattered are scattered to chunks.

    Args:
      cut: of the operand of a reduce_scatter.
    """
    if way.dimension is not None:
        return cut.dimension != scattered.cut.dimension
    own = way.scattered(scattered.cut)
    return own is not None and cut == own.of(scattered.count)


def has_rows_once(scattered: ScatteredProducts, cuts: dict[Value, Cut]) -> bool:
    """Whether of each product one operand has rows, which is the one that is scattered."""
    return all(
        len(sides) == 1 and [*sides] == [k for k, v in enumerate(product.op.operands) if v in cuts]
        for product, sides in zip(scattered.products, scattered.scattered, strict=True)
    )


def rows_through(node: Node, number: int, cut: Cut) -> Cut | None:
    """The cut of what an operation computes of rows, also if it is reduced in other dimensions."""
    if node.name == REDUCE:
        kept = kept_dimension(node.op, cut.dimension)
        return None if kept is None else cut.along(kept)
    return cut_through(node.op, number, cut)


def result_of_rows(
    node: Node,
    number: int,
    cuts: dict[Value, Cut],
    way: Way,
    others: dict[Value, Cut] | None = None,
) -> Cut | None:
    """The cut of what is computed row by row; None if it is not.

    Args:
      number: of an operand that has rows.
      others: cuts of other arrays that are taken in chunks; one may be added. None if none can be.
    """
    if node.name not in (DOT, REDUCE) and not is_computed_again(node.op):
        return None
    cut = cuts[node.operands[number]]
    result = rows_through(node, number, cut)
    if result is None or (result.outer, result.size) != (cut.outer, cut.size):
        return None
    if way == ROWS and result.inner > 1:
        return None  # Rows are not those of a dimension, but of a part of one.
    for k, value in enumerate(node.operands):
        if k == number:
            continue
        if value in cuts:
            if cuts[value] != cut_of_operand(node.op, k, result):
                return None
        else:
            own = cut_of_operand(node.op, k, result)
            if own is None or is_alike(value, own.dimension):
                continue
            if others is None or others.setdefault(value, own) != own:
                return None
    return result
