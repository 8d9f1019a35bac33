"""Places a named program: what it computes on one device, written with mesh axes and vmaps.

A collective over a logical axis becomes one over the axes that stand for it: its mesh axes, then
the vmapped axis of the rest. The rules of `collectives/vmapped_axes.py` divide it in a part on the
device and a collective over mesh axes. This walk only renames, with eleven exceptions: a psum of a
product becomes a contraction; pmax and pmin over mesh axes propagate NaN; callbacks with effects
run on one of the devices that compute the same; generators that draw batches from one key draw for
each key; marks of types name mesh axes only; small jitted functions are inlined; derivative rules
of the user's that name logical axes, which JAX traces only when it differentiates, are placed then;
and so are rules for vmap when it vmaps, transposes when it transposes, xmaps inside this one, and
shard_maps.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import jax
import jax.custom_batching
import numpy as np
from jax import lax
from jax.experimental import io_callback
from jax.extend import core as jex_core

from shmap_compiler.base.errors import BodyError, Problem
from shmap_compiler.base.jax_compat import (
    axis_of_effect,
    is_axis_effect,
    is_closed,
    jaxprs_in,
    open_jaxpr,
    program_of_equations,
    trace_in_scope,
)
from shmap_compiler.base.random_keys import implementation, is_key
from shmap_compiler.base.source_lines import source_line
from shmap_compiler.base.untyped import AnyValue, Atom, Effect, Eqn, Jaxpr
from shmap_compiler.collectives.jax_params import named_axes
from shmap_compiler.collectives.nans import propagating
from shmap_compiler.graph.graph import Graph
from shmap_compiler.graph.nested_graphs import all_equations
from shmap_compiler.graph.primitive import named_axes as graph_axes
from shmap_compiler.graph.primitive import shmap_p
from shmap_compiler.jaxprs.contents import names_any
from shmap_compiler.jaxprs.held_programs import CUSTOM_VMAP, JITS, LINEAR_CALL
from shmap_compiler.jaxprs.rewriting import Names, Rewriter
from shmap_compiler.replication.typed import typed_p
from shmap_compiler.tracing.canonicalize_collectives import COLLECTIVE_NAMES
from shmap_compiler.xmap.batching_rules import PlacedRule
from shmap_compiler.xmap.contraction import contract_p
from shmap_compiler.xmap.custom_rules import RULED, placed_call, rule_may_name_axes
from shmap_compiler.xmap.inlining import inlined
from shmap_compiler.xmap.late_rules import RuleScope
from shmap_compiler.xmap.placement import Placement
from shmap_compiler.xmap.transposes import placed_linear_call

Deferred = Callable[..., Sequence[AnyValue]]
"""A function that computes an equation in the scope in which the program is evaluated."""


@dataclass(frozen=True)
class Deferring:
    """How equations are computed that must be placed where the program is evaluated.

    Attributes:
      region: from an equation of an inner xmap, and the placer, to the function of its operands.
      shard_map: the same for a shard_map in the body.
    """

    region: Callable[[Eqn, Placer], Deferred]
    shard_map: Callable[[Eqn, Placer], Deferred]


class Placer(Rewriter):
    """
    Attributes:
      placements: of all logical axes in scope, those of enclosing xmaps among them.
      manual: the mesh axes that xmaps have made manual.
      moved: those that other axes stand for.
    """

    def __init__(
        self,
        who: str,
        placements: Mapping[str, Placement],
        manual: frozenset[str],
        deferring: Deferring,
    ):
        super().__init__()
        self.who = who
        self.placements = placements
        self.manual = manual
        self.deferring = deferring
        self.moved = {name: p.physical for name, p in placements.items() if not p.is_itself}
        self.vmapped = {p.vmapped for p in placements.values() if p.vmapped}
        # By the identity of equations, which are kept with it: psums with the products that they
        # alone use, and these products.
        self._products: dict[int, tuple[Eqn, Eqn]] = {}
        self._dropped: dict[int, Eqn] = {}

    @property
    def _rule_scope(self) -> RuleScope:
        return RuleScope(self.who, self.placements, self.manual, self.run)

    @property
    def _repeating(self) -> tuple[str, ...]:
        """The manual axes of no logical axis, along which devices compute the same."""
        used = {a for p in self.placements.values() for a in p.mesh_axes}
        return tuple(sorted(self.manual - used))

    def run(self, jaxpr: Jaxpr, args: Sequence[AnyValue]) -> Sequence[AnyValue]:
        """The results of a closed named program, in the scope of mesh and vmaps."""
        placed = self._renamed_program(jaxpr)
        if names_any(placed, [_deferred_p.name]):
            return self._evaluate(placed, args)
        return jex_core.jaxpr_as_fun(placed)(*args)

    def rewrite(self, jaxpr: Jaxpr) -> Jaxpr:
        """A program that an equation holds: deferred equations are computed while it is traced."""
        placed = self._renamed_program(jaxpr)
        if not names_any(placed, [_deferred_p.name]):
            return placed
        types = [v.aval for v in open_jaxpr(placed).invars]
        traced = trace_in_scope(lambda *args: self._evaluate(placed, args), (), types)
        if is_closed(jaxpr):
            return traced
        assert not traced.consts, "an open program has no constants"
        return open_jaxpr(traced)

    def _renamed_program(self, jaxpr: Jaxpr) -> Jaxpr:
        self._find_products(open_jaxpr(jaxpr))
        return super().rewrite(jaxpr)

    # ----------------------------------------------------------------------------- equations

    def concerned(self, eqns: Sequence[Eqn]) -> list[int]:
        return [
            position
            for position, eqn in enumerate(eqns)
            if eqn.effects
            or _has_axes(eqn)
            or eqn.primitive is typed_p
            or id(eqn) in self._dropped
            or _draws_batches(eqn)
        ]

    def equation(self, eqn: Eqn, names: Names) -> list[Eqn]:
        if id(eqn) in self._dropped:
            return []
        if id(eqn) in self._products:
            _, product = self._products[id(eqn)]
            return self._contraction(product, eqn)
        name = eqn.primitive.name
        if eqn.primitive is typed_p:
            (eqn,) = super().equation(eqn, names)
            params = {key: self._mesh_axes(axes) for key, axes in eqn.params.items()}
            return [eqn.replace(params=params)]
        if name in COLLECTIVE_NAMES and _has_axes(eqn):
            renamed = self._renamed(eqn)
            here = self.vmapped.intersection(named_axes(renamed.params))
            if name in _EXTREMA and renamed is not eqn and not here:
                return [self._deferred(renamed, partial(_extrema, renamed))]
            return [renamed]
        if name == "xmap":
            return [self._deferred(eqn, self.deferring.region(eqn, self))]
        if eqn.primitive is shmap_p:
            if not self._may_name_moved(eqn.params["graph"]):
                return [eqn]
            return [self._deferred(eqn, self.deferring.shard_map(eqn, self))]
        if name in RULED and rule_may_name_axes(eqn):
            return [self._deferred(eqn, placed_call(eqn, self._rule_scope))]
        if _draws_batches(eqn):
            return [self._deferred(eqn, _one_key_at_a_time(eqn))] if self.vmapped else [eqn]
        if name in _WITH_EFFECTS and self._repeating:
            return [self._deferred(eqn, partial(_WITH_EFFECTS[name], eqn, self._repeating))]
        if not jaxprs_in(eqn.params):
            self._refuse_unknown(eqn)
        (placed,) = super().equation(eqn, names)
        if name == CUSTOM_VMAP:
            rule = PlacedRule(eqn.params["rule"], self._rule_scope)
            return [placed.replace(params={**placed.params, "rule": rule})]
        if name == LINEAR_CALL:
            return [placed_linear_call(placed, self._rule_scope)]
        return inlined(placed) if name in JITS else [placed]

    def _mesh_axes(self, names: Sequence[str]) -> tuple[str, ...]:
        """The mesh axes that these logical ones are split over."""
        placed = (self.placements[n].mesh_axes if n in self.placements else (n,) for n in names)
        return tuple(sorted(itertools.chain.from_iterable(placed)))

    def effects(self, effects: Effect) -> Effect:
        return {e for e in effects if not is_axis_effect(e, frozenset(self.moved))}

    def _may_name_moved(self, graph: Graph) -> bool:
        """Whether a shard_map may name a logical axis, in a derivative rule if nowhere else.

        Axes that are not of its mesh are named by JAX's own collectives.
        """
        if not self.moved.keys().isdisjoint(graph_axes(graph)):
            return True
        return any(
            (eqn.primitive.name in RULED and rule_may_name_axes(eqn))
            or eqn.primitive.name in (CUSTOM_VMAP, LINEAR_CALL)
            or (_has_axes(eqn) and not self.moved.keys().isdisjoint(named_axes(eqn.params)))
            for eqn in all_equations(graph.jaxpr)
        )

    def _deferred(self, eqn: Eqn, fun: Deferred) -> Eqn:
        effects = self.effects(eqn.effects)
        return eqn.replace(primitive=_deferred_p, params={"fun": fun}, effects=effects)

    def _renamed(self, eqn: Eqn) -> Eqn:
        names = named_axes(eqn.params)
        if not any(name in self.moved for name in names):
            return eqn
        new = tuple(each for name in names for each in self.moved.get(name, (name,)))
        key = "axes" if "axes" in eqn.params else "axis_name"
        single = not isinstance(eqn.params[key], (tuple, list)) and len(new) == 1
        params = {**eqn.params, key: new[0] if single else new}
        return eqn.replace(params=params, effects=self.effects(eqn.effects))

    def _refuse_unknown(self, eqn: Eqn) -> None:
        named = {axis_of_effect(e) for e in eqn.effects}
        if _has_axes(eqn):
            named.update(named_axes(eqn.params))
        axes = [name for name in self.moved if name in named]
        if axes:
            listed = ", ".join(map(repr, axes))
            raise BodyError(self.who, [_unknown(f"{eqn.primitive} over {listed}", eqn)])

    # --------------------------------------------------------------------------- contractions

    def _find_products(self, inner: Jaxpr) -> None:
        """Finds the psums over vmapped axes of products that nothing else uses."""
        makers = {eqn.outvars[0]: eqn for eqn in inner.eqns if eqn.primitive is lax.dot_general_p}
        if not makers:
            return
        uses = Counter(v for eqn in inner.eqns for v in eqn.invars if _is_variable(v))
        uses.update(filter(_is_variable, inner.outvars))
        for eqn in inner.eqns:
            if eqn.primitive.name in _SUMS and len(eqn.invars) == 1:
                (operand,) = eqn.invars
                is_product = _is_variable(operand) and operand in makers and uses[operand] == 1
                if is_product and self._sums_on_devices(eqn):
                    product = makers[operand]
                    self._products[id(eqn)] = eqn, product
                    self._dropped[id(product)] = product

    def _sums_on_devices(self, eqn: Eqn) -> bool:
        names = named_axes(eqn.params)
        whole = eqn.params.get("axis_index_groups") is None
        inside = [each for name in names for each in self.moved.get(name, (name,))]
        return whole and bool(self.vmapped.intersection(inside))

    def _contraction(self, product: Eqn, eqn: Eqn) -> list[AnyValue]:
        """The equations of a psum of a product."""
        names = named_axes(eqn.params)
        new = [each for name in names for each in self.moved.get(name, (name,))]
        here = tuple(name for name in new if name in self.vmapped)
        rest = tuple(name for name in new if name not in self.vmapped)
        partial = jex_core.Var(eqn.outvars[0].aval) if rest else eqn.outvars[0]
        dot = tuple(product.params.items())
        contraction = product.replace(
            primitive=contract_p, params={"axes": here, "dot": dot}, outvars=[partial]
        )
        if not rest:
            return [contraction]
        effects = self.effects(eqn.effects)
        params = {**eqn.params, "axes": rest}
        return [contraction, eqn.replace(invars=[partial], params=params, effects=effects)]

    # ----------------------------------------------------------------------------- evaluation

    def _evaluate(self, jaxpr: Jaxpr, args: Sequence[AnyValue]) -> list[AnyValue]:
        """Evaluates a program with deferred equations: those, and all between them as programs."""
        inner = open_jaxpr(jaxpr)
        consts = jaxpr.consts if inner.constvars else ()
        env = dict(zip((*inner.constvars, *inner.invars), (*consts, *args), strict=True))

        def read(atom: Atom) -> AnyValue:
            return atom.val if isinstance(atom, jex_core.Literal) else env[atom]

        def run_together(eqns: list[Eqn], later: set[Atom]) -> None:
            made = [v for eqn in eqns for v in eqn.outvars]
            needed = [v for v in made if v in later]
            used = dict.fromkeys(v for e in eqns for v in e.invars if _is_variable(v))
            inputs = [v for v in used if v not in set(made)]
            part = program_of_equations(jaxpr, eqns, inputs, needed)
            results = jex_core.jaxpr_as_fun(part)(*map(read, inputs))
            env.update(zip(needed, results, strict=True))

        groups = [
            (is_deferred, list(group))
            for is_deferred, group in itertools.groupby(
                inner.eqns, lambda eqn: eqn.primitive is _deferred_p
            )
        ]
        later = [set(filter(_is_variable, inner.outvars))]
        for _, eqns in reversed(groups):
            later.append(later[-1].union(v for e in eqns for v in e.invars if _is_variable(v)))
        for (is_deferred, eqns), used in zip(groups, later[-2::-1], strict=True):
            if not is_deferred:
                run_together(eqns, used)
                continue
            for eqn in eqns:
                results = eqn.params["fun"](*map(read, eqn.invars))
                env.update(zip(eqn.outvars, results, strict=True))
        return [read(v) for v in inner.outvars]


def _draws_batches(eqn: Eqn) -> bool:
    """Whether vmap makes another random draw of it, of all keys at once, by the first key."""
    if eqn.primitive is lax.rng_bit_generator_p:
        return True
    if eqn.primitive.name not in _DRAWS:
        return False
    key = eqn.invars[0].aval
    return is_key(key) and implementation(key) != "threefry2x32"


def _one_key_at_a_time(eqn: Eqn) -> Deferred:
    """A random draw that is the same for a key whatever other keys a device has."""

    def draw(*operands: AnyValue) -> list[AnyValue]:
        drawn = eqn.primitive.bind(*operands, **eqn.params)
        return list(drawn) if eqn.primitive.multiple_results else [drawn]

    return jax.custom_batching.sequential_vmap(draw)


_DRAWS = ("random_bits", "random_split", "random_fold_in", "random_gamma")
"""Names of JAX's primitives whose numbers are those of the generator of a key."""


def _shown_once(eqn: Eqn, repeating: Sequence[str], *operands: AnyValue) -> list[AnyValue]:
    """Calls back on the first of the devices that compute the same."""

    def show(*operands: AnyValue) -> None:
        eqn.primitive.bind(*operands, **eqn.params)

    lax.cond(lax.axis_index(repeating) == 0, show, lambda *_: None, *operands)
    return []


def _called_once(eqn: Eqn, repeating: Sequence[str], *operands: AnyValue) -> list[AnyValue]:
    """The same for a callback with results, which this device sends to the others.

    All of them call back, because JAX does not vmap a cond whose branch does.
    """
    types = [jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype) for v in eqn.outvars]

    def call(is_first: AnyValue, *operands: AnyValue) -> Sequence[AnyValue]:
        if is_first:
            return eqn.params["callback"](*operands)
        return [np.zeros(t.shape, t.dtype) for t in types]

    is_first = lax.axis_index(repeating) == 0
    results = io_callback(call, types, is_first, *operands, ordered=eqn.params["ordered"])
    return [lax.pbroadcast(x, repeating, 0) for x in results]


_WITH_EFFECTS = {
    "debug_callback": _shown_once,
    "debug_print": _shown_once,
    "io_callback": _called_once,
}
"""By the names of JAX's primitives for callbacks that must not be repeated."""

_deferred_p = jex_core.Primitive("xmap_deferred")
"""Stands for an equation that is computed where the program is evaluated, by the function `fun`."""
_deferred_p.multiple_results = True

_SUMS = ("psum", "psum_invariant")

_EXTREMA = {"pmax": lax.pmax, "pmin": lax.pmin}


def _extrema(eqn: Eqn, *operands: AnyValue) -> list[AnyValue]:
    """Extrema over the mesh axes of logical ones, which propagate NaN as vmapped axes do."""
    extremum, groups = _EXTREMA[eqn.primitive.name], eqn.params.get("axis_index_groups")
    return [
        propagating(extremum, x, named_axes(eqn.params), axis_index_groups=groups) for x in operands
    ]


def _is_variable(atom: object) -> bool:
    return not isinstance(atom, jex_core.Literal)


def _has_axes(eqn: Eqn) -> bool:
    return "axes" in eqn.params or "axis_name" in eqn.params


def _unknown(what: str, eqn: Eqn) -> Problem:
    return Problem(
        f"{what} at {source_line(eqn)}",
        "a collective that xmap cannot place on a mesh",
        f"one of {', '.join(sorted(COLLECTIVE_NAMES))}",
        "write it with these collectives, or leave the axis without resources",
    )
