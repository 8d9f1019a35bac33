"""JAX's types of varying values: under them, and not under them, the user's function is traced.

In JAX with check_vma the type of a value says along which manual axes it varies. Code may ask for
it (`vma_queries`), and it gives reverse-mode derivatives inside a body their meaning: a weight that
is equal on all devices along an axis has one gradient, the sum of what all devices owe, where
without types each device would get its own share. But these types refuse correct programs, and
tracing under them takes longer. So we trace without them, unless code asks, or turns out to
differentiate or to transpose collectives, and either way the Graph is on types that say nothing of
varying.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
from jax import lax
from jax.extend import core as jex_core
from jax.extend import linear_util
from jax.interpreters import ad
from jax.sharding import AbstractMesh

from shmap_compiler.base.errors import BodyError, Problem, ShmapError, SpecError, UnreducedError
from shmap_compiler.base.jax_compat import (
    Atom,
    Eqn,
    Jaxpr,
    described_alike,
    holds_functions,
    is_of_other_mesh,
    manual_type_reductions,
    needs_varying_types,
    open_jaxpr,
    refuses_unreduced,
    replace_jaxpr,
    replace_jaxprs_in,
    trace_with_axes,
    tracks_varying_types,
    unchecked_backward_rules,
    varies_along,
    varying_types,
    without_varying_type,
)
from shmap_compiler.base.source_lines import user_line
from shmap_compiler.jaxprs.contents import names_any
from shmap_compiler.jaxprs.held_programs import CUSTOM_VJP
from shmap_compiler.jaxprs.rewriting import Names, Rewriter, named
from shmap_compiler.jaxprs.transposed import transposes, transposes_operator_with
from shmap_compiler.replication.typed import typed_p
from shmap_compiler.tracing.canonicalize_collectives import COLLECTIVE_NAMES, normalize
from shmap_compiler.tracing.typed_primitives import as_custom_jvp
from shmap_compiler.tracing.vma_queries import asks, casts


def varies_outside(full: Any, outer: Sequence[str]) -> list[str]:
    """The axes of an enclosing shard_map along which an input varies, so far as is known."""
    if not tracks_varying_types():
        return list(outer)
    return [a for a in outer if a in varies_along(full)]


def trace_by_need(
    untyped: Callable[[], Jaxpr], typed: Callable[[], Jaxpr], fun: Callable[..., Any], who: str
) -> Jaxpr:
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
        except SpecError:
            raise  # not of types, without which what the body is told would be wrong
        except Exception as error:  # a mistake of the user's comes up again without types
            refusal = error
    try:
        jaxpr = untyped()
    except ValueError as error:
        if needs_varying_types(error):  # a cast to unreduced
            return trace_unreduced(typed, who)
        if not is_of_other_mesh(error):
            raise
    else:
        if not transposes(jaxpr):
            return jaxpr if refusal else _with_types_that_matter(jaxpr, typed, fun)
    if refusal is None:
        try:
            return typed()
        except _REFUSALS as error:
            refusal = error
    raise BodyError(who, [refused_by_types(refusal)]) from refusal


def _with_types_that_matter(
    jaxpr: Jaxpr, typed: Callable[[], Jaxpr], fun: Callable[..., Any]
) -> Jaxpr:
    """What `typed` traces if types matter to derivatives that are taken later.

    They matter to a backward rule if the function casts, and to the transposed operator of a solver
    that communicates: JAX transposes it as soon as the solver is called. The transpose of psum is
    the identity on what is equal on all devices, and psum on a share of each device's own, with
    which devices would solve different systems in different numbers of steps.
    """
    backward_rules = names_any(jaxpr, [CUSTOM_VJP]) and casts(fun)
    if backward_rules or transposes_operator_with(jaxpr, COLLECTIVE_NAMES):
        try:
            return typed()
        except SpecError:
            raise
        except _REFUSALS:  # JAX refuses the function; its casts mean nothing
            pass
    return jaxpr


_REFUSALS = (TypeError, ValueError, NotImplementedError)
"""What JAX's types raise about a function. Any other error of the second tracing is raised."""


def trace_unreduced(typed: Callable[[], Jaxpr], who: str) -> Jaxpr:
    """What `typed` traces: a function of values that are unreduced or reduced.

    Few operations make sense on summands, and JAX's types know which.
    """
    try:
        return typed()
    except ShmapError:
        raise
    except Exception as error:
        if not refuses_unreduced(error):
            raise  # the user's own
        raise UnreducedError(who, [_no_operation_on_summands(error)]) from error


@dataclass(frozen=True)
class ManualType:
    """The axes along which a block varies, and those along which it is unreduced or reduced."""

    varying: tuple[str, ...] = ()
    unreduced: tuple[str, ...] = ()
    reduced: tuple[str, ...] = ()

    def cast(self, block: Any) -> Any:
        """A block of this type, of one that is equal on all devices by its type."""
        for axes, to in (
            (self.varying + self.unreduced, "varying"),
            (self.unreduced, "unreduced"),
            (self.reduced, "reduced"),
        ):
            block = lax.pcast(block, axes, to=to) if axes else block
        return block


def trace_with_types(
    fun: Callable[..., Any],
    mesh: AbstractMesh,
    axes: Sequence[str],
    types: Sequence[Any],
    manual_types: Sequence[ManualType],
) -> Jaxpr:
    """ClosedJaxpr of `fun` under JAX's typing of varying values, from which the types are erased.

    Args:
      types, manual_types: of the inputs.
    """

    def typed(*blocks):
        return fun(*[m.cast(x) for x, m in zip(blocks, manual_types, strict=True)])

    with varying_types():
        jaxpr = trace_with_axes(described_alike(typed, fun), mesh, axes, types)
    return _erase(jaxpr, mesh, axes)


def _no_operation_on_summands(error: Exception) -> Problem:
    return Problem(
        user_line(error),
        f"an operation on values that are unreduced or reduced: {error}",
        "on an unreduced value, operations that commute with the sum: add, neg, mul by a reduced "
        "value, psum",
        "reduce the value first, with jax.lax.psum or psum_scatter; or cast a reduced one, with "
        'jax.lax.pcast(x, axes, to="varying")',
    )


def refused_by_types(error: Exception) -> Problem:
    """The problem of a body that differentiates and that JAX's types reject."""
    return Problem(
        "a derivative taken inside the function",
        f"a program that JAX's varying-type checks reject: {error}",
        "a program that these checks accept: its types determine over which devices gradients are "
        "summed",
        "take the gradient outside shard_map; or mark the value with jax.lax.pcast; or pass "
        "check_vma=False, with which each device gets its own share of a gradient, and sum it",
    )


def _erase(jaxpr: Jaxpr, mesh: AbstractMesh, axes: Sequence[str]) -> Jaxpr:
    """The same program on variables whose types do not say along which axes they vary.

    Casts of these types are removed, too: where JAX evaluates the program once more (a derivative
    rule), they would bring the types back.

    Args:
      mesh, axes: the mesh as the program sees it, and the axes that are manual there.
    """
    return _Erasing(mesh, axes).jaxpr(jaxpr)


class _Erasing(Rewriter):
    """Gives new variables to programs, and so rewrites every equation."""

    def __init__(self, mesh: AbstractMesh, axes: Sequence[str]):
        super().__init__()
        self.mesh = mesh
        self.axes = axes

    def rewrite(self, jaxpr: Jaxpr) -> Jaxpr:
        inner = open_jaxpr(jaxpr)
        names: Names = {}
        constvars = [_erased(v, names) for v in inner.constvars]
        invars = [_erased(v, names) for v in inner.invars]
        eqns = [new for eqn in inner.eqns for new in self.equation(eqn, names)]
        outvars = [named(v, names) for v in inner.outvars]
        return replace_jaxpr(jaxpr, constvars=constvars, invars=invars, eqns=eqns, outvars=outvars)

    def equation(self, eqn: Eqn, names: Names) -> list[Eqn]:
        invars = [named(v, names) for v in eqn.invars]
        if eqn.primitive.name == _CAST:
            names.update(zip(eqn.outvars, invars, strict=True))
            return []
        if holds_functions(eqn):
            call = as_custom_jvp(eqn, self.of_rule(), self.mesh, self.axes)
            primitive, params = call.primitive, call.params
        else:
            primitive, params = eqn.primitive, self.parameters(eqn)
        outvars = [_erased(v, names) for v in eqn.outvars]
        return [eqn.replace(primitive=primitive, params=params, invars=invars, outvars=outvars)]

    def parameters(self, eqn: Eqn) -> dict[str, Any]:
        params = dict(replace_jaxprs_in(eqn.params, self.jaxpr))
        params.update((k, rule(params[k])) for k, rule in _RULES.items() if k in params)
        if eqn.primitive.name == CUSTOM_VJP:
            own = [_own_cotangent_axes(v.aval) for v in eqn.outvars]
            params["call_jaxpr"] = _with_types_of_results(params["call_jaxpr"], own)
        return params

    def of_rule(self) -> Callable[[Jaxpr], Jaxpr]:
        """Erases and normalizes programs of derivative rules, which are traced later."""
        mesh, axes = self.mesh, self.axes  # without what this object remembers
        return lambda held: normalize(_erase(held, mesh, axes), mesh, axes, "a derivative rule")


def _erased(var: Atom, names: Names) -> Atom:
    """The variable without its varying type."""
    aval = without_varying_type(var.aval)
    if aval is not var.aval:
        names[var] = type(var)(aval)
    return named(var, names)


_CAST = "pvary"
"""JAX's primitive that makes the type of a value say that it varies."""


def _own_cotangent_axes(aval: Any) -> frozenset[str]:
    """The axes along which a value of this type has a cotangent of each device's own."""
    reduces = manual_type_reductions(aval)
    return varies_along(aval) | reduces.unreduced | reduces.reduced


def _with_types_of_results(jaxpr: Jaxpr, axes: Sequence[frozenset[str]]) -> Jaxpr:
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
        program = _erase(jaxpr, mesh, mesh.manual_axes)
        return normalize(program, mesh, mesh.manual_axes, "a derivative rule"), *rest

    return linear_util.wrap_init(trace, debug_info=rule.debug_info)


def _unchecked(rule: Any) -> Any:
    """A backward rule, for which JAX does not compare types of cotangents with those before.

    Zeros that it returns for None have the types of the operands.
    """

    def erased(found: Any) -> Any:
        if isinstance(found, (tuple, list)):
            return type(found)(map(erased, found))
        return ad.Zero(without_varying_type(found.aval)) if _is_zero(found) else found

    def run(*args):
        with unchecked_backward_rules():
            try:
                return erased(rule.call_wrapped(*args))
            except ValueError as error:
                if not needs_varying_types(error):
                    raise
            return erased(_call_with_types(rule, args))

    return linear_util.wrap_init(run, debug_info=rule.debug_info)


def _call_with_types(rule: Any, args: Sequence[Any]) -> Any:
    """Calls a rule that casts what varies to unreduced. All that it is given varies."""
    mesh = jax.sharding.get_abstract_mesh()
    found: list[Any] = []

    def arrays_of(*blocks):
        varying = [lax.pcast(x, mesh.manual_axes, to="varying") for x in blocks]
        found[:], tree = jax.tree.flatten(rule.call_wrapped(*varying), is_leaf=_is_zero)
        found.append(tree)
        return [x for x in found[:-1] if not _is_zero(x)]

    with varying_types():
        jaxpr = trace_with_axes(arrays_of, mesh, mesh.manual_axes, [jax.typeof(x) for x in args])
    *leaves, tree = found
    erased = _erase(jaxpr, mesh, mesh.manual_axes)
    program = normalize(erased, mesh, mesh.manual_axes, "a derivative rule")
    arrays = iter(jex_core.jaxpr_as_fun(program)(*args))
    return jax.tree.unflatten(tree, [x if _is_zero(x) else next(arrays) for x in leaves])


def _is_zero(cotangent: Any) -> bool:
    return type(cotangent) is ad.Zero


_RULES = {"jvp_jaxpr_fun": _erase_late, "fwd_jaxpr_thunk": _erase_late, "bwd": _unchecked}
"""Parameters that are derivative rules of the user's, to which JAX comes when types are gone."""
