"""Names for types that jaxlib's stubs or Python leave open; shapes and sizes of arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import Field
from math import prod
from typing import Any, TypeAlias

from jaxlib.mlir import ir

from .memoize import memoized

Value: TypeAlias = "ir.Value[Any]"
"""An SSA value. Its argument is the class of its type, which MLIR's bindings do not track."""

BlockArgument: TypeAlias = "ir.BlockArgument[Any]"
"""An argument of a block: of a function, or of the region of an operation."""

PassHandle: TypeAlias = Any
"""What MLIR hands to a pass that is a Python function. Its class has no stub."""

Reduction: TypeAlias = Any
"""An `sdy.ReductionOp`, which Shardy has from JAX 0.12 on, or None."""

Option: TypeAlias = Any
"""The value of an option of a pass."""

OptionType: TypeAlias = Any
"""Its type: bool, int, str, or a Literal of strings, which is not a class."""

OptionField: TypeAlias = "Field[Any]"
"""The field of a pass that is an option."""


def shape_of(value: Value) -> list[int]:
    return list(value.type.shape)


def have_same_shape(left: Value, right: Value) -> bool:
    return left.type == right.type or shape_of(left) == shape_of(right)


def element_of(value: Value) -> ir.Type:
    return value.type.element_type


def tensor(shape: Sequence[int], element: ir.Type) -> ir.RankedTensorType:
    return ir.RankedTensorType.get(shape, element)


def element_bytes(element: ir.Type) -> int:
    """Of an element type; at most one byte too many for a narrow one."""
    if isinstance(element, ir.ComplexType):
        return 2 * element_bytes(element.element_type)
    if isinstance(element, ir.IntegerType | ir.FloatType):
        return -(-element.width // 8)
    return 1


def can_hold(type_: ir.IntegerType, number: int) -> bool:
    """Whether an integer type has a number; else arithmetic would wrap around."""
    if type_.is_unsigned or type_.width == 1:  # one bit is a boolean
        return 0 <= number < 2**type_.width
    return -(2 ** (type_.width - 1)) <= number < 2 ** (type_.width - 1)


def array_bytes(value: Value) -> int:
    """Of an array; 0 for anything else."""
    return _type_bytes(value.type)


@memoized  # a program has few types
def _type_bytes(type_: ir.Type) -> int:
    if not isinstance(type_, ir.RankedTensorType):
        return 0
    return prod(type_.shape) * element_bytes(type_.element_type)
