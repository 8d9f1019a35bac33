"""The operations that compute each element of their result from that element of their operands.

Some take a scalar as well: the predicate of a select, the limits of a clamp.
"""

from __future__ import annotations

import operator
from collections.abc import Callable

import numpy as np
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

# fmt: off
ELEMENTWISE = frozenset((
    "chlo.erf", "chlo.erf_inv", "chlo.erfc", "chlo.square",
    *(f"stablehlo.{name}" for name in (
        "abs", "add", "and", "atan2", "cbrt", "ceil", "clamp", "compare", "complex", "convert",
        "cosine", "count_leading_zeros", "divide", "exponential", "exponential_minus_one", "floor",
        "imag", "is_finite", "log", "log_plus_one", "logistic", "maximum", "minimum", "multiply",
        "negate", "not", "or", "popcnt", "power", "real", "reduce_precision", "remainder",
        "round_nearest_afz", "round_nearest_even", "rsqrt", "select", "shift_left",
        "shift_right_arithmetic", "shift_right_logical", "sign", "sine", "sqrt", "subtract", "tan",
        "tanh", "xor",
    )),
))
# fmt: on

_COMPARISONS: dict[str, Callable[..., np.ndarray]] = {
    "EQ": operator.eq,
    "NE": operator.ne,
    "LT": operator.lt,
    "LE": operator.le,
    "GT": operator.gt,
    "GE": operator.ge,
}


def comparison(op: ir.Operation) -> Callable[..., np.ndarray]:
    """What a stablehlo.compare does with two arrays, or two numbers."""
    direction = stablehlo.ComparisonDirectionAttr(op.attributes["comparison_direction"]).value
    return _COMPARISONS[direction]
