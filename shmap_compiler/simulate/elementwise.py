"""Ops that treat the elements of large arrays one by one, by NumPy.

Sums, products and quotients are rounded once. Functions such as tanh are computed in double
precision and rounded once; those of doubles are left to the interpreter, from which NumPy differs
in the last bit.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from jaxlib.mlir import ir
from shmap_passes.ir.elementwise import comparison

from shmap_compiler.base.untyped import AnyValue
from shmap_compiler.simulate.arithmetic import Function, maximum, minimum, result_dtype, rounded

Maker = Callable[[ir.Operation], Function | None]
"""From an op to what it does with its operands; None if NumPy would round otherwise."""

_INTEGERS = frozenset(f"{sign}i{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64))
_FLOATS = frozenset({"bf16", "f16", "f32", "f64"})
COMMON_TYPES = _INTEGERS | _FLOATS | {"i1"}
"""The element types of which NumPy rounds a sum or product of two as the interpreter does."""


def element_types(op: ir.Operation) -> list[str]:
    """The names of the element types of the operands and results."""
    values = (*op.operands, *op.results)
    return [str(ir.RankedTensorType(value.type).element_type) for value in values]


def _plainly(function: Callable[..., AnyValue], types: frozenset[str] = COMMON_TYPES) -> Maker:
    """An op that is a function of NumPy on arrays of one type."""

    def maker(op: ir.Operation) -> Function | None:
        if not types.issuperset(element_types(op)):
            return None
        dtype = result_dtype(op)

        def run(*arrays: np.ndarray) -> list[np.ndarray]:
            with np.errstate(all="ignore"):
                return [np.asarray(function(*arrays)).astype(dtype, copy=False)]

        return run

    return maker


def _in_double(function: Callable[..., AnyValue]) -> Maker:
    """A function that is computed in double precision and rounded."""

    def single(*arrays: np.ndarray) -> np.ndarray:
        wide = [x.astype(np.float64) for x in arrays]
        return rounded(np.asarray(function(*wide)), arrays[0].dtype)

    return _plainly(single, _FLOATS - {"f64"})


def _sign(x: np.ndarray) -> np.ndarray:
    return np.where((x == 0) | (x != x), x, np.sign(x))


def _clamp(low: np.ndarray, x: np.ndarray, high: np.ndarray) -> np.ndarray:
    return minimum(maximum(x, low), high)


def _logistic(x: np.ndarray) -> np.ndarray:
    one = np.ones((), x.dtype)
    return one / (one + rounded(np.exp(-x.astype(np.float64)), x.dtype))


def _shift_right(kind: str) -> Maker:
    """A shift of the bits of integers, signed ("i") or not ("u")."""

    def shifted(x: np.ndarray, by: np.ndarray) -> np.ndarray:
        bits = f"{kind}{x.dtype.itemsize}"
        return np.right_shift(x.view(bits), by.view(bits)).view(x.dtype)

    return _plainly(shifted, _INTEGERS)


def _compare(op: ir.Operation) -> Function | None:
    if "TOTALORDER" in str(op.attributes.get("compare_type")):
        return None
    return _plainly(comparison(op))(op)


def _convert(op: ir.Operation) -> Function | None:
    """A conversion, unless it is between 64-bit integers and floats, of which NumPy rounds some."""
    before, after = element_types(op)
    dtype = result_dtype(op)
    has_floats = before in _FLOATS or after in _FLOATS
    if after != "i1" and has_floats and {before, after} & {"i64", "ui64"}:
        return None

    def converted(x: np.ndarray) -> np.ndarray:
        if after == "i1":
            return x != 0
        if after in _INTEGERS and before in _FLOATS:
            limits = np.iinfo(dtype)
            whole = np.clip(np.trunc(x.astype(np.float64)), limits.min, limits.max)
            return np.where(x == x, whole, 0)
        return rounded(x.astype(np.float64), dtype) if after in _FLOATS else x.astype(dtype)

    return _plainly(converted)(op)


def _bitcast(op: ir.Operation) -> Function | None:
    before, after = (ir.RankedTensorType(v.type) for v in (op.operands[0], op.results[0]))
    if before.shape != after.shape or "i1" in element_types(op):
        return None
    dtype = result_dtype(op)
    return _plainly(lambda x: x.view(dtype))(op)


def _iota(op: ir.Operation) -> Function | None:
    shape, dtype = ir.RankedTensorType(op.results[0].type).shape, result_dtype(op)
    dimension = ir.IntegerAttr(op.attributes["iota_dimension"]).value
    numbers = np.arange(shape[dimension])
    if dtype.kind not in "iu":
        numbers = rounded(numbers.astype(np.float64), dtype)
    spread = numbers.reshape([-1 if dim == dimension else 1 for dim in range(len(shape))])
    return _plainly(lambda: np.broadcast_to(spread, shape))(op)


_BY_NAME: dict[str, Maker] = {
    "abs": _plainly(np.abs),
    "add": _plainly(np.add),
    "and": _plainly(np.bitwise_and),
    "atan2": _in_double(np.arctan2),
    "bitcast_convert": _bitcast,
    "cbrt": _in_double(np.cbrt),
    "ceil": _plainly(np.ceil, _FLOATS),
    "clamp": _plainly(_clamp),
    "compare": _compare,
    "convert": _convert,
    "cosine": _in_double(np.cos),
    "divide": _plainly(np.divide, _FLOATS),
    "exponential": _in_double(np.exp),
    "exponential_minus_one": _in_double(np.expm1),
    "floor": _plainly(np.floor, _FLOATS),
    "iota": _iota,
    "is_finite": _plainly(np.isfinite),
    "log": _in_double(np.log),
    "log_plus_one": _in_double(np.log1p),
    "logistic": _plainly(_logistic, _FLOATS - {"f64"}),
    "maximum": _plainly(maximum),
    "minimum": _plainly(minimum),
    "multiply": _plainly(np.multiply),
    "negate": _plainly(np.negative),
    "not": _plainly(np.invert),
    "or": _plainly(np.bitwise_or),
    "power": _in_double(np.power),
    "remainder": _plainly(np.fmod, _FLOATS),
    "round_nearest_even": _plainly(np.rint, _FLOATS),
    "rsqrt": _in_double(lambda x: 1 / np.sqrt(x)),
    "select": _plainly(np.where),
    "shift_left": _plainly(np.left_shift, _INTEGERS),
    "shift_right_arithmetic": _shift_right("i"),
    "shift_right_logical": _shift_right("u"),
    "sign": _plainly(_sign),
    "sine": _in_double(np.sin),
    "sqrt": _in_double(np.sqrt),
    "subtract": _plainly(np.subtract),
    "tan": _in_double(np.tan),
    "tanh": _in_double(np.tanh),
    "xor": _plainly(np.bitwise_xor),
}

ELEMENTWISE: dict[str, Maker] = {f"stablehlo.{name}": maker for name, maker in _BY_NAME.items()}
"""How to make the function of an op, by the name of the op."""
