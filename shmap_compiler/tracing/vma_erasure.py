"""Traces a function with JAX's types of varying values, and erases the types from its program."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from itertools import compress
from typing import Any

import jax
from jax import lax
from jax.core import Tracer
from jax.extend import core as jex_core
from jax.extend import linear_util
from jax.interpreters import ad
from jax.sharding import AbstractMesh

from shmap_compiler.base.jax_compat import (
    RegionOfJax,
    has_backward_rule,
    holds_functions,
    manual_type_reductions,
    needs_varying_types,
    open_jaxpr,
    region_of_jax,
    replace_jaxpr,
    replace_jaxprs_in,
    saved_operands,
    trace_with_axes,
    tracks_varying_types,
    unchecked_backward_rules,
    varies_along,
    varying_type,
    varying_types,
    with_manual_axes,
    without_varying_type,
)
from shmap_compiler.base.jax_compat.name_stacks import outside_of_transpose
from shmap_compiler.base.untyped import (
    AnyValue,
    Atom,
    Aval,
    Eqn,
    Function,
    Jaxpr,
    Parameter,
    Unchecked,
    Wrapped,
)
from shmap_compiler.jaxprs.building import is_dropped
from shmap_compiler.jaxprs.contents import equations
from shmap_compiler.jaxprs.held_programs import CUSTOM_LIN, CUSTOM_VJP
from shmap_compiler.jaxprs.rewriting import Names, Rewriter, named
from shmap_compiler.replication.typed import type_parameters, typed_p
from shmap_compiler.replication.typed_rule import TypedRule
from shmap_compiler.tracing.canonicalize_collectives import normalize
from shmap_compiler.tracing.futures import OnOtherTypes
from shmap_compiler.tracing.reverse_rules import as_custom_vjp
from shmap_compiler.tracing.typed_primitives import as_custom_jvp
from shmap_compiler.tracing.vma_queries import rule_asks


def trace_with_types(
    fun: Function,
    mesh: AbstractMesh,
    axes: Sequence[str],
    types: Sequence[Aval],
    *,
    is_named: bool = False,
    untracked: Collection[str] = (),
    keeps_results: bool = False,
) -> Jaxpr:
    """Traces a function with JAX's types of varying values, and erases these types.

    Args:
      types: of the inputs, as of `varying_type`.
      keeps_results: whether marks (`typed`) keep the types of results.
      is_named: whether `axes` are logical axes, so that collectives stay as JAX has them, in
        derivative rules, too.
      untracked: as for `erase`.
    """
    with varying_types():
        jaxpr = trace_with_axes(fun, mesh, axes, types)
    erased = erase(jaxpr, mesh, axes, is_named=is_named, untracked=untracked)
    if keeps_results:
        found = [varies_along(v.aval) for v in open_jaxpr(jaxpr).outvars]
        return _with_types_of_results(erased, found, axes)
    return erased


def erase(
    jaxpr: Jaxpr,
    mesh: AbstractMesh,
    axes: Sequence[str],
    *,
    is_named: bool = False,
    untracked: Collection[str] = (),
) -> Jaxpr:
    """The same program on variables whose types do not say along which axes they vary.

    Casts of these types are removed, too: where JAX evaluates the program once more (a derivative
    rule), they would bring the types back. Values take the place of futures.

    Args:
      mesh, axes: the mesh as the program sees it, and the axes that are manual there.
      is_named: as for `trace_with_types`.
      untracked: those of `axes` along which any value may vary, whatever its type says: an
        enclosing program, which was traced without types, has made them manual.
    """
    return _Erasing(mesh, axes, is_named, untracked).jaxpr(jaxpr)


def trace_forward_rules(jaxpr: Jaxpr, mesh: AbstractMesh, axes: Sequence[str]) -> None:
    """Traces the forward rules that a program holds, as a derivative of all operands does.

    Args:
      jaxpr: of `trace_with_types`.
      mesh, axes: as for `trace_with_types`.

    Raises:
      REFUSALS: JAX's types reject a rule.
    """
    for eqn in equations(jaxpr):
        if eqn.primitive.name == CUSTOM_VJP:
            flags = [True] * (len(eqn.invars) - eqn.params["num_consts"])

            def forward(rule: Wrapped = eqn.params["fwd_jaxpr_thunk"], flags=flags):
                rule.call_wrapped(*flags)
                return ()

            trace_with_axes(forward, mesh, axes, [])


def without_types(jaxpr: Jaxpr) -> Jaxpr:
    """The same for a program that was traced without types, some of whose values have one.

    Its derivative rules are traced without types, too.
    """
    return _Untyping().jaxpr(jaxpr)


class _Untyping(OnOtherTypes):
    """Erases the types of varying values, and those of futures."""

    def type_for(self, aval: Aval) -> Aval:
        return without_varying_type(super().type_for(aval))

    def changes_type_only(self, eqn: Eqn) -> bool:
        return eqn.primitive.name == _CAST or super().changes_type_only(eqn)

    def fields(self, eqn: Eqn) -> dict[str, Parameter]:
        params = replace_jaxprs_in(eqn.params, self.jaxpr)
        if "bwd" in params:  # JAX would compare what it returns with types that are erased
            params = {**params, "bwd": _unchecked(params["bwd"])}
        return {"params": params}


class _Renaming(Rewriter):
    """Removes transpositions from the names of operations.

    Those of a derivative rule show a derivative in it (`jaxprs/transposed.py`) to which types do
    matter, and which was traced without them.
    """

    def concerned(self, eqns: Sequence[Eqn]) -> Iterable[int]:
        return range(len(eqns))

    def equation(self, eqn: Eqn, names: Names) -> list[Eqn]:
        (eqn,) = super().equation(eqn, names)
        info = eqn.source_info
        stack = outside_of_transpose(info.name_stack)
        if stack is info.name_stack:
            return [eqn]
        return [eqn.replace(source_info=info.replace(name_stack=stack))]


class _Erasing(_Untyping):
    """Makes derivative rules, which JAX traces later, fit a program from which types are erased."""

    def __init__(
        self,
        mesh: AbstractMesh,
        axes: Sequence[str],
        is_named: bool,
        untracked: Collection[str],
    ):
        super().__init__()
        self.mesh = mesh
        self.axes = axes
        self.is_named = is_named
        self.untracked = frozenset(untracked)

    def equation(self, eqn: Eqn, names: Names) -> list[Eqn]:
        if has_backward_rule(eqn):
            eqn = as_custom_vjp(eqn, self.trace)
        elif holds_functions(eqn):
            call = as_custom_jvp(eqn, self.of_rule(), self.mesh, self.axes)
            invars = [named(v, names) for v in call.invars]
            return [
                call.replace(invars=invars, outvars=[self.variable(v, names) for v in call.outvars])
            ]
        equations = super().equation(eqn, names)
        if eqn.primitive.name == _GATHER_TO_EQUAL and not is_dropped(eqn.outvars[0]):
            return [*equations, self.marked(eqn, names)]
        return equations

    def marked(self, eqn: Eqn, names: Names) -> Eqn:
        """A mark of the type of a result, of which the equation without types does not show it."""
        (out,) = eqn.outvars
        tracked = {*self.axes} - self.untracked
        mark = _mark(named(out, names), _own_cotangent_axes(out.aval), tracked)
        (names[out],) = mark.outvars
        return mark.replace(source_info=eqn.source_info, ctx=eqn.ctx)

    def fields(self, eqn: Eqn) -> dict[str, Parameter]:
        if eqn.primitive.name == "shard_map" and "graph" not in eqn.params:
            return {"params": replace_jaxprs_in(eqn.params, self.of_region(region_of_jax(eqn)))}
        return {"params": self.parameters(eqn)}

    def trace(self, fun: Function, types: Sequence[Aval]) -> Jaxpr:
        with varying_types():
            return trace_with_axes(fun, self.mesh, self.axes, types)

    def parameters(self, eqn: Eqn) -> dict[str, Parameter]:
        params = dict(replace_jaxprs_in(eqn.params, self.jaxpr))
        logical = self.axes if self.is_named else None
        saved = _Residuals(eqn)
        late = partial(_erase_late, logical=logical, untracked=self.untracked)
        forward = partial(late, note=saved.note)
        backward = _unchecked if self.is_named else partial(_unchecked_with_types, saved=saved)
        rules = {"jvp_jaxpr_fun": late, "fwd_jaxpr_thunk": forward, "bwd": backward}
        params.update((k, rule(params[k])) for k, rule in rules.items() if k in params)
        if eqn.primitive.name == CUSTOM_VJP:
            own = [_own_cotangent_axes(v.aval) - self.untracked for v in eqn.outvars]
            tracked = frozenset(self.axes) - self.untracked
            params["call_jaxpr"] = _with_types_of_results(params["call_jaxpr"], own, tracked)
        if eqn.primitive.name == CUSTOM_LIN:
            params["out_avals"] = [self.type_for(t) for t in params["out_avals"]]
            if not self.is_named:
                params["bwd"] = self.typed_rule(params["bwd"], eqn)
        return params

    def typed_rule(self, rule: Wrapped, eqn: Eqn) -> Wrapped:
        """The backward rule of a function that a derivative rule of the user's differentiates."""
        types = [_own_cotangent_axes(v.aval) | self.untracked for v in (*eqn.invars, *eqn.outvars)]
        residuals, linear = eqn.params["num_res"], len(eqn.invars)
        tangents = iter(types[residuals:linear])
        operands = [frozenset[str]() if z else next(tangents) for z in eqn.params["in_zeros"]]
        typed = TypedRule(
            rule, (*operands,), (*types[linear:],), (*types[:residuals],), rule_asks(rule)
        )
        return linear_util.wrap_init(typed, debug_info=rule.debug_info)

    def of_region(self, region: RegionOfJax) -> Callable[[Jaxpr], Jaxpr]:
        """Erases types in the program of a region of JAX's own, if it was traced with types."""
        if not region.check_vma:
            return without_types
        axes = [a for a in self.mesh.axis_names if a in {*self.axes, *region.manual_axes}]
        inside = with_manual_axes(self.mesh, axes)
        return _Erasing(inside, axes, self.is_named, self.untracked).jaxpr

    def of_rule(self) -> Callable[[Jaxpr], Jaxpr]:
        """Erases and normalizes programs of derivative rules, which are traced later."""
        # Without what this object remembers.
        mesh, axes, untracked = self.mesh, self.axes, self.untracked
        if self.is_named:
            return lambda held: erase(held, mesh, axes, is_named=True, untracked=untracked)
        return lambda held: normalize(
            _Renaming().jaxpr(erase(held, mesh, axes, untracked=untracked)),
            mesh,
            axes,
            "a derivative rule",
        )


_CAST = "pvary"
"""JAX's primitive that casts a value to a varying type."""

_GATHER_TO_EQUAL = "all_gather_invariant"
"""That of an all_gather whose result is of a type that does not vary."""


def _own_cotangent_axes(aval: Aval) -> frozenset[str]:
    """The axes along which a value of this type has a cotangent of each device's own."""
    reduces = manual_type_reductions(aval)
    return varies_along(aval) | reduces.unreduced | reduces.reduced


def _with_types_of_results(
    jaxpr: Jaxpr, axes: Sequence[frozenset[str]], tracked: Iterable[str]
) -> Jaxpr:
    """A program with marks that keep the types of its results.

    Args:
      tracked: the axes that these types tell about.
    """
    inner = open_jaxpr(jaxpr)
    marks = [
        _mark(atom, varying, tracked) for atom, varying in zip(inner.outvars, axes, strict=True)
    ]
    return replace_jaxpr(
        jaxpr, eqns=[*inner.eqns, *marks], outvars=[mark.outvars[0] for mark in marks]
    )


def _mark(atom: Atom, axes: Iterable[str], tracked: Iterable[str]) -> Eqn:
    """The equation that gives a value a type."""
    types = type_parameters(axes, tracked)
    return jex_core.new_jaxpr_eqn([atom], [jex_core.Var(atom.aval)], typed_p, types, set())


class _Residuals:
    """What JAX's types say about the residuals that a backward rule takes."""

    def __init__(self, eqn: Eqn):
        """Of the call of a function with such a rule, or of the rule itself."""
        self.eqn = eqn
        self.atoms: Sequence[Atom] = ()
        if eqn.primitive.name == CUSTOM_LIN:
            self.atoms = eqn.invars[: eqn.params["num_res"]]

    def note(self, forward: Jaxpr) -> None:
        """Finds them in the program of the forward rule, which has been traced with types."""
        returned = iter(open_jaxpr(forward).outvars)
        operands = self.eqn.invars
        self.atoms = [
            next(returned) if at is None else operands[at] for at in saved_operands(self.eqn)
        ]

    def cast(self, args: Sequence[AnyValue]) -> list[AnyValue]:
        """Arguments of the rule, of which residuals have at least the types that JAX gives them.

        A cast of the user's, which has been erased, is where a residual may have a smaller one.
        """
        cast = list(args)
        for at, atom in enumerate(self.atoms):
            missing = varies_along(atom.aval) - varies_along(jax.typeof(args[at]))
            if missing:
                cast[at] = lax.pcast(args[at], tuple(sorted(missing)), to="varying")
        return cast


def _erase_late(
    rule: Wrapped,
    logical: Sequence[str] | None,
    untracked: frozenset[str],
    note: Callable[[Jaxpr], None] | None = None,
) -> Wrapped:
    """A rule that JAX traces with the types with which it traced the function.

    Args:
      logical: the axes of a named program.
      note: is given the program of a forward rule, before types are erased from it.
    """

    def trace(*args):
        with varying_types():
            jaxpr, *rest = rule.call_wrapped(*args)
        if note is not None:
            note(jaxpr)
        # JAX evaluates the program, and its casts would bring the types back.
        mesh = jax.sharding.get_abstract_mesh()
        is_named, axes = logical is not None, logical or mesh.manual_axes
        program = _Renaming().jaxpr(
            erase(jaxpr, mesh, axes, is_named=is_named, untracked=untracked)
        )
        if not is_named:
            program = normalize(program, mesh, mesh.manual_axes, "a derivative rule")
        return program, *rest

    return linear_util.wrap_init(trace, debug_info=rule.debug_info)


def _unchecked(rule: Wrapped) -> Wrapped:
    """A backward rule for which JAX does not check the types of cotangents.

    Zeros that the rule returns for None have the types of the operands.
    """

    def erased(found: Unchecked) -> AnyValue:
        if isinstance(found, (tuple, list)):
            return type(found)(map(erased, found))
        return ad.Zero(without_varying_type(found.aval)) if _is_zero(found) else found

    def run(*args):
        with unchecked_backward_rules():
            return erased(rule.call_wrapped(*args))

    return linear_util.wrap_init(run, debug_info=rule.debug_info)


def _unchecked_with_types(rule: Wrapped, saved: _Residuals) -> Wrapped:
    """The same, also if it casts varying values to unreduced ones, or is traced with types."""
    erased = _unchecked(rule)

    def run(*args):
        return erased.call_wrapped(*(saved.cast(args) if tracks_varying_types() else args))

    unchecked = linear_util.wrap_init(run, debug_info=rule.debug_info)

    def place(program: Jaxpr) -> Jaxpr:
        mesh = jax.sharding.get_abstract_mesh()
        return normalize(program, mesh, mesh.manual_axes, "a derivative rule")

    def typed(args: Sequence[AnyValue]) -> AnyValue:
        mesh = jax.sharding.get_abstract_mesh()
        return call_on_mesh(unchecked, args, mesh, map(jax.typeof, args), place, typed=True)

    return linear_util.wrap_init(
        lambda *args: with_types_by_need(
            lambda: unchecked.call_wrapped(*args), lambda: typed(args)
        ),
        debug_info=rule.debug_info,
    )


def with_types_of(rule: Wrapped, varying: Sequence[Iterable[str]]) -> Wrapped:
    """A backward rule that JAX traces with types.

    Args:
      varying: the axes along which each argument varies.
    """
    unchecked = _unchecked(rule)

    def run(*args):
        mesh = jax.sharding.get_abstract_mesh()
        traced = [isinstance(x, Tracer) for x in args]  # not constants and symbolic zeros

        def on_traced(*blocks):
            given = iter(blocks)
            return unchecked.call_wrapped(
                *[next(given) if t else x for x, t in zip(args, traced, strict=True)]
            )

        def place(program: Jaxpr) -> Jaxpr:
            return normalize(program, mesh, mesh.manual_axes, "a derivative rule")

        values = [*compress(args, traced)]
        types = [
            varying_type(jax.typeof(x), mesh, along)
            for x, along in zip(values, compress(varying, traced), strict=True)
        ]
        called = linear_util.wrap_init(on_traced, debug_info=rule.debug_info)
        return call_on_mesh(called, values, mesh, types, place, typed=True, all_vary=False)

    return linear_util.wrap_init(run, debug_info=rule.debug_info)


def with_types_by_need(untyped: Callable[[], AnyValue], typed: Callable[[], AnyValue]) -> AnyValue:
    """What one function returns, or the other one where a cast needs types of varying values."""
    try:
        return untyped()
    except ValueError as error:
        if not needs_varying_types(error):
            raise
    return typed()


def call_on_mesh(
    rule: Wrapped,
    args: Sequence[AnyValue],
    mesh: AbstractMesh,
    types: Iterable[Aval],
    place: Callable[[Jaxpr], Jaxpr],
    *,
    typed: bool,
    all_vary: bool = True,
) -> AnyValue:
    """Calls a backward rule as a program that is traced on a mesh.

    Args:
      types: of the arguments on that mesh.
      place: makes a program of what is traced, once its types are erased.
      typed: whether JAX tracks types of varying values.
      all_vary: whether all arguments vary then, along all axes.
    """
    found: list[Any] = []

    def arrays_of(*blocks):
        if typed and all_vary:
            blocks = [lax.pcast(x, mesh.manual_axes, to="varying") for x in blocks]
        found[:], tree = jax.tree.flatten(rule.call_wrapped(*blocks), is_leaf=_is_zero)
        found.append(tree)
        return [x for x in found[:-1] if not _is_zero(x)]

    with varying_types(typed):
        jaxpr = trace_with_axes(arrays_of, mesh, mesh.manual_axes, list(types))
    *leaves, tree = found
    program = place(erase(jaxpr, mesh, mesh.manual_axes))
    arrays = iter(jex_core.jaxpr_as_fun(program)(*args))
    return jax.tree.unflatten(tree, [x if _is_zero(x) else next(arrays) for x in leaves])


def _is_zero(cotangent: object) -> bool:
    return type(cotangent) is ad.Zero
