"""Finds where an operand of a product comes from: an argument, or a product that is not stored."""

from __future__ import annotations

from typing import Literal

from jaxlib.mlir import ir

from ..ir.elementwise import ELEMENTWISE
from ..ir.ops import defining_op
from ..ir.types import Value
from .products import DOT, Product

Source = Literal["argument", "product", "other"]

_ALIKE = ("stablehlo.broadcast_in_dim", "stablehlo.constant")
_MOST = 64
"""More operations are not looked at."""


def source_of(product: Product, side: int) -> Source:
    """Where an operand of a product comes from.

    Returns:
      "argument" for one of the function or of the loop; "product" if it is computed from another
      product, element by element as an activation is, and nothing else reads that one.
    """
    operand = product.op.operands[side]
    if defining_op(operand) is None:
        return "argument"
    return "product" if _follows_product(product.op, operand) else "other"


def _follows_product(reader: ir.Operation, operand: Value) -> bool:
    before: ir.Operation | None = None
    between: dict[ir.Operation, None] = {}
    values = [operand]
    while values and len(between) < _MOST:
        op = defining_op(values.pop())
        if op is None or op in between or op.name in _ALIKE:
            continue
        if op.block != reader.block:
            return False
        if op.name == DOT and (before is None or op == before):
            before = op
        elif op.name in ELEMENTWISE:
            between[op] = None
            values += op.operands
        else:
            return False
    if before is None:
        return False
    inside = {reader, *between}
    return all(use.owner.operation in inside for op in (before, *between) for use in op.result.uses)
