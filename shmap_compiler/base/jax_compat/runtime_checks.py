"""checkify, values that `jax_debug_nans` forbids, and errors of callbacks."""

from __future__ import annotations

import contextlib

import jax
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


def forget_failed_effects() -> None:
    """Waits for the effects of all programs that run, and discards their errors.

    `jax.effects_barrier` raises the error of any program, and JAX 0.10 does so each time.
    """
    tokens = jax.effects_barrier.__globals__["dispatch"].runtime_tokens
    for each in (*tokens.current_tokens.values(), *tokens.output_runtime_tokens.values()):
        with contextlib.suppress(jax.errors.JaxRuntimeError):
            each.block_until_ready()
    tokens.clear()
