"""The element types of StableHLO as NumPy arrays, and how they are handed to the interpreter.

MLIR's Python bindings exchange arrays of few types. A segment therefore takes and returns carriers:
bfloat16 and 8-bit floats travel as the integers with the same bits, booleans and 4-bit integers as
8-bit integers, and a complex array as its two parts. The segment itself converts them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

_PLAIN: dict[str, Any] = {
    "i8": np.int8,
    "i16": np.int16,
    "i32": np.int32,
    "i64": np.int64,
    "ui8": np.uint8,
    "ui16": np.uint16,
    "ui32": np.uint32,
    "ui64": np.uint64,
    "f16": np.float16,
    "f32": np.float32,
    "f64": np.float64,
}
_CONVERTED: dict[str, tuple[Any, str]] = {
    "i1": (np.bool_, "ui8"),
    "i4": (ml_dtypes.int4, "i8"),
    "ui4": (ml_dtypes.uint4, "ui8"),
    "i2": (ml_dtypes.int2, "i8"),
    "ui2": (ml_dtypes.uint2, "ui8"),
}
_BITS: dict[str, tuple[Any, str]] = {
    "bf16": (ml_dtypes.bfloat16, "ui16"),
    "f8E3M4": (ml_dtypes.float8_e3m4, "ui8"),
    "f8E4M3": (ml_dtypes.float8_e4m3, "ui8"),
    "f8E4M3FN": (ml_dtypes.float8_e4m3fn, "ui8"),
    "f8E4M3FNUZ": (ml_dtypes.float8_e4m3fnuz, "ui8"),
    "f8E4M3B11FNUZ": (ml_dtypes.float8_e4m3b11fnuz, "ui8"),
    "f8E5M2": (ml_dtypes.float8_e5m2, "ui8"),
    "f8E5M2FNUZ": (ml_dtypes.float8_e5m2fnuz, "ui8"),
}
_PARTS: dict[str, tuple[Any, str]] = {
    "complex<f32>": (np.complex64, "f32"),
    "complex<f64>": (np.complex128, "f64"),
}


@dataclass(frozen=True)
class ElementType:
    """An element type of StableHLO.

    Attributes:
      name: as MLIR writes it.
      dtype: the NumPy type of its arrays.
      carriers: the MLIR types of the arrays that stand for one of its arrays.
      conversion: the op that makes it of its carriers; "" if there is none.
    """

    name: str
    dtype: np.dtype
    carriers: tuple[str, ...]
    conversion: str

    def packed(self, array: np.ndarray) -> list[np.ndarray]:
        """The carriers of an array."""
        if self.conversion == "complex":
            return [np.real(array).copy(), np.imag(array).copy()]
        if self.conversion == "bitcast_convert":
            carrier = np.dtype(_PLAIN[self.carriers[0]])
            return [np.ascontiguousarray(array).view(carrier).reshape(array.shape)]
        if self.conversion == "convert":
            return [array.astype(_PLAIN[self.carriers[0]])]
        return [array]

    def unpacked(self, carriers: list[np.ndarray]) -> np.ndarray:
        """The array of its carriers."""
        if self.conversion == "complex":
            array = np.empty(carriers[0].shape, self.dtype)
            array.real, array.imag = carriers
            return array
        if self.conversion == "bitcast_convert":
            return np.ascontiguousarray(carriers[0]).view(self.dtype).reshape(carriers[0].shape)
        if self.conversion == "convert":
            return carriers[0].astype(self.dtype)
        return carriers[0]


def _known() -> dict[str, ElementType]:
    plain = {n: ElementType(n, np.dtype(t), (n,), "") for n, t in _PLAIN.items()}
    converted = {
        n: ElementType(n, np.dtype(t), (c,), "convert") for n, (t, c) in _CONVERTED.items()
    }
    bits = {n: ElementType(n, np.dtype(t), (c,), "bitcast_convert") for n, (t, c) in _BITS.items()}
    parts = {n: ElementType(n, np.dtype(t), (c, c), "complex") for n, (t, c) in _PARTS.items()}
    return {**plain, **converted, **bits, **parts}


ELEMENT_TYPES: dict[str, ElementType] = _known()
"""Every element type that can be simulated, by its name in MLIR."""


class UnknownElementType(Exception):
    """An element type that cannot be simulated; its name in MLIR is the only argument."""


def known_element_type(name: str) -> ElementType:
    """The element type of a name in MLIR. Raises UnknownElementType if it cannot be simulated."""
    if name not in ELEMENT_TYPES:
        raise UnknownElementType(name)
    return ELEMENT_TYPES[name]
