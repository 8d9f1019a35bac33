"""Splits a program in two: one that runs now, and one that runs later and takes residuals.

Derivatives split a program of values and tangents (values now, tangents later); `jax.checkpoint`
splits one of known and unknown values under a policy.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
from jax import lax
from jax.extend import core as jex_core
from jax.interpreters import partial_eval as pe
from jax.sharding import AbstractMesh, PartitionSpec

from shmap_compiler._compat import axis_of_effect, open_jaxpr, policy_saves, replace_jaxpr
from shmap_compiler.graph import Graph


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
    closed: Any,
    mesh: AbstractMesh,
    unknown_in: Sequence[bool],
    instantiated_in: Sequence[bool],
    saveable: Callable[..., Any],
) -> Split:
    """Splits a program under a checkpoint policy.

    A value is unknown if it depends on unknown inputs, and instantiated if the staged program has
    it, as an input or computed again; a staged equation takes other values as residuals.

    Args:
      mesh: as the program sees it.
    """
    with jax.sharding.use_abstract_mesh(mesh):  # this may be inside another body
        return _split(closed, unknown_in, instantiated_in, saveable)


def _split(
    closed: Any,
    unknown_in: Sequence[bool],
    instantiated_in: Sequence[bool],
    saveable: Callable[..., Any],
) -> Split:
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
            save = _has_effects(eqn) or policy_saves(
                saveable(eqn.primitive, *[v.aval for v in eqn.invars], **eqn.params)
            )
            if not save:
                stage(eqn)
            state.update(dict.fromkeys(eqn.outvars, (False, not save)))

    unknown_out = [read(v)[0] for v in jaxpr.outvars]
    instantiated_out = [read(v)[1] for v in jaxpr.outvars]
    known_in = [not u for u in unknown_in]
    known_out = [not u for u in unknown_out]
    return Split(
        known=_program(
            closed,
            where(known_in, jaxpr.invars),
            [*where(known_out, jaxpr.outvars), *residuals],
            known,
        ),
        staged=_program(
            closed,
            [*residuals, *where(instantiated_in, jaxpr.invars)],
            where(instantiated_out, jaxpr.outvars),
            staged,
        ),
        unknown_out=unknown_out,
        instantiated_out=instantiated_out,
    )


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
    outputs, residual_vars = jaxpr.outvars[:count], jaxpr.outvars[count:]
    place: dict[Any, tuple[str, int]] = {}
    for k, v in enumerate(outputs):
        if isinstance(v, jex_core.Var):
            place[v] = ("output", k)
    place.update({v: ("input", k) for k, v in enumerate(jaxpr.invars)})
    new = [v for v in residual_vars if v not in place]
    place.update({v: ("output", count + k) for k, v in enumerate(new)})

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
    with jax.sharding.use_abstract_mesh(graph.body_mesh):
        scalars = {
            v: jex_core.Var(_vector(v.aval))
            for v, axes in zip(new, varying, strict=True)
            if axes and not v.aval.shape
        }
        widen = [_reshape(v, w) for v, w in scalars.items()]
        narrow = [_reshape(w, v) for v, w in scalars.items()]
    known = dataclasses.replace(
        known,
        jaxpr=replace_jaxpr(
            parts.known,
            eqns=[*jaxpr.eqns, *widen],
            outvars=[*outputs, *[scalars.get(v, v) for v in new]],
        ),
        out_specs=(*out_specs, *new_specs),
    )
    sources = [place[v] for v in residual_vars]
    spec_of = {"input": known.in_specs, "output": known.out_specs}
    staged_jaxpr = open_jaxpr(parts.staged)
    rest = staged_jaxpr.invars[len(residual_vars) :]
    staged = dataclasses.replace(
        graph,
        jaxpr=replace_jaxpr(
            parts.staged,
            invars=[*[scalars.get(v, v) for v in residual_vars], *rest],
            eqns=[*narrow, *staged_jaxpr.eqns],
        ),
        in_specs=(*[spec_of[kind][k] for kind, k in sources], *staged_in_specs),
        out_specs=tuple(staged_out_specs),
    )
    return Halves(known, staged, sources)


def _vector(aval: Any) -> Any:
    return jax.make_jaxpr(lambda x: lax.reshape(x, (1,)))(aval).out_avals[0]


def _reshape(source: Any, target: Any) -> Any:
    shape = target.aval.shape
    template = open_jaxpr(jax.make_jaxpr(lambda x: lax.reshape(x, shape))(source.aval))
    return template.eqns[0].replace(invars=[source], outvars=[target])


def _program(closed: Any, invars: Sequence[Any], outvars: Sequence[Any], eqns: list[Any]) -> Any:
    return replace_jaxpr(
        closed,
        invars=list(invars),
        outvars=list(outvars),
        eqns=eqns,
        effects={effect for eqn in eqns for effect in eqn.effects},
        debug_info=open_jaxpr(closed).debug_info.with_unknown_names(),
    )


def _has_effects(eqn: Any) -> bool:
    return any(axis_of_effect(e) is None for e in eqn.effects)


def where(mask: Sequence[bool], values: Sequence[Any]) -> tuple[Any, ...]:
    """The values at which `mask` is true."""
    return tuple(v for m, v in zip(mask, values, strict=True) if m)
