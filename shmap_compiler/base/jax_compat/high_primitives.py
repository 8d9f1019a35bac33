"""Primitives that stand for a program until it is lowered, and bring rules of their own.

They are objects of `jax.experimental.hijax.HiPrim`, of JAX itself or the user's.
"""

from __future__ import annotations

import copy
import importlib
from collections.abc import Callable, Sequence
from typing import Any

import jax

from shmap_compiler.base.jax_compat.tracing import EXPANDS_HIGH_PRIMITIVES
from shmap_compiler.base.untyped import AnyValue, Aval, Eqn, Parameter, PyTree

HIGH_PRIMITIVE = "call_hi_primitive"
"""The name of the primitive that calls them."""


def holds_functions(eqn: Eqn) -> bool:
    """Whether an equation contains the functions it stands for, and a rule for their derivatives.

    For others of its kind, JAX makes the program when it lowers or differentiates the equation.
    """
    held = _high_primitive(eqn)
    if held is None:
        return False
    return _overrides(held, "jvp") and any(map(callable, held.params.values()))


def has_backward_rule(eqn: Eqn) -> bool:
    """Whether an equation has a rule for reverse mode, and none for forward mode.

    So has the call of a `jax.custom_vjp` function that was defined with `generic_batching`; its
    other rule fails in forward mode, as it should. Always False where they cannot be expanded.
    """
    held = _high_primitive(eqn)
    if not EXPANDS_HIGH_PRIMITIVES or held is None or not _overrides(held, "vjp_fwd"):
        return False
    return not _overrides(held, "jvp") or held.params.keys() >= {"fwd", "bwd"}


def setting_of_form(eqn: Eqn) -> str | None:
    """The setting of JAX, off by default, with which it traced an equation; None without one.

    With such settings, loops, `jax.checkpoint` and `jax.custom_vjp` hold programs and rules where
    no rewrite finds them.
    """
    held = _high_primitive(eqn)
    kind = type(held)
    if kind.__module__.partition(".")[0] != "jax":
        return None
    return _SETTINGS.get(kind.__name__)


_SETTINGS = {
    "CustomVJPTraced": "jax_custom_vjp3",
    "RematTraced": "jax_remat3",
    "Scan3": "jax_scan3",
}


def run_expanded(eqn: Eqn, operands: Sequence[AnyValue]) -> list[AnyValue]:
    """The results of an equation of such a primitive, in simpler operations."""
    held = _high_primitive(eqn)
    return _results(held, held.expand(*jax.tree.unflatten(held.in_tree, operands)))


def run_forward_rule(
    eqn: Eqn, operands: Sequence[AnyValue], nonzero_tangent: Sequence[bool]
) -> tuple[list[AnyValue], PyTree]:
    """(the results, the residuals) by the rule of an equation that `has_backward_rule`."""
    held = _high_primitive(eqn)
    differentiated = jax.tree.unflatten(held.in_tree, nonzero_tangent)
    out, residuals, *_ = held.vjp_fwd(differentiated, *jax.tree.unflatten(held.in_tree, operands))
    return _results(held, out), residuals


def run_backward_rule(
    eqn: Eqn, residuals: PyTree, cotangents: Sequence[AnyValue]
) -> list[AnyValue]:
    """The cotangents of the operands; `jax.interpreters.ad.Zero` for those that are zero."""
    held = _high_primitive(eqn)
    of_results = jax.tree.unflatten(held.out_tree, cotangents)
    found, _logs = held.vjp_bwd_retval_logs(residuals, of_results)
    return held.in_tree.flatten_up_to(found)


def with_types_in(eqn: Eqn, replacement: Callable[[Aval], Aval]) -> dict[str, Parameter]:
    """The parameters of an equation, with a replacement for each type in such a primitive."""
    held = _high_primitive(eqn)
    if held is None:
        return eqn.params
    moved = copy.copy(held)
    moved.in_avals = jax.tree.map(replacement, held.in_avals)
    moved.out_aval = jax.tree.map(replacement, held.out_aval)
    moved.in_avals_flat = [*map(replacement, held.in_avals_flat)]
    moved.out_avals_flat = [*map(replacement, held.out_avals_flat)]
    return {**eqn.params, "_prim": moved}


def _high_primitive(eqn: Eqn) -> AnyValue:
    return eqn.params.get("_prim") if eqn.primitive.name == HIGH_PRIMITIVE else None


def _results(held: AnyValue, out: PyTree) -> list[AnyValue]:
    return held.out_tree.flatten_up_to(out)


def _overrides(held: AnyValue, rule: str) -> bool:
    hijax: Any = importlib.import_module("jax.experimental.hijax")
    base = getattr(hijax, "HiPrim", None) or hijax.VJPHiPrimitive  # its name in JAX 0.10
    return getattr(type(held), rule) is not getattr(base, rule)
