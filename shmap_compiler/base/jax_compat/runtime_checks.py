"""checkify, and values that `jax_debug_nans` forbids."""

from __future__ import annotations

from jax.experimental import checkify
from jax.extend.core import Primitive

from shmap_compiler.base.untyped import Function


def checkify_rules() -> dict[Primitive, Function]:
    """The table of what `checkify` does to each primitive.

    It has no public name. Primitives without a rule are not checked, nor are programs inside them
    unless these are jaxprs among their parameters.
    """
    return checkify.checkify.__globals__["error_checks"]


def special_value(error: Exception) -> str | None:
    """What a program computed that jax_debug_nans or jax_debug_infs forbids: "nan" or "inf".

    A compiled program reports it by an internal error of JAX, which jit turns into a
    FloatingPointError.
    """
    return error.args[1] if type(error).__name__ == "InternalFloatingPointError" else None
