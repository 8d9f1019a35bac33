"""Finds where an operand of a product comes from, and whether others read what it comes from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from ...ir.dataflow import Dataflow, Node
from ...ir.elementwise import ELEMENTWISE
from ...ir.ops import defining_op
from ...ir.types import Value
from .products import DOT, Product

Source = Literal["argument", "product", "shared", "other"]

_ALIKE = ("stablehlo.broadcast_in_dim", "stablehlo.constant")
_MOST = 64
"""More operations are not looked at."""


def source_of(product: Product, side: int, flow: Dataflow) -> Source:
    """Where an operand of a product comes from.

    Args:
      flow: of the block of the product.

    Returns:
      "argument" for one of the function or of the loop. If it is computed element by element, as an
      activation is: "product" if it is computed from one product, which nothing else reads, and
      "shared" if others read it or what it is computed from, as a gradient does. Else "other".
    """
    operand = product.op.operands[side]
    source = flow.source(operand)
    if source is None:
        return "argument" if defining_op(operand) is None else "other"
    if source.name != DOT and source.name not in ELEMENTWISE:
        return "other"
    found = computed_from(operand, flow)
    if found is None:
        return "other"
    between, before = found
    made = [*before, *between]
    inside = {flow.node(product.op), *made}
    if not all(inside.issuperset(flow.users(value)) for each in made for value in each.results):
        return "shared" if between else "other"
    return "product" if [each.name for each in before] == [DOT] else "other"


def source_of_all(products: Sequence[Product], sides: Sequence[int], flow: Dataflow) -> Source:
    """Where an operand of each of some products comes from, if all come from there.

    "shared" if one of them does, and else "other".
    """
    found: set[Source] = {
        source_of(each, side, flow) for each, side in zip(products, sides, strict=True)
    }
    if len(found) == 1:
        return found.pop()
    return "shared" if "shared" in found else "other"


def computed_from(operand: Value, flow: Dataflow) -> tuple[list[Node], list[Node]] | None:
    """What computes an operand element by element, and the operations whose results that reads.

    None if some of it is computed outside of the block.
    """
    between: dict[Node, None] = {}
    before: dict[Node, None] = {}
    values = [operand]
    while values and len(between) < _MOST:
        value = values.pop()
        node = flow.source(value)
        if node is None:
            outside = defining_op(value)
            if outside is not None and outside.name not in _ALIKE:
                return None
        elif node.name in ELEMENTWISE:
            if node not in between:
                between[node] = None
                values += node.operands
        elif node.name not in _ALIKE:
            before[node] = None
    return list(between), list(before)
