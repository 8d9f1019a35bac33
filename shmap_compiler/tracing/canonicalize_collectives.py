"""Rewrites JAX's collectives, as this JAX version traces them, into the family of `collectives`.

Nested programs (loops, branches, inner jit, custom derivatives) keep their structure. A collective
that also names an axis of an enclosing vmap is left alone: JAX's batching rule removes that axis
first, and the program is then traced and normalized again. Kernels are left alone, too: their own
compiler knows JAX's collectives. A collective of JAX that is in no table here is rejected.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import jax
from jax import lax
from jax.extend.core import Primitive
from jax.sharding import AbstractMesh

from shmap_compiler import collectives as coll
from shmap_compiler.base.errors import Problem, body_error
from shmap_compiler.base.jax_compat import (
    EXPANDS_HIGH_PRIMITIVES,
    HIGH_PRIMITIVE,
    AnyMesh,
    axis_of_effect,
    forbidden_axes,
    forbidden_axes_at,
    has_backward_rule,
    is_axis_effect,
    jaxprs_in,
    open_jaxpr,
    setting_of_form,
    trace_with_axes,
)
from shmap_compiler.base.source_lines import source_line
from shmap_compiler.base.untyped import Aval, Effect, Eqn, Function, Jaxpr, Parameter
from shmap_compiler.base.values import as_weak
from shmap_compiler.collectives.collective_errors import forbidden, let_through
from shmap_compiler.collectives.jax_params import named_axes
from shmap_compiler.collectives.to_reduced import to_reduced, to_reduced_p
from shmap_compiler.collectives.varying import psum_invariant_p
from shmap_compiler.jaxprs.held_programs import KERNELS
from shmap_compiler.jaxprs.rewriting import Names, Rewriter, copy_equations, named
from shmap_compiler.replication.collective_rules import RULED
from shmap_compiler.tracing.reverse_rules import as_custom_vjp


def normalize(jaxpr: Jaxpr, mesh: AbstractMesh, axes: Sequence[str], who: str) -> Jaxpr:
    """The closed `jaxpr` with its collectives over `axes` of `mesh` in our family.

    Raises BodyError if a collective cannot be carried out; `who` describes the user's function.
    """
    rewriter = _Canonicalizer(mesh, frozenset(axes))
    with jax.sharding.use_abstract_mesh(mesh):
        result = rewriter.jaxpr(jaxpr)
    if rewriter.problems:
        raise body_error(who, rewriter.problems)
    return result


class _Canonicalizer(Rewriter):
    def __init__(self, mesh: AbstractMesh, axes: frozenset[str]):
        super().__init__()
        self.mesh = mesh
        self.axes = axes
        self.problems: list[Problem] = []

    def concerned(self, eqns: Sequence[Eqn]) -> list[int]:
        return [
            position
            for position, eqn in enumerate(eqns)
            if not _PLAIN[eqn.primitive] or eqn.effects or (eqn.params and _names_axes(eqn))
        ]

    def equation(self, eqn: Eqn, names: Names) -> list[Eqn]:
        if axes := self.forbidden(eqn):
            self.problems.append(forbidden(eqn.primitive.name, axes, source_line(eqn)))
        if has_backward_rule(eqn):
            eqn = as_custom_vjp(eqn, self.trace)
        if eqn.primitive.name == HIGH_PRIMITIVE:
            self.problems += _refused_high_primitive(eqn)
        if eqn.primitive.name in _EXPANSIONS and eqn.primitive not in coll.COLLECTIVES:
            if not self.applies(eqn):
                return [_left_alone(eqn)]
            self.problems += let_through(eqn, dict(self.mesh.shape))
            return [] if self.problems else self.expand(eqn)
        if eqn.primitive.name in KERNELS:
            return [eqn.replace(effects=self.effects(eqn.effects))]
        if not jaxprs_in(eqn.params):
            self.refuse_unknown(eqn)
            return [eqn]
        return super().equation(eqn, names)

    def forbidden(self, eqn: Eqn) -> list[str]:
        """The axes over which an equation communicates although the user forbids it.

        Where the shares of a gradient are summed is not the user's choice, so contexts inside the
        body say nothing about these sums.
        """
        is_derived = eqn.primitive is psum_invariant_p
        axes = self.axes & (forbidden_axes() if is_derived else forbidden_axes_at(eqn))
        if not axes or eqn.primitive.name in _SEND_NOTHING or not _names_axes(eqn):
            return []
        return sorted(axes.intersection(named_axes(eqn.params)))

    def trace(self, fun: Function, types: Sequence[Aval]) -> Jaxpr:
        return trace_with_axes(fun, self.mesh, sorted(self.axes), types)

    def refuse_unknown(self, eqn: Eqn) -> None:
        named = {axis_of_effect(e) for e in eqn.effects}
        if _names_axes(eqn):
            named.update(a for a in named_axes(eqn.params) if isinstance(a, str))
        axes = [a for a in sorted(self.axes) if a in named]
        if axes and eqn.primitive not in RULED and eqn.primitive.name not in _LOWERED_BY_JAX:
            self.problems.append(
                Problem(
                    f"{eqn.primitive} over {', '.join(map(repr, axes))} at {source_line(eqn)}",
                    "a collective that shmap_compiler does not know",
                    f"one of {', '.join(sorted(_EXPANSIONS))}",
                    "write it with these collectives, or use jax.shard_map for this function",
                )
            )

    def effects(self, effects: Effect) -> Effect:
        return {e for e in effects if not is_axis_effect(e, self.axes)}

    def applies(self, eqn: Eqn) -> bool:
        names = [a for a in named_axes(eqn.params) if not isinstance(a, int)]
        return all(name in self.axes for name in names)

    def expand(self, eqn: Eqn) -> list[Eqn]:
        """The equations that stand for `eqn`, computing the same variables from the same."""
        params = tuple(sorted(eqn.params.items(), key=lambda item: item[0]))
        avals = tuple(v.aval for v in eqn.invars)
        weak = tuple(bool(getattr(v.aval, "weak_type", False)) for v in eqn.outvars)
        template = open_jaxpr(_template(eqn.primitive.name, params, avals, weak, self.mesh))
        names: Names = dict(zip(template.invars, eqn.invars, strict=True))
        if not template.eqns:
            source = named(template.outvars[0], names)
            return [eqn.replace(primitive=lax.copy_p, params={}, invars=[source], effects=set())]
        names = {**dict(zip(template.outvars, eqn.outvars, strict=True)), **names}
        return copy_equations(template.eqns, names, source_info=eqn.source_info, ctx=eqn.ctx)


def _refused_high_primitive(eqn: Eqn) -> list[Problem]:
    if setting := setting_of_form(eqn):
        return [
            Problem(
                f"a function called at {source_line(eqn)}",
                f"what JAX traces with its setting {setting}",
                "what it traces by default",
                f"turn the setting off: `jax.config.update({setting!r}, False)`",
            )
        ]
    if not EXPANDS_HIGH_PRIMITIVES:
        return [
            Problem(
                f"{type(eqn.params['_prim']).__name__} at {source_line(eqn)}",
                "a primitive of jax.experimental.hijax",
                "JAX 0.12 or later, with which shmap_compiler can expand it",
                "update JAX, or call a jax.custom_vjp function instead",
            )
        ]
    return []


@functools.lru_cache(maxsize=4096)
def _template(
    name: str, params: Parameter, avals: Aval, weak: tuple[bool, ...], mesh: AbstractMesh
) -> Jaxpr:
    """What a collective is expanded to; `weak`: which of its results are weakly typed."""
    fun = expansion(name, dict(params), mesh)

    def typed(*args):
        results, structure = jax.tree.flatten(fun(*args))
        # Ours are as weakly typed as operands, JAX's not always (`collectives/kept_types.py`).
        return structure.unflatten(map(as_weak, results, weak))

    return jax.make_jaxpr(typed)(*avals)


def expansion(name: str, params: dict[str, Parameter], mesh: AnyMesh) -> Function:
    """The function of its operands that a collective of JAX's is, in our family."""
    return _EXPANSIONS[name](params, dict(mesh.shape))


def _left_alone(eqn: Eqn) -> Eqn:
    """A collective that also names an axis of an enclosing vmap."""
    if eqn.primitive.name == "all_to_all" and not eqn.params["tiled"]:
        # To the primitive both are one, but JAX's transpose of the untiled form has a wrong type.
        return eqn.replace(params={**eqn.params, "tiled": True})
    return eqn


Expansion = Callable[[dict[str, Parameter], dict[str, int]], Function]


def _names_axes(eqn: Eqn) -> bool:
    """Whether an equation names axes, other than by the numbers of dimensions."""
    params = eqn.params
    has_axes = "axes" in params or "axis_name" in params
    return has_axes and any(isinstance(a, str) for a in named_axes(params))


def _identity(params, sizes):
    return lambda x: x


def _to_reduced(params, sizes):
    return functools.partial(to_reduced, axes=named_axes(params))


_CASTS: dict[str, Expansion] = {
    "pvary": _identity,
    # What JAX makes of casts of unreduced and reduced values.
    "preduced": _to_reduced,
    "vary_unreduced_cast": _identity,
    "vary_unreduced_cast_p": _identity,  # in JAX 0.10
    "reduced_vary_cast": _identity,
    "reduced_vary_cast_p": _identity,  # in JAX 0.10
    "shmap_pvary": _identity,
}
"""Primitives that only change the type of a value."""

_EXPANSIONS = {**{name: form.expansion for name, form in coll.JAX_FORMS.items()}, **_CASTS}

_STARTED: dict[str, Expansion] = {f"{name}_start": made for name, made in _EXPANSIONS.items()}
if hasattr(lax, "psum_scatter_start"):
    _EXPANSIONS |= _STARTED

STARTS = frozenset(_EXPANSIONS.keys() & _STARTED.keys())
"""Primitives that start a collective; those that end it are gone with the types of futures."""

_SEND_NOTHING = _CASTS.keys() | {coll.axis_index_p.name, to_reduced_p.name}

_NOT_PLAIN = _EXPANSIONS.keys() | KERNELS | {HIGH_PRIMITIVE}

_LOWERED_BY_JAX = coll.POINT_TO_POINT | {HIGH_PRIMITIVE, "call_hi_primitive_linearized"}
"""Primitives that stay as they are: collectives for GPUs only, which the checks know by name, and
primitives that stand for a program until they are lowered, which `lowerable` expands for the checks
and for emission."""


class _Plain(dict[Primitive, bool]):
    """Whether equations of a primitive stay as they are if they name no axis."""

    def __missing__(self, primitive: Primitive) -> bool:
        self[primitive] = primitive.name not in _NOT_PLAIN
        return self[primitive]


_PLAIN = _Plain()

COLLECTIVE_NAMES = frozenset(_EXPANSIONS)
"""Names of JAX's primitives for collectives, on all the versions we support."""
