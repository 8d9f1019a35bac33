"""Constants of any type. The bindings cannot hold complex numbers, so these are read as text.

elements(op)              the elements of a stablehlo.constant; None if they cannot be read
is_splat(op)              whether all are equal
integer(op)               the integer of a constant without dimensions
integers(op)              the integers of a constant
with_type(op, type_)      a constant with as many of these as another type has
"""

from __future__ import annotations

import re
from typing import cast

import numpy as np
from jaxlib.mlir import ir

from . import build
from .types import Value

CONSTANT = "stablehlo.constant"
_DENSE = re.compile(r"dense<[^>]*>")
_READ_AS_LIST = (1, 8, 16, 32, 64)
"""The bindings read single integers of any number of bits, and lists of integers of these."""
_SHORT = 8
"""Longer lists of elements are left out of a text."""


def elements(op: ir.Operation) -> ir.DenseElementsAttr | None:
    """The elements of a constant; None if they cannot be read.

    The bindings read neither complex numbers nor a `dense_resource`.
    """
    if _is_complex(op):
        return None
    value = op.attributes["value"]
    return value if isinstance(value, ir.DenseElementsAttr) else None


def _is_complex(op: ir.Operation) -> bool:
    return isinstance(ir.RankedTensorType(op.results[0].type).element_type, ir.ComplexType)


def is_splat(op: ir.Operation) -> bool:
    """Whether all elements of a constant are equal."""
    found = elements(op)
    if found is None:
        return "dense<(" in str(op.get_asm(large_elements_limit=_SHORT))  # else it is a list
    return found.is_splat


def integer(op: ir.Operation) -> int | None:
    """The integer of a constant without dimensions; None of one that is anything else."""
    type_ = ir.RankedTensorType(op.results[0].type)
    if type_.rank or not isinstance(type_.element_type, ir.IntegerType):
        return None
    listed = elements(op)
    found = None if listed is None else listed.get_splat_value()
    return int(found.value) if isinstance(found, ir.BoolAttr | ir.IntegerAttr) else None


def integers(op: ir.Operation) -> np.ndarray | None:
    """The integers of a constant, in its shape; None if they cannot be read, or are none."""
    element = ir.RankedTensorType(op.results[0].type).element_type
    found = elements(op)
    if not isinstance(element, ir.IntegerType) or element.width not in _READ_AS_LIST:
        return None
    return np.array(found) if isinstance(found, ir.DenseIntElementsAttr) else None


def with_type(op: ir.Operation, type_: ir.Type) -> Value:
    """A constant of another shape whose elements are those of `op`, which are all equal."""
    found = elements(op)
    if found is None:
        return _written(op, type_)
    return build.constant(ir.DenseElementsAttr.get_splat(type_, found.get_splat_value()))


def for_stablehlo(op: ir.Operation) -> Value:
    """A stablehlo.constant with the elements of a constant of another dialect."""
    if _is_complex(op):
        return _written(op, op.results[0].type)
    return build.constant(op.attributes["value"])


def _written(op: ir.Operation, type_: ir.Type) -> Value:
    """A constant with the elements that the text of another one has."""
    found = _DENSE.search(str(op.get_asm()))
    assert found is not None, "the text of a constant has its elements"
    location = cast("ir.Location", ir.Location.current)  # jaxlib 0.10's stubs give no type
    text = f"%0 = {CONSTANT} {found[0]} : {type_} {location}"
    written = ir.Operation.parse(text, context=op.context)
    return written.clone().operation.results[0]  # a clone is inserted
