"""checkify, and values that `jax_debug_nans` forbids."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jax.experimental import checkify


def checkify_rules() -> dict[Any, Callable[..., Any]]:
    """The table of what `checkify` does to each primitive.

    It has no public name, and primitives without a rule are not checked: programs that they hold
    in other parameters than a jaxpr would be passed over in silence.
    """
    return checkify.checkify.__globals__["error_checks"]


def special_value(error: Exception) -> str | None:
    """What a program computed that jax_debug_nans or jax_debug_infs forbids: "nan" or "inf".

    A compiled program says so by an error that is JAX's own affair; jit tells it to users as a
    FloatingPointError.
    """
    return error.args[1] if type(error).__name__ == "InternalFloatingPointError" else None
