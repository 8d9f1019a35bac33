"""JAX's types of varying values: under them, and not under them, the user's function is traced.

In JAX with check_vma the type of a value says along which manual axes it varies. Code may ask for
it (`asking`), and it gives reverse-mode derivatives inside a body their meaning: a weight that is
equal on all devices along an axis has one gradient, the sum of what all devices owe, where without
types each device would get its own share. But these types refuse correct programs, and tracing
under them takes longer. So we trace without them, unless code asks or turns out to differentiate,
and either way the Graph is on types that say nothing of varying.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax import lax
from jax.extend import core as jex_core
from jax.extend import linear_util
from jax.sharding import AbstractMesh

from shmap_compiler._compat import (
    is_jaxpr,
    is_of_other_mesh,
    jaxprs_in,
    open_jaxpr,
    replace_jaxpr,
    trace_with_axes,
    tracks_varying_types,
    unchecked_backward_rules,
    varies_along,
    varying_types,
    without_varying_type,
)
from shmap_compiler.asking import asks, casts
from shmap_compiler.errors import BodyError, Problem
from shmap_compiler.graph import equations
from shmap_compiler.normalize import normalize
from shmap_compiler.replication.typed import typed_p


def varies_outside(full: Any, outer: Sequence[str]) -> list[str]:
    """The axes of an enclosing shard_map along which an input varies, so far as is known."""
    if not tracks_varying_types():
        return list(outer)
    return [a for a in outer if a in varies_along(full)]


def transposes(jaxpr: Any) -> bool:
    """Whether a traced program holds equations that a reverse-mode derivative made.

    JAX itself transposes the operator of each `custom_linear_solve`, whether or not anybody takes a
    derivative.
    """
    stacks: dict[int, Any] = {}

    def collect(program: Any) -> None:
        for eqn in open_jaxpr(program).eqns:
            stack = eqn.source_info.name_stack
            stacks[id(stack)] = stack
            for held in jaxprs_in(_as_the_user_gave_it(eqn)):
                collect(held)

    collect(jaxpr)
    return any("transpose(" in str(stack) for stack in stacks.values())  # few are different objects


def _as_the_user_gave_it(eqn: Any) -> dict[str, Any]:
    """The parameters of an equation without what JAX made of them by transposition."""
    if eqn.primitive.name != "custom_linear_solve":
        return eqn.params
    programs = eqn.params["jaxprs"]
    return {"matvec": programs.matvec, "solve": programs.solve}


def trace_by_need(
    untyped: Callable[[], Any], typed: Callable[[], Any], fun: Callable[..., Any], who: str
) -> Any:
    """What `typed` traces if the user's function needs types, or else what `untyped` does.

    A function that only asks, or only casts, gets no types if they refuse it. One that closes over
    values of an enclosing shard_mapped function needs them: only operations on types bring such
    values in.

    Args:
      fun: the user's function, whose code shows what it asks for.
    """
    refusal = None
    if asks(fun):
        try:
            return typed()
        except Exception as error:  # a mistake of the user's comes up again without types
            refusal = error
    try:
        jaxpr = untyped()
    except ValueError as error:
        if not is_of_other_mesh(error):
            raise
    else:
        if not transposes(jaxpr):
            return jaxpr if refusal else _with_casts(jaxpr, typed, fun)
    if refusal is None:
        try:
            return typed()
        except (TypeError, ValueError, NotImplementedError) as error:
            refusal = error
    raise BodyError(who, [refused_by_types(refusal)]) from refusal


def _with_casts(jaxpr: Any, typed: Callable[[], Any], fun: Callable[..., Any]) -> Any:
    """What `typed` traces if types that the function gives values matter to a backward rule."""
    if any(eqn.primitive.name == _FUNCTION for eqn in equations(jaxpr)) and casts(fun):
        with contextlib.suppress(Exception):  # JAX refuses the function; its casts mean nothing
            return typed()
    return jaxpr


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

    def erased(eqn: Any) -> Any:
        params = {k: _RULES[k](v) if k in _RULES else _erase_in(v) for k, v in eqn.params.items()}
        if eqn.primitive.name == _FUNCTION:
            axes = [varies_along(v.aval) for v in eqn.outvars]
            params["call_jaxpr"] = _with_types_of_results(params["call_jaxpr"], axes)
        return eqn.replace(
            invars=[atom(v) for v in eqn.invars],
            outvars=[define(v) for v in eqn.outvars],
            params=params,
        )

    fields = {
        "constvars": [define(v) for v in inner.constvars],
        "invars": [define(v) for v in inner.invars],
        "eqns": [erased(eqn) for eqn in inner.eqns],
    }
    return replace_jaxpr(jaxpr, **fields, outvars=[atom(v) for v in inner.outvars])


def _erase_in(value: Any) -> Any:
    if is_jaxpr(value):
        return _erase(value)
    if isinstance(value, (tuple, list)) and any(is_jaxpr(v) for v in value):
        make = getattr(value, "_make", type(value))
        return make(_erase_in(v) for v in value)
    return value


def _with_types_of_results(jaxpr: Any, axes: Sequence[frozenset[str]]) -> Any:
    """The program of a `custom_vjp` function, whose results keep their types."""
    inner = open_jaxpr(jaxpr)
    marks = [
        jex_core.new_jaxpr_eqn(
            [atom], [jex_core.Var(atom.aval)], typed_p, {"along": tuple(sorted(varying))}, set()
        )
        for atom, varying in zip(inner.outvars, axes, strict=True)
    ]
    return replace_jaxpr(
        jaxpr, eqns=[*inner.eqns, *marks], outvars=[mark.outvars[0] for mark in marks]
    )


def _erase_late(rule: Any) -> Any:
    """A rule that JAX traces on the types that it traced the function on."""

    def trace(*args):
        with varying_types():
            jaxpr, *rest = rule.call_wrapped(*args)
        # JAX evaluates it, and its casts would give types again.
        mesh = jax.sharding.get_abstract_mesh()
        return normalize(_erase(jaxpr), mesh, mesh.manual_axes, "a derivative rule"), *rest

    return linear_util.wrap_init(trace, debug_info=rule.debug_info)


def _unchecked(rule: Any) -> Any:
    """A backward rule, for which JAX does not compare types of cotangents with those before."""

    def run(*args):
        with unchecked_backward_rules():
            return rule.call_wrapped(*args)

    return linear_util.wrap_init(run, debug_info=rule.debug_info)


_FUNCTION = "custom_vjp_call"

_RULES = {"jvp_jaxpr_fun": _erase_late, "fwd_jaxpr_thunk": _erase_late, "bwd": _unchecked}
"""Parameters that are derivative rules of the user's, to which JAX comes when types are gone."""
