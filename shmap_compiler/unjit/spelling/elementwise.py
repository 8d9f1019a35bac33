"""Elementwise operations."""

from __future__ import annotations

from jaxlib.mlir import ir

from shmap_compiler.unjit import layout
from shmap_compiler.unjit.layout import Code, binary, call, display
from shmap_compiler.unjit.spelling.operation import Op, Row
from shmap_compiler.unjit.types import dtype_of, element_of, is_float, kind_of

_CALLED = {
    "abs": "jnp.abs",
    "cbrt": "jnp.cbrt",
    "ceil": "jnp.ceil",
    "cosine": "jnp.cos",
    "count_leading_zeros": "lax.clz",
    "erf": "lax.erf",
    "erf_inv": "lax.erf_inv",
    "exponential": "jnp.exp",
    "exponential_minus_one": "jnp.expm1",
    "floor": "jnp.floor",
    "imag": "jnp.imag",
    "is_finite": "jnp.isfinite",
    "log": "jnp.log",
    "log_plus_one": "jnp.log1p",
    "logistic": "jax.nn.sigmoid",
    "popcnt": "lax.population_count",
    "real": "jnp.real",
    "round_nearest_afz": "lax.round",
    "round_nearest_even": "jnp.round",
    "rsqrt": "lax.rsqrt",
    "sign": "jnp.sign",
    "sine": "jnp.sin",
    "sqrt": "jnp.sqrt",
    "tan": "jnp.tan",
    "tanh": "jnp.tanh",
}
_OPERATORS = {
    "add": ("+", layout.SUM),
    "subtract": ("-", layout.SUM),
    "multiply": ("*", layout.PRODUCT),
    "divide": ("/", layout.PRODUCT),
    "and": ("&", layout.AND),
    "or": ("|", layout.OR),
    "xor": ("^", layout.XOR),
    "shift_left": ("<<", layout.SHIFT),
}
_ON_TWO = {"maximum": "jnp.maximum", "minimum": "jnp.minimum"}
# Functions of `lax` take arrays of equal shapes.
_ON_TWO_EQUAL = {
    "atan2": "lax.atan2",
    "complex": "lax.complex",
    "power": "lax.pow",
    "remainder": "lax.rem",
    "shift_right_arithmetic": "lax.shift_right_arithmetic",
    "shift_right_logical": "lax.shift_right_logical",
}
_COMPARISONS = {"EQ": "==", "NE": "!=", "LT": "<", "LE": "<=", "GT": ">", "GE": ">="}


_YES_NO = ["True", "False"]


def together(op: Op, values: list[int]) -> list[Code]:
    """Operands that broadcast to the shape and dtype of the first of them."""
    found = [op.values.loose(op.operands[k]) for k in values]
    codes = [code for code, _, _ in found]
    # One of them must have the shape, and one of them the dtype.
    shaped = [k for k, (_, shape, _) in enumerate(found) if shape]
    typed = [k for k, (_, _, dtype) in enumerate(found) if dtype]
    if not shaped or not typed:
        first = typed[0] if typed else 0
        codes[first] = op.exact(values[first])
    return codes


def _called(op: Op) -> Code:
    return call(_CALLED[op.name], op.exact(0))


def _barrier(op: Op) -> Code:
    arrays = op.all_exact()
    whole = arrays[0] if len(arrays) == 1 else display("(", arrays, ")")
    return call("lax.optimization_barrier", whole)


def _operator(op: Op) -> Code:
    left, right = together(op, [0, 1])
    if element_of(op.result) == "i1" and op.name in ("add", "multiply"):
        is_or = op.name == "add"
        return binary(left, "|" if is_or else "&", right, layout.OR if is_or else layout.AND)
    if op.name == "divide" and kind_of(dtype_of(op.result)) in "iu":
        return call("lax.div", *op.all_exact())
    sign, level = _OPERATORS[op.name]
    return binary(left, sign, right, level)


def _on_two(op: Op) -> Code:
    return call(_ON_TWO[op.name], *together(op, [0, 1]))


def _on_two_equal(op: Op) -> Code:
    return call(_ON_TWO_EQUAL[op.name], *op.all_exact())


def _negate(op: Op) -> Code:
    return Code(f"-{op.exact(0).at(layout.UNARY)}", layout.UNARY)


def _not(op: Op) -> Code:
    return Code(f"~{op.exact(0).at(layout.UNARY)}", layout.UNARY)


def _compare(op: Op) -> Code | None:
    if op.word("compare_type") == "TOTALORDER":
        return None
    if op.word("comparison_direction") == "NE" and op.operands[0] == op.operands[1]:
        return call("jnp.isnan", op.exact(0))
    left, right = together(op, [0, 1])
    sign = _COMPARISONS[op.word("comparison_direction")]
    return Code(f"{left.at(layout.OR)} {sign} {right.at(layout.OR)}", layout.COMPARE)


def _select(op: Op) -> Code:
    which, is_whole, _ = op.values.loose(op.operands[0])
    if is_whole and [str(op.values.constant(value)) for value in op.operands[1:]] == _YES_NO:
        return which
    found = [op.values.loose(value) for value in op.operands]
    if any(shape for _, shape, _ in found) and any(dtype for _, _, dtype in found[1:]):
        return call("jnp.where", which, found[1][0], found[2][0])
    if any(shape for _, shape, _ in found[:1]):
        return call("jnp.where", which, f"{op.dtype}({found[1][0].text})", found[2][0])
    return call("jnp.where", which, op.exact(1), found[2][0])


def _clamp(op: Op) -> Code | None:
    low, x, high = (op.values.loose(value) for value in op.operands)
    if is_float(op.result) or not (x[1] and x[2]):
        return call("lax.clamp", op.exact(0), op.exact(1), op.exact(2))
    return call("jnp.clip", x[0], low[0], high[0])


def _convert(op: Op) -> Code:
    if is_float(op.operands[0]) and element_of(op.result) == "i1":
        left, _, _ = op.values.loose(op.operands[0])
        return Code(f"{left.at(layout.OR)} != 0", layout.COMPARE)
    return call(f"{op.exact(0).at(layout.ATOM)}.astype", op.dtype)


def _bitcast(op: Op) -> Code:
    return call("lax.bitcast_convert_type", op.exact(0), op.dtype)


def _reduce_precision(op: Op) -> Code:
    return call(
        "lax.reduce_precision",
        op.exact(0),
        str(op.integer("exponent_bits")),
        str(op.integer("mantissa_bits")),
    )


def _is_unary(op: ir.Operation) -> bool:
    return len(op.operands) == len(op.results) == 1


ROWS: dict[str, Row] = {
    **{f"stablehlo.{name}": _called for name in _CALLED},
    **{f"chlo.{name}": _called for name in ("erf", "erf_inv")},
    **{f"stablehlo.{name}": _operator for name in _OPERATORS},
    **{f"stablehlo.{name}": _on_two for name in _ON_TWO},
    **{f"stablehlo.{name}": _on_two_equal for name in _ON_TWO_EQUAL},
    "stablehlo.negate": _negate,
    "stablehlo.optimization_barrier": _barrier,
    "stablehlo.not": _not,
    "stablehlo.compare": _compare,
    "stablehlo.select": _select,
    "stablehlo.clamp": _clamp,
    "stablehlo.convert": _convert,
    "stablehlo.bitcast_convert": _bitcast,
    "stablehlo.reduce_precision": _reduce_precision,
}
