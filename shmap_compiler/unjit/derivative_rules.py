"""What a jitted program has derivative rules for that XLA does not compile.

`jax.lax.stop_gradient`, `jax.custom_jvp` and `jax.custom_vjp` change derivatives, and no values, so
what XLA compiles has none of them. Nor has it those of functions that JAX or XLA expands, such as
`lgamma`: the derivative of an approximation in pieces may be zero, or not a number.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import jax.numpy as jnp
import numpy as np
from jax import lax

from shmap_compiler.base.jax_compat import HIGH_PRIMITIVE, has_usual_rule, open_jaxpr
from shmap_compiler.base.source_lines import source_line
from shmap_compiler.base.untyped import Eqn, Jaxpr
from shmap_compiler.jaxprs.contents import holders, names_any
from shmap_compiler.jaxprs.held_programs import CUSTOM_JVP, CUSTOM_VJP, JITS, LINEAR_CALL, REGIONS

_RULES = {
    "stop_gradient": "jax.lax.stop_gradient",
    CUSTOM_JVP: "jax.custom_jvp",
    CUSTOM_VJP: "jax.custom_vjp",
    HIGH_PRIMITIVE: "a function with a rule",
    LINEAR_CALL: "jax.custom_derivatives.linear_call",
    "custom_linear_solve": "jax.lax.custom_linear_solve",
    "random_gamma": "jax.random.gamma",
}

SURVIVING = frozenset(
    {
        "abs",
        "add",
        "add_any",
        "bitcast_convert_type",
        "broadcast_in_dim",
        "ceil",
        "cholesky",
        "clamp",
        "concatenate",
        "conj",
        "conv_general_dilated",
        "convert_element_type",
        "copy",
        "copy_p",
        "div",
        "dot_general",
        "dynamic_slice",
        "dynamic_update_slice",
        "fft",
        "floor",
        "gather",
        "imag",
        "integer_pow",
        "lu",
        "max",
        "min",
        "mul",
        "name",
        "neg",
        "one_minus_square",
        "optimization_barrier",
        "pad",
        "real",
        "reduce_max",
        "reduce_min",
        "reduce_sum",
        "reduce_window_sum",
        "reshape",
        "rev",
        "round",
        "scatter-add",
        "select_n",
        "sharding_constraint",
        "sign",
        "slice",
        "sort",
        "split",
        "square",
        "squeeze",
        "stack",
        "sub",
        "tile",
        "top_k",
        "transpose",
        "triangular_solve",
        "unstack",
    }
)
"""Primitives whose derivative the source has: it calls the same function, or consists of sums,
products, and choices."""

SURVIVING_IF_REAL = frozenset(
    {
        "atan2",
        "cbrt",
        "cos",
        "erf",
        "exp",
        "exp2",
        "expm1",
        "log",
        "log1p",
        "logistic",
        "pow",
        "rsqrt",
        "sin",
        "sqrt",
        "tan",
        "tanh",
    }
)
"""Those of which that is so for real numbers. XLA expands those of complex ones."""

_LOOPS = "scan", "while"
_HOLDERS = JITS | REGIONS | {"closed_call", "core_call", "cond", *_LOOPS}
_NAMES = {"regularized_incomplete_beta": "betainc", "while": "while_loop"}


def rules_of(jaxpr: Jaxpr, source: Jaxpr | None = None) -> tuple[str, ...]:
    """The lines with derivatives that the source of a program may lack.

    They are those of derivative rules, except JAX's usual ones, and of primitives whose derivative
    is not known to survive; programs nested in it are searched, too. If the program has none, but
    its source has a loop of unknown length, they are the lines with loops.

    Args:
      source: the program that the source is traced to.

    Returns:
      Texts such as "train.py:12 (loss): jax.lax.stop_gradient".
    """
    found = _lines(jaxpr, _may_be_lacking)
    if not found and source is not None and names_any(source, ("while",)):
        found = _lines(jaxpr, lambda eqn: eqn.primitive.name in _LOOPS)
    return found


def _lines(jaxpr: Jaxpr, is_meant: Callable[[Eqn], bool]) -> tuple[str, ...]:
    placed = _placed(open_jaxpr(jaxpr), "", set())
    return tuple(dict.fromkeys(_shown(eqn, place) for eqn, place in placed if is_meant(eqn)))


def _placed(program: Jaxpr, outer: str, visited: set[int]) -> Iterator[tuple[Eqn, str]]:
    """The equations of an open jaxpr and of those in it, with the line that holds the program.

    JAX traces its own jitted functions once, so that their equations have no line of the user's.
    """
    visited.add(id(program))
    held = holders(program)
    for k, eqn in enumerate(program.eqns):
        yield eqn, outer
        for inner in map(open_jaxpr, held.get(k, ())):
            if id(inner) not in visited:
                yield from _placed(inner, source_line(eqn) or outer, visited)


def _may_be_lacking(eqn: Eqn) -> bool:
    name = eqn.primitive.name
    if name in _RULES:
        return not has_usual_rule(eqn)
    if name in _HOLDERS or name in SURVIVING:
        return False
    dtypes = [getattr(v.aval, "dtype", np.dtype(np.float32)) for v in eqn.outvars]
    if name in SURVIVING_IF_REAL:
        return any(jnp.issubdtype(dtype, jnp.complexfloating) for dtype in dtypes)
    return any(jnp.issubdtype(dtype, jnp.inexact) for dtype in dtypes)


def _shown(eqn: Eqn, outer: str) -> str:
    name = eqn.primitive.name
    place, rule = source_line(eqn) or outer, _RULES.get(name) or _public_name(name)
    return f"{place}: {rule}" if place else rule


def _public_name(primitive: str) -> str:
    """The function of JAX that a primitive is known by."""
    name = _NAMES.get(primitive, primitive).replace("-", "_")
    for module in (lax, lax.linalg):
        if hasattr(module, name):
            return f"{module.__name__}.{name}"
    return name
