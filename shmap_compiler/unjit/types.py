"""The types of values, as JAX shows and spells them."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
from jaxlib.mlir import ir
from shmap_passes.ir.types import Value

from shmap_compiler.base.untyped import AnyValue, Unchecked
from shmap_compiler.simulate.element_types import ELEMENT_TYPES

_SHOWN = {"i1": "bool", "complex<f32>": "c64", "complex<f64>": "c128"}
_NAMES = {"i1": "bool_"}
_NARROW = {"int2": "i", "int4": "i", "uint2": "u", "uint4": "u"}
_COMPLEX = re.compile(r"dense<\(([-+.\de]+), ?([-+.\de]+)\)>", re.IGNORECASE)


def shape_of(value: Value) -> tuple[int, ...]:
    return tuple(ir.RankedTensorType(value.type).shape)


def element_of(value: Value) -> str:
    """The element type, as MLIR writes it."""
    return str(ir.RankedTensorType(value.type).element_type)


def is_float(value: Value) -> bool:
    element = ir.RankedTensorType(value.type).element_type
    return not isinstance(element, (ir.IntegerType, ir.ComplexType))


def is_tensor(value: Value) -> bool:
    return isinstance(value.type, ir.RankedTensorType)


def dtype_of(value: Value) -> np.dtype:
    return ELEMENT_TYPES[element_of(value)].dtype


def kind_of(dtype: np.dtype) -> str:
    """The kind of a type, as NumPy has it; integers of 2 and 4 bits are integers."""
    return _NARROW.get(dtype.name, dtype.kind)


def dtype_code(value: Value) -> str:
    """The element type in Python: `jnp.float32`."""
    element = element_of(value)
    return f"jnp.{_NAMES.get(element) or ELEMENT_TYPES[element].dtype.name}"


def shown_type(value: Value) -> str:
    """The type as JAX shows it: `f32[2,16]`."""
    element = element_of(value)
    shown = _SHOWN.get(element) or element.replace("ui", "u")
    return f"{shown}[{','.join(map(str, shape_of(value)))}]"


def elements_of(constant: ir.Operation) -> AnyValue:
    """The elements of a constant: a NumPy scalar if all are equal, else an array.

    None if they cannot be read: the bindings have no complex numbers, and none of few bits.
    """
    value = constant.results[0]
    element = element_of(value)
    if element.startswith("complex"):
        found = _COMPLEX.search(str(constant))
        if found is None:
            return None
        return ELEMENT_TYPES[element].dtype.type(complex(float(found[1]), float(found[2])))
    elements = ir.DenseElementsAttr(constant.attributes["value"])
    if elements.is_splat:
        return _splat(elements, element)
    if ELEMENT_TYPES[element].conversion and element != "i1":
        return None
    return np.array(elements).reshape(shape_of(value))


def _splat(made: ir.DenseElementsAttr, element: str) -> AnyValue:
    scalar: Any = made.get_splat_value()
    dtype = ELEMENT_TYPES[element].dtype
    if element == "i1":
        return np.bool_(ir.BoolAttr(scalar).value)
    if kind_of(dtype) in "iu":
        integer = ir.IntegerAttr(scalar)
        number = integer.value
        if kind_of(dtype) == "u":
            number %= 2 ** ir.IntegerType(integer.type).width
        return np.array(number).astype(dtype)[()]
    return np.array(ir.FloatAttr(scalar).value).astype(dtype)[()]


def literal(number: Unchecked) -> str:
    """A Python number, which JAX converts to exactly this one where its type is known."""
    dtype = np.asarray(number).dtype
    if dtype.kind == "b":
        return str(bool(number))
    if kind_of(dtype) in "iu":
        return str(int(number))
    if dtype.kind == "c":
        real, imaginary = literal(number.real), literal(number.imag)
        return f"complex({real}, {imaginary})"
    if np.isnan(number):
        return "jnp.nan"
    if np.isinf(number):
        return "jnp.inf" if number > 0 else "-jnp.inf"
    text = str(number) if dtype in (np.float32, np.float64) else repr(float(number))
    text = text.replace("e+", "e")
    text = re.sub(r"e(-?)0*(\d+)", r"e\1\2", text)
    return (
        re.sub(r"e(-?)(\d)$", r"e\g<1>0\2", text)
        if any(mark in text for mark in ".e")
        else f"{text}.0"
    )
