"""Finds values all of whose elements along a dimension are known to be the same.

These are computed element by element from constants, and from what is broadcast to the dimension.
"""

from __future__ import annotations

from jaxlib.mlir import ir

from ...ir.constants import CONSTANT, is_splat
from ...ir.elementwise import ELEMENTWISE
from ...ir.ops import defining_op
from ...ir.types import Value, shape_of

BROADCAST = "stablehlo.broadcast_in_dim"


def is_alike(value: Value, dimension: int) -> bool:
    """Whether all elements along a dimension of a value are known to be the same."""
    pending = [(value, dimension)]
    seen = set(pending)
    while pending:
        value, dimension = pending.pop()
        op = defining_op(value)
        needed = None if op is None else alike_if(op, dimension)
        if needed is None:
            return False
        pending += [each for each in needed if each not in seen]
        seen.update(needed)
    return True


def alike_if(op: ir.Operation, dimension: int) -> list[tuple[Value, int]] | None:
    """The operands, and their dimensions, that must be alike for the result to be.

    None if the elements of the result may differ.
    """
    if op.name == CONSTANT:
        return [] if is_splat(op) else None
    if op.name in ELEMENTWISE:
        return [(operand, dimension) for operand in op.operands if shape_of(operand)]
    if op.name != BROADCAST:
        return None
    (operand,) = op.operands
    to = ir.DenseI64ArrayAttr(op.attributes["broadcast_dimensions"])
    return [
        (operand, k)
        for k, (along, size) in enumerate(zip(to, shape_of(operand), strict=True))
        if along == dimension and size != 1
    ]
