"""Decides whether a user's function is traced with JAX's types of varying values.

In JAX with check_vma, the type of a value says along which manual axes it varies. Code may query it
(`vma_queries`), and it gives reverse-mode derivatives inside a body their meaning: a weight that is
equal on all devices along an axis has one gradient, the sum of the devices' contributions, where
without types each device would get its own contribution. But these types reject some correct
programs, and tracing with them takes longer. So functions are traced without them, unless their
code queries types, or turns out to differentiate or to transpose collectives. One that names a
derivative is traced with them at once, so as not to be traced twice. Either way the Graph is on
types that say nothing about varying (`vma_erasure`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from shmap_compiler.base.errors import BodyError, Problem, ShmapError, SpecError, UnreducedError
from shmap_compiler.base.jax_compat import (
    HIGH_PRIMITIVE,
    closes_over_explicit,
    is_jaxpr,
    is_of_other_mesh,
    needs_varying_types,
    refuses_unreduced,
    shows_varying_type,
    tracks_varying_types,
    varies_along,
    wants_future,
)
from shmap_compiler.base.source_lines import user_line
from shmap_compiler.base.untyped import Aval, Function, Jaxpr
from shmap_compiler.graph.nested_graphs import graphs_in
from shmap_compiler.jaxprs.contents import equations, names_any
from shmap_compiler.jaxprs.held_programs import CUSTOM_JVP, CUSTOM_VJP
from shmap_compiler.jaxprs.transposed import (
    copies_tangents,
    transposes,
    transposes_operator_with,
)
from shmap_compiler.tracing import identity_transposes
from shmap_compiler.tracing.canonicalize_collectives import COLLECTIVE_NAMES
from shmap_compiler.tracing.vma_queries import (
    asks,
    casts,
    is_of_jax,
    rules_differentiate,
    seems_to_differentiate,
)


def varies_outside(full: Aval, outer: Sequence[str]) -> list[str]:
    """The axes of an enclosing shard_map along which an input may vary."""
    if not tracks_varying_types():
        return list(outer)
    return [a for a in outer if a in varies_along(full)]


IN_SHARD_MAP = (
    "take the gradient outside shard_map; or mark the value with jax.lax.pcast; or pass "
    "check_vma=False, with which each device gets its own share of a gradient, and sum it"
)
"""What to do about a body that differentiates and that JAX's types reject."""


def trace_by_need(
    untyped: Callable[[], Jaxpr],
    typed: Callable[[], Jaxpr],
    fun: Function,
    who: str,
    fix: str = IN_SHARD_MAP,
    forward: Callable[[Jaxpr], None] | None = None,
) -> Jaxpr:
    """Traces a function with JAX's types if it needs them, and without them otherwise.

    A function that only queries types, or only casts, is traced without them if they reject it. One
    that closes over values of an enclosing shard_mapped function needs them, because only
    operations on typed values can use such values. So may one that calls `jax.shard_map`, whose
    results are typed. A program shows whether it differentiates, traced with types or without.

    Args:
      untyped, typed: trace the function without types and with them.
      fun: the user's function, whose code shows what it queries.
      fix: what to do if types reject a function that differentiates.
      forward: traces the forward rules in a program that was traced with types. Without it, rules
        that call `jax.vjp` for their backward rules are traced without types, if they may be.
    """
    refusal = None
    if asks(fun):
        try:
            return typed()
        except SpecError:
            raise  # not about types, without which queries would get wrong answers
        except Exception as error:  # a mistake of the user's is raised again without types
            refusal = error
    elif seems_to_differentiate(fun) and (found := _if_it_differentiates(typed)):
        return found
    try:
        with identity_transposes.shown():
            jaxpr = untyped()
    except (AttributeError, TypeError, ValueError) as error:
        if needs_varying_types(error):  # a cast to unreduced
            return trace_unreduced(typed, who)
        if refusal is None and may_need_types(error, fun):
            return _typed_or(error, typed)
        if not is_of_other_mesh(error):
            raise
    else:
        if not _takes_derivative(jaxpr):
            if copies_tangents(jaxpr):
                jaxpr = untyped()
            return jaxpr if refusal else _with_types_that_matter(jaxpr, typed, fun, forward)
    if refusal is None:
        try:
            return typed()
        except REFUSALS as error:
            if closes_over_explicit(error):
                raise
            refusal = error
    raise BodyError(who, [refused_by_types(refusal, fix)]) from refusal


def _if_it_differentiates(typed: Callable[[], Jaxpr]) -> Jaxpr | None:
    """A function traced with types; None if that fails, or shows no derivative."""
    try:
        jaxpr = typed()
    except Exception:  # is raised again, with what to do about it
        return None
    return jaxpr if _takes_derivative(jaxpr) else None


def _takes_derivative(jaxpr: Jaxpr) -> bool:
    """Whether a function, or one that is shard_mapped inside of it, differentiates.

    The latter has the meaning that types along the axes of both functions give it.
    """
    inner = (graph.jaxpr for graph in graphs_in(jaxpr) if graph.check_vma)
    return transposes(jaxpr) or any(map(transposes, inner))


def may_need_types(error: Exception, fun: Function) -> bool:
    """Whether a function that failed without types may be right with them.

    Without them, a Python number that is cast stays one, which has no dimensions or attributes.
    """
    if shows_varying_type(error) or wants_future(error):
        return True
    return _OF_A_NUMBER.search(str(error)) is not None and casts(fun)


_OF_A_NUMBER = re.compile(
    "'(bool|int|float|complex)' object (is not subscriptable|has no attribute)"
)


def _typed_or(untyped: Exception, typed: Callable[[], Jaxpr]) -> Jaxpr:
    """Traces a function again, with types, without which it failed."""
    try:
        return typed()
    except REFUSALS as error:
        raise untyped from error


def _with_types_that_matter(
    jaxpr: Jaxpr,
    typed: Callable[[], Jaxpr],
    fun: Function,
    forward: Callable[[Jaxpr], None] | None,
) -> Jaxpr:
    """Traces a function again, with types, if types matter to derivatives that are taken later.

    They matter if the function casts and has a backward rule, or is nested in one that is traced
    with types, to which its results have the types that it gives them. They matter to the operator
    of a solver if it communicates, because JAX transposes the operator when the solver is called.
    The transpose of psum is the identity on a value that is equal on all devices, and psum on a
    share of each device's own; with the latter, devices would solve different systems in different
    numbers of steps. They matter to derivative rules that take derivatives themselves.
    """
    read_later = tracks_varying_types() or names_any(jaxpr, [CUSTOM_VJP, HIGH_PRIMITIVE])
    rules = _has_rules_of_users(jaxpr) and rules_differentiate(fun, at_once=forward is None)
    communicates = transposes_operator_with(jaxpr, COLLECTIVE_NAMES)
    if (read_later and casts(fun)) or rules or communicates:
        try:
            found = typed()
            if rules and forward is not None:
                forward(found)
            return found
        except SpecError:
            raise
        except REFUSALS:  # JAX rejects the function or its rules, so its casts mean nothing
            pass
    return jaxpr


def _has_rules_of_users(jaxpr: Jaxpr) -> bool:
    """Whether a function has derivative rules other than JAX's own, as of `jax.nn.relu`."""
    if names_any(jaxpr, [HIGH_PRIMITIVE]):
        return True
    if not names_any(jaxpr, _RULED):
        return False
    ruled = (eqn for eqn in equations(jaxpr) if eqn.primitive.name in _RULED)
    rules = (each for eqn in ruled for each in eqn.params.values() if not is_jaxpr(each))
    return not all(map(is_of_jax, rules))


_RULED = frozenset({CUSTOM_JVP, CUSTOM_VJP})


REFUSALS = (TypeError, ValueError, NotImplementedError, AssertionError)
"""The exceptions with which JAX's types reject a function that can be traced without them.

Beside an automatic axis some of JAX's functions, such as `jnp.interp`, end in an AssertionError,
and so do collectives along the named axis of a vmap.
"""


def trace_unreduced(typed: Callable[[], Jaxpr], who: str) -> Jaxpr:
    """Traces a function of unreduced or reduced values with JAX's types.

    Few operations have the same meaning on summands as on their sum, and JAX's types know which.
    """
    try:
        return typed()
    except ShmapError:
        raise
    except Exception as error:
        if not refuses_unreduced(error):
            raise  # the user's own
        raise UnreducedError(who, [_no_operation_on_summands(error)]) from error


# ------------------------------------------------------------------------------------- mistakes


def _no_operation_on_summands(error: Exception) -> Problem:
    return Problem(
        user_line(error),
        f"an operation on values that are unreduced or reduced: {error}",
        "on an unreduced value, operations that commute with the sum: add, neg, mul by a reduced "
        "value, psum",
        "reduce the value first, with jax.lax.psum or psum_scatter; or cast a reduced one, with "
        'jax.lax.pcast(x, axes, to="varying")',
    )


def refused_by_types(error: Exception, fix: str = IN_SHARD_MAP) -> Problem:
    """The problem of a body that differentiates and that JAX's types reject."""
    reason = str(error)
    if isinstance(error, ShmapError):
        reason = "; ".join(f"{each.where}: {each.found}" for each in error.problems)
    return Problem(
        "a derivative taken inside the function",
        f"a program that JAX's varying-type checks reject: {reason}",
        "a program that these checks accept: its types determine over which devices gradients are "
        "summed",
        fix,
    )
