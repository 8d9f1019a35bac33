"""Finds where an operand of a product comes from, and whether others read what it comes from."""

from __future__ import annotations

from typing import Literal

from jaxlib.mlir import ir

from ..ir.elementwise import ELEMENTWISE
from ..ir.ops import defining_op
from ..ir.types import Value
from .products import DOT, Product

Source = Literal["argument", "product", "shared", "other"]

_ALIKE = ("stablehlo.broadcast_in_dim", "stablehlo.constant")
_MOST = 64
"""More operations are not looked at."""


def source_of(product: Product, side: int) -> Source:
    """Where an operand of a product comes from.

    Returns:
      "argument" for one of the function or of the loop. If it is computed element by element, as an
      activation is: "product" if it is computed from one product, which nothing else reads, and
      "shared" if others read it or what it is computed from, as a gradient does. Else "other".
    """
    operand = product.op.operands[side]
    op = defining_op(operand)
    if op is None:
        return "argument"
    if op.name != DOT and op.name not in ELEMENTWISE:
        return "other"
    between, before = _computed(operand)
    made = [*before, *between]
    inside = {product.op, *made}
    if any(each.block != product.op.block for each in made):
        return "other"
    uses = (use for each in made for value in each.results for use in value.uses)
    if not all(use.owner.operation in inside for use in uses):
        return "shared" if between else "other"
    return "product" if [each.name for each in before] == [DOT] else "other"


def _computed(operand: Value) -> tuple[list[ir.Operation], list[ir.Operation]]:
    """What computes an operand element by element, and the operations whose results that reads."""
    between: dict[ir.Operation, None] = {}
    before: dict[ir.Operation, None] = {}
    values = [operand]
    while values and len(between) < _MOST:
        op = defining_op(values.pop())
        if op is None or op in between or op.name in _ALIKE:
            continue
        if op.name in ELEMENTWISE:
            between[op] = None
            values += op.operands
        else:
            before[op] = None
    return list(between), list(before)
