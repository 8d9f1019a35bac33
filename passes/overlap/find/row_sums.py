"""Reductions that add along some dimensions, such as those of a bias' gradient over rows."""

from __future__ import annotations

from jaxlib.mlir import ir

from ...ir import build
from ...ir.collective_ops import reduction
from ...ir.constants import CONSTANT, elements
from ...ir.ops import defining_op
from ...ir.types import Value, shape_of, tensor

REDUCE = "stablehlo.reduce"


def adds_along(op: ir.Operation, dimension: int) -> bool:
    """Whether a reduction adds what one array has along a dimension, and nothing else."""
    if len(op.operands) != 2 or reduction(op) != "stablehlo.add":
        return False
    return dimension in reduced_dimensions(op) and _is_zero(op.operands[1])


def row_sum(op: ir.Operation, piece: Value, element: ir.Type) -> Value:
    """What a reduction gives for a piece of its array, as numbers of type `element`."""
    scalar = tensor([], element)
    shape = [size for d, size in enumerate(shape_of(piece)) if d not in reduced_dimensions(op)]
    zero = build.constant(ir.DenseElementsAttr.get_splat(scalar, ir.FloatAttr.get(element, 0.0)))
    value = build.like(op, tensor(shape, element), [build.convert(piece, element), zero])
    block = ir.OpResult(value).owner.operation.regions[0].blocks[0]
    for inside in (*block.arguments, *block.operations[0].results):
        inside.set_type(scalar)
    return value


def kept_dimension(op: ir.Operation, dimension: int) -> int | None:
    """Which dimension of its result a reduction makes of one of its array; None for none."""
    reduced = reduced_dimensions(op)
    if len(op.operands) != 2 or dimension in reduced:
        return None
    return dimension - sum(each < dimension for each in reduced)


def reduced_dimensions(op: ir.Operation) -> list[int]:
    """The dimensions that a reduction leaves out."""
    return list(ir.DenseI64ArrayAttr(op.attributes["dimensions"]))


def _is_zero(value: Value) -> bool:
    op = defining_op(value)
    found = elements(op) if op is not None and op.name == CONSTANT else None
    if found is None or not found.is_splat:
        return False
    zero = found.get_splat_value()
    return isinstance(zero, ir.FloatAttr) and zero.value == 0
