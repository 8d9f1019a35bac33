"""A dot_general by the roles of its dimensions.

Dimensions of its result are, in this order: the batch dimensions, the free ones of the left
operand, and the free ones of the right operand.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Literal

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from ..ir.memoize import memoized
from ..ir.types import Value

DOT = "stablehlo.dot_general"

Role = Literal["batch", "free", "contracted"]


@dataclass(frozen=True)
class Product:
    """A dot_general, and the dimensions of its two operands by role."""

    op: ir.Operation
    batch: tuple[tuple[int, ...], tuple[int, ...]]
    contracted: tuple[tuple[int, ...], tuple[int, ...]]

    @classmethod
    def of(cls, op: ir.Operation) -> Product:
        return cls(op, *_dimensions(op.attributes["dot_dimension_numbers"]))

    @property
    def result(self) -> Value:
        return self.op.results[0]

    @cached_property
    def free(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The free dimensions of the left and of the right operand, in order."""
        ranks = tuple(ir.RankedTensorType(operand.type).rank for operand in self.op.operands)
        return _free(self.batch, self.contracted, ranks)

    def role(self, side: int, dimension: int) -> Role:
        """What a dimension of the left (side 0) or right (side 1) operand is."""
        if dimension in self.batch[side]:
            return "batch"
        return "contracted" if dimension in self.contracted[side] else "free"

    def result_dimension(self, side: int, dimension: int) -> int:
        """The dimension of the result that a batch or free dimension of an operand becomes."""
        if dimension in self.batch[side]:
            return self.batch[side].index(dimension)
        before = len(self.batch[0]) + (len(self.free[0]) if side == 1 else 0)
        return before + self.free[side].index(dimension)

    def operand_dimensions(self, dimension: int) -> dict[int, int]:
        """Side -> dimension of that operand, for the sides that have a dimension of the result."""
        batches, lefts = len(self.batch[0]), len(self.free[0])
        if dimension < batches:
            return {side: self.batch[side][dimension] for side in (0, 1)}
        if dimension < batches + lefts:
            return {0: self.free[0][dimension - batches]}
        return {1: self.free[1][dimension - batches - lefts]}

    def size(self, side: int, dimensions: tuple[int, ...]) -> int:
        """The number of indices along dimensions of an operand together."""
        shape = ir.RankedTensorType(self.op.operands[side].type).shape
        return prod(shape[dimension] for dimension in dimensions)

    @property
    def flops(self) -> int:
        """Operations; a multiply-add is two."""
        left = prod(ir.RankedTensorType(self.op.operands[0].type).shape)
        return 2 * left * self.size(1, self.free[1])


_Pair = tuple[tuple[int, ...], tuple[int, ...]]


@memoized  # the pieces of a product have the same
def _dimensions(attribute: ir.Attribute) -> tuple[_Pair, _Pair]:
    """The batch and the contracted dimensions of the operands."""
    numbers = stablehlo.DotDimensionNumbers(attribute)
    return (
        (tuple(numbers.lhs_batching_dimensions), tuple(numbers.rhs_batching_dimensions)),
        (tuple(numbers.lhs_contracting_dimensions), tuple(numbers.rhs_contracting_dimensions)),
    )


@memoized
def _free(batch: _Pair, contracted: _Pair, ranks: tuple[int, ...]) -> _Pair:
    """The other dimensions of the operands."""
    left, right = (
        tuple(d for d in range(rank) if d not in batch[side] and d not in contracted[side])
        for side, rank in enumerate(ranks)
    )
    return left, right


def has_default_precision(op: ir.Operation) -> bool:
    """Whether a dot_general leaves it to the chip how it rounds its operands."""
    if "algorithm" in op.attributes:
        return False
    precision = op.attributes.get("precision_config")
    return precision is None or all(
        stablehlo.PrecisionAttr(each).value == "DEFAULT" for each in ir.ArrayAttr(precision)
    )
