"""Names for types that jaxlib's stubs leave without arguments; shapes and sizes of arrays."""

from __future__ import annotations

from math import prod
from typing import Any, TypeAlias

from jaxlib.mlir import ir

Value: TypeAlias = "ir.Value[Any]"
"""An SSA value. Its argument is the class of its type, which MLIR's bindings do not track."""

BlockArgument: TypeAlias = "ir.BlockArgument[Any]"
"""An argument of a block: of a function, or of the region of an operation."""


def shape_of(value: Value) -> list[int]:
    return list(ir.RankedTensorType(value.type).shape)


def element_bytes(element: ir.Type) -> int:
    """Of an element type; at most one byte too many for a narrow one."""
    if isinstance(element, ir.ComplexType):
        return 2 * element_bytes(element.element_type)
    if isinstance(element, ir.IntegerType | ir.FloatType):
        return -(-element.width // 8)
    return 1


def array_bytes(value: Value) -> int:
    """Of an array; 0 for anything else."""
    type_ = value.type
    if not isinstance(type_, ir.RankedTensorType):
        return 0
    return prod(type_.shape) * element_bytes(type_.element_type)
