"""The operations that compute each element of their result from that element of their operands.

Some take a scalar as well: the predicate of a select, the limits of a clamp.
"""

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
