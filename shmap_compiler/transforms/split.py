"""Splits a program in two: one that runs now, and one that runs later and takes residuals.

Derivatives split a program of values and tangents (values now, tangents later); `jax.checkpoint`
splits one of known and unknown values under a policy.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass
from typing import Any

import jax
from jax import lax
from jax.extend import core as jex_core
from jax.interpreters import partial_eval as pe
from jax.sharding import PartitionSpec

from shmap_compiler.base.jax_compat import (
    Atom,
    Eqn,
    Jaxpr,
    axis_of_effect,
    offload_spaces,
    open_jaxpr,
    policy_saves,
    replace_jaxpr,
)
from shmap_compiler.graph.graph import Graph
from shmap_compiler.jaxprs.rewriting import named, renamed


@dataclass(frozen=True)
class Split:
    """The two halves of a program.

    Attributes:
      known: known inputs -> known outputs, then residuals.
      staged: residuals, then instantiated inputs -> instantiated outputs.
      unknown_out, instantiated_out: which outputs of the program are so.
    """

    known: Any
    staged: Any
    unknown_out: list[bool]
    instantiated_out: list[bool]

    def with_unknown_outputs_only(self) -> Split:
        """The staged half without outputs that the known half gives too."""
        both = zip(self.unknown_out, self.instantiated_out, strict=True)
        kept = [u for u, i in both if i]
        outvars = list(where(kept, open_jaxpr(self.staged).outvars))
        return dataclasses.replace(
            self,
            staged=replace_jaxpr(self.staged, outvars=outvars),
            instantiated_out=list(self.unknown_out),
        )


def split(
    closed: Jaxpr,
    unknown_in: Sequence[bool],
    instantiated_in: Sequence[bool],
    saveable: Callable[..., Any],
) -> Split:
    """Splits a program under a checkpoint policy, in the scope of the mesh that the program sees.

    A value is unknown if it depends on unknown inputs, and instantiated if the staged program has
    it, as an input or computed again; a staged equation takes other values as residuals.
    """
    jaxpr = open_jaxpr(closed)
    state = {v: (u, i) for v, u, i in zip(jaxpr.invars, unknown_in, instantiated_in, strict=True)}
    residuals: dict[Any, None] = {}
    known, staged = [], []

    def read(atom):
        return state[atom] if isinstance(atom, jex_core.Var) else (False, True)

    def stage(eqn):
        for atom in eqn.invars:
            if not read(atom)[1]:
                residuals[atom] = None
        staged.append(eqn)

    for eqn in jaxpr.eqns:
        unknown = [read(v)[0] for v in eqn.invars]
        rule = pe.partial_eval_jaxpr_custom_rules.get(eqn.primitive)
        if rule is not None and (any(unknown) or saveable is not save_everything):
            instantiated = [read(v)[1] for v in eqn.invars]
            now, later, unknown_out, instantiated_out, extra = rule(
                saveable, unknown, instantiated, eqn
            )
            known += [now] if now is not None else []
            staged += [later] if later is not None else []
            residuals.update(dict.fromkeys(extra))
            state.update(
                zip(eqn.outvars, zip(unknown_out, instantiated_out, strict=True), strict=True)
            )
        elif any(unknown):
            stage(eqn)
            state.update(dict.fromkeys(eqn.outvars, (True, True)))
        else:
            known.append(eqn)
            decision = saveable(eqn.primitive, *[v.aval for v in eqn.invars], **eqn.params)
            save = _has_effects(eqn) or policy_saves(decision)
            if not save and (spaces := offload_spaces(decision)):
                away, back = _offload(eqn.outvars, *spaces)
                known += away
                staged += back
                residuals.update(dict.fromkeys(v for step in away for v in step.outvars))
            elif not save:
                stage(eqn)
            state.update(dict.fromkeys(eqn.outvars, (False, not save)))

    unknown_out = [read(v)[0] for v in jaxpr.outvars]
    instantiated_out = [read(v)[1] for v in jaxpr.outvars]
    known_in = [not u for u in unknown_in]
    known_out = [not u for u in unknown_out]
    return Split(
        known=program(
            closed,
            where(known_in, jaxpr.invars),
            [*where(known_out, jaxpr.outvars), *residuals],
            known,
        ),
        staged=program(
            closed,
            [*residuals, *where(instantiated_in, jaxpr.invars)],
            where(instantiated_out, jaxpr.outvars),
            staged,
        ),
        unknown_out=unknown_out,
        instantiated_out=instantiated_out,
    )


def _offload(values: Sequence[Any], kept_in: Any, offloaded_to: Any) -> tuple[list[Any], list[Any]]:
    """The equations that move values to another memory space, and those that move them back."""
    away, back = [], []
    for value in values:
        step = _moved(value, offloaded_to)
        away.append(step)
        back.append(_moved(step.outvars[0], kept_in).replace(outvars=[value]))
    return away, back


def _moved(value: Any, space: Any) -> Any:
    move = functools.partial(jax.device_put, device=space, may_alias=False)
    (template,) = open_jaxpr(jax.make_jaxpr(move)(value.aval)).eqns
    return template.replace(invars=[value], outvars=[jex_core.Var(template.outvars[0].aval)])


def save_everything(*_: Any, **__: Any) -> bool:
    """The policy under which the staged program computes nothing again."""
    return True


# --------------------------------------------------------------------------- the two as Graphs


@dataclass(frozen=True)
class Halves:
    """A split program as two Graphs.

    Attributes:
      known: known inputs -> known outputs, then the residuals that are neither input nor output.
      staged: the residuals, each once, then instantiated inputs -> instantiated outputs.
      sources: where each residual comes from: ("input", k) or ("output", k) of `known`.
    """

    known: Graph
    staged: Graph
    sources: list[tuple[str, int]]

    def residuals(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> list[Any]:
        """The residuals, from the inputs and outputs of `known`."""
        return [inputs[k] if kind == "input" else outputs[k] for kind, k in self.sources]


def halves(
    graph: Graph,
    parts: Split,
    in_specs: Sequence[PartitionSpec],
    out_specs: Sequence[PartitionSpec],
    staged_in_specs: Sequence[PartitionSpec],
    staged_out_specs: Sequence[PartitionSpec],
) -> Halves:
    """The Graphs of a split program on the mesh of `graph`.

    A residual that is an input or an output of the known half anyway is not returned again:
    replicated weights would otherwise be stored once per device. The others lie, by the axes along
    which they vary, along dimension 0; a varying scalar gets that dimension.
    """
    jaxpr = open_jaxpr(parts.known)
    count = len(out_specs)
    outputs, residuals = jaxpr.outvars[:count], jaxpr.outvars[count:]
    place: dict[Any, tuple[str, int]] = {}
    for k, v in enumerate(outputs):
        if isinstance(v, jex_core.Var):
            place[v] = ("output", k)
    place.update({v: ("input", k) for k, v in enumerate(jaxpr.invars)})
    new: list[Any] = []
    sources: list[tuple[str, int]] = []
    for atom in residuals:
        source = place.get(atom) if isinstance(atom, jex_core.Var) else None
        if source is None:
            source = ("output", count + len(new))
            new.append(atom)
            if isinstance(atom, jex_core.Var):
                place[atom] = source
        sources.append(source)

    known = dataclasses.replace(
        graph,
        jaxpr=replace_jaxpr(parts.known, outvars=[*outputs, *new]),
        in_specs=tuple(in_specs),
        out_specs=(*out_specs, *[PartitionSpec()] * len(new)),
    )
    varying = known.replication.outputs[count:]
    new_specs = [
        PartitionSpec(tuple(a for a in graph.manual_axes if a in axes)) if axes else PartitionSpec()
        for axes in varying
    ]
    shared = [axes and not v.aval.shape for v, axes in zip(new, varying, strict=True)]
    with jax.sharding.use_abstract_mesh(graph.body_mesh):
        vectors = [
            jex_core.Var(_vector(v.aval)) if s else v for v, s in zip(new, shared, strict=True)
        ]
        widen = [_reshape(v, w) for v, w, s in zip(new, vectors, shared, strict=True) if s]
    known = dataclasses.replace(
        known,
        jaxpr=replace_jaxpr(parts.known, eqns=[*jaxpr.eqns, *widen], outvars=[*outputs, *vectors]),
        out_specs=(*out_specs, *new_specs),
    )
    is_vector = {("output", count + k) for k, s in enumerate(shared) if s}
    unique = list(dict.fromkeys(sources))
    spec_of = {"input": known.in_specs, "output": known.out_specs}
    staged = dataclasses.replace(
        graph,
        jaxpr=_with_residuals(parts.staged, sources, is_vector, graph.body_mesh),
        in_specs=(*[spec_of[kind][k] for kind, k in unique], *staged_in_specs),
        out_specs=tuple(staged_out_specs),
    )
    return Halves(known, staged, unique)


def _with_residuals(
    staged: Any, sources: Sequence[tuple[str, int]], is_vector: Set[tuple[str, int]], mesh: Any
) -> Any:
    """The staged program, which takes the residual of each source once."""
    jaxpr = open_jaxpr(staged)
    own = dict(zip(reversed(sources), reversed(jaxpr.invars[: len(sources)]), strict=True))
    names = {v: own[s] for v, s in zip(jaxpr.invars, sources, strict=False)}
    with jax.sharding.use_abstract_mesh(mesh):
        vectors = {s: jex_core.Var(_vector(own[s].aval)) for s in own if s in is_vector}
        narrow = [_reshape(w, own[s]) for s, w in vectors.items()]
    first = [vectors.get(s, own[s]) for s in dict.fromkeys(sources)]
    return replace_jaxpr(
        staged,
        invars=[*first, *jaxpr.invars[len(sources) :]],
        eqns=[*narrow, *(renamed(eqn, names) for eqn in jaxpr.eqns)],
        outvars=[named(v, names) for v in jaxpr.outvars],
    )


def _vector(aval: Any) -> Any:
    return jax.make_jaxpr(lambda x: lax.reshape(x, (1,)))(aval).out_avals[0]


def _reshape(source: Any, target: Any) -> Any:
    shape = target.aval.shape
    template = open_jaxpr(jax.make_jaxpr(lambda x: lax.reshape(x, shape))(source.aval))
    return template.eqns[0].replace(invars=[source], outvars=[target])


def program(closed: Jaxpr, invars: Sequence[Any], outvars: Sequence[Any], eqns: list[Any]) -> Any:
    """A program of equations of `closed`."""
    return replace_jaxpr(
        closed,
        invars=list(invars),
        outvars=list(outvars),
        eqns=eqns,
        effects={effect for eqn in eqns for effect in eqn.effects},
        debug_info=open_jaxpr(closed).debug_info.with_unknown_names(),
    )


def is_dropped(var: Atom) -> bool:
    return type(var).__name__ == "DropVar"


def _has_effects(eqn: Eqn) -> bool:
    return any(axis_of_effect(e) is None for e in eqn.effects)


def where(mask: Sequence[bool], values: Sequence[Any]) -> tuple[Any, ...]:
    """The values at which `mask` is true."""
    return tuple(v for m, v in zip(mask, values, strict=True) if m)
