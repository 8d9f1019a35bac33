"""Reverse-mode derivatives that the user's function takes inside its body.

There the meaning of a program depends on types. A weight that is equal on all devices along an axis
has, for JAX with check_vma, one gradient: the sum of what all devices owe. Without types each
device would get its own share. JAX applies this rule while it traces, to values whose types say
along which axes they vary. Those types refuse correct programs, so we trace without them, and trace
again with them only where a body turns out to differentiate.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from jax import lax
from jax.extend import core as jex_core
from jax.extend import linear_util
from jax.sharding import AbstractMesh

from shmap_compiler._compat import (
    is_jaxpr,
    open_jaxpr,
    replace_jaxpr,
    trace_with_axes,
    varying_types,
    without_varying_type,
)
from shmap_compiler.errors import Problem
from shmap_compiler.graph import equations


def transposes(jaxpr: Any) -> bool:
    """Whether a traced program holds equations that a reverse-mode derivative made."""
    return any("transpose(" in str(eqn.source_info.name_stack) for eqn in equations(jaxpr))


def trace_with_types(
    fun: Callable[..., Any],
    mesh: AbstractMesh,
    axes: Sequence[str],
    types: Sequence[Any],
    varying: Sequence[Sequence[str]],
) -> Any:
    """ClosedJaxpr of `fun` under JAX's typing of varying values, from which the types are erased.

    Args:
      varying: the axes along which each input varies.
    """

    def typed(*blocks):
        return fun(
            *[
                lax.pcast(x, tuple(v), to="varying") if v else x
                for x, v in zip(blocks, varying, strict=True)
            ]
        )

    with varying_types():
        jaxpr = trace_with_axes(typed, mesh, axes, types)
    return _erase(jaxpr)


def refused_by_types(error: Exception) -> Problem:
    """What to say if a body that differentiates is refused by JAX's types."""
    return Problem(
        "a derivative taken inside the function",
        f"a program that JAX's typing of varying values refuses: {error}",
        "types that fit: they decide over which devices a gradient is summed",
        "take the gradient outside shard_map; or mark the value with jax.lax.pcast; or give "
        "check_vma=False, with which each device gets its own share of a gradient, and sum it",
    )


def _erase(jaxpr: Any) -> Any:
    """The same program on variables whose types do not say along which axes they vary."""
    inner = open_jaxpr(jaxpr)
    replaced: dict[Any, Any] = {}

    def atom(old: Any) -> Any:
        if isinstance(old, jex_core.Literal) or old not in replaced:
            return old
        return replaced[old]

    def define(old: Any) -> Any:
        aval = without_varying_type(old.aval)
        if aval is not old.aval:
            replaced[old] = type(old)(aval)
        return atom(old)

    fields = {
        "constvars": [define(v) for v in inner.constvars],
        "invars": [define(v) for v in inner.invars],
        "eqns": [
            eqn.replace(
                invars=[atom(v) for v in eqn.invars],
                outvars=[define(v) for v in eqn.outvars],
                params={
                    k: _erase_late(v) if k == "jvp_jaxpr_fun" else _erase_in(v)
                    for k, v in eqn.params.items()
                },
            )
            for eqn in inner.eqns
        ],
    }
    return replace_jaxpr(jaxpr, **fields, outvars=[atom(v) for v in inner.outvars])


def _erase_in(value: Any) -> Any:
    if is_jaxpr(value):
        return _erase(value)
    if isinstance(value, (tuple, list)) and any(is_jaxpr(v) for v in value):
        make = getattr(value, "_make", type(value))
        return make(_erase_in(v) for v in value)
    return value


def _erase_late(rule: Any) -> Any:
    """The derivative rule of a custom_jvp function: JAX traces it when it takes the derivative.

    Then too it traces the rule on the types that it traced the function on.
    """

    def trace(*args):
        with varying_types():
            jaxpr, *rest = rule.call_wrapped(*args)
        return _erase(jaxpr), *rest

    return linear_util.wrap_init(trace, debug_info=rule.debug_info)
