"""Sizes of products, and of what devices receive."""

from __future__ import annotations

from jaxlib.mlir import ir

from ...cost.work import ProductShape
from ...ir.collective_ops import ALL_GATHER
from ...ir.ops import defining_op
from ...ir.types import Value, array_bytes
from ..find.products import Product


def received(op: ir.Operation, count: int) -> int:
    """The bytes that a device receives in a gather, a reduce_scatter or an all_to_all."""
    whole = op.results[0] if op.name == ALL_GATHER else op.operands[0]
    return array_bytes(whole) * (count - 1) // count


def most_columns(product: Product, side: int) -> int:
    """The size of the largest free dimension of an operand; 1 if it has none."""
    shape = ir.RankedTensorType(product.op.operands[side].type).shape
    return max((shape[dimension] for dimension in product.free[side]), default=1)


def shaped(
    product: Product, side: int = 0, is_free: bool = True
) -> tuple[ir.Operation, ProductShape]:
    """A product and its sizes: operand `side` is that of `m` or, if not `is_free`, of `n`."""
    rows, columns = (side, 1 - side) if is_free else (1 - side, side)
    return product.op, ProductShape(
        product.size(0, product.batch[0]),
        product.size(rows, product.free[rows]),
        product.size(columns, product.free[columns]),
        product.size(0, product.contracted[0]),
        _is_given(product.op.operands[columns]),
    )


def _is_given(value: Value) -> bool:
    """Whether a value is an argument of a function, perhaps of another type or transposed."""
    while (op := defining_op(value)) is not None:
        if op.name not in ("stablehlo.transpose", "stablehlo.convert"):
            return False
        value = op.operands[0]
    return ir.BlockArgument(value).owner.owner.name == "func.func"
