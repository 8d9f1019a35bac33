"""A dot_general by the roles of its dimensions.

Dimensions of its result are, in this order: the batch dimensions, the free ones of the left
operand, and the free ones of the right operand.
"""

from __future__ import annotations

from math import prod
from typing import Literal, NamedTuple, TypeAlias

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from ...ir.memoize import memoized
from ...ir.types import Value

DOT = "stablehlo.dot_general"

Role = Literal["batch", "free", "contracted"]


_Pair: TypeAlias = "tuple[tuple[int, ...], tuple[int, ...]]"


class Product(NamedTuple):
    """A dot_general, and the dimensions of its left and of its right operand by role, in order."""

    op: ir.Operation
    batch: _Pair
    contracted: _Pair
    free: _Pair

    @classmethod
    def of(cls, op: ir.Operation) -> Product:
        left, right = op.operands
        numbers = op.attributes["dot_dimension_numbers"]
        return cls(op, *_dimensions(numbers, left.type, right.type))

    @property
    def result(self) -> Value:
        return self.op.results[0]

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


@memoized  # several finders read the same product
def _dimensions(
    attribute: ir.Attribute, left: ir.RankedTensorType, right: ir.RankedTensorType
) -> tuple[_Pair, _Pair, _Pair]:
    """The batch, the contracted and the free dimensions of operands of these types."""
    numbers = stablehlo.DotDimensionNumbers(attribute)
    batch = tuple(numbers.lhs_batching_dimensions), tuple(numbers.rhs_batching_dimensions)
    contracted = (
        tuple(numbers.lhs_contracting_dimensions),
        tuple(numbers.rhs_contracting_dimensions),
    )
    lefts = tuple(d for d in range(left.rank) if d not in (*batch[0], *contracted[0]))
    rights = tuple(d for d in range(right.rank) if d not in (*batch[1], *contracted[1]))
    return batch, contracted, (lefts, rights)


def has_default_precision(op: ir.Operation) -> bool:
    """Whether a dot_general leaves it to the chip how it rounds its operands."""
    return "algorithm" not in op.attributes and _precisions(op) <= {"DEFAULT"}


def multiplications(op: ir.Operation) -> int:
    """How many of bf16 a TPU makes of one of f32: 1, 3 or 6, or those of an algorithm."""
    if "algorithm" in op.attributes:
        algorithm = stablehlo.DotAlgorithm(op.attributes["algorithm"])
        is_of_bf16 = isinstance(algorithm.lhs_precision_type, ir.BF16Type)
        return algorithm.num_primitive_operations if is_of_bf16 else _OF_PRECISION["HIGHEST"]
    return max(map(_OF_PRECISION.__getitem__, _precisions(op)), default=1)


_OF_PRECISION = {"DEFAULT": 1, "HIGH": 3, "HIGHEST": 6}


def _precisions(op: ir.Operation) -> set[str]:
    return _named(op.attributes.get("precision_config"))


@memoized  # the products of a program mostly have the same
def _named(precision_config: ir.Attribute | None) -> set[str]:
    if precision_config is None:
        return set()
    return {stablehlo.PrecisionAttr(each).value for each in ir.ArrayAttr(precision_config)}
