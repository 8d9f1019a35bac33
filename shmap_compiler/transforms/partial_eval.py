"""Dead-code elimination in a Graph, and its split in two for `jax.checkpoint` with a policy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from jax.extend import core as jex_core
from jax.interpreters import partial_eval as pe
from jax.sharding import PartitionSpec

from shmap_compiler._compat import (
    axis_of_effect,
    close_jaxpr,
    open_jaxpr,
    policy_saves,
    replace_jaxpr,
)
from shmap_compiler.graph import Graph
from shmap_compiler.primitive import shmap_p
from shmap_compiler.tracer import retrace
from shmap_compiler.transforms.residuals import Residuals

# ---------------------------------------------------------------------------------- dead code


def _dce(used_outputs: Sequence[bool], *version_dependent_and_eqn: Any):
    eqn = version_dependent_and_eqn[-1]
    graph: Graph = eqn.params["graph"]
    if not any(used_outputs) and not eqn.effects:
        return [False] * len(eqn.invars), None
    jaxpr, used_inputs = pe.dce_jaxpr(graph.jaxpr.jaxpr, list(used_outputs))
    smaller = Graph(
        name=graph.name,
        jaxpr=close_jaxpr(jaxpr),
        mesh=graph.mesh,
        manual_axes=graph.manual_axes,
        outer_manual_axes=graph.outer_manual_axes,
        in_specs=_where(used_inputs, graph.in_specs),
        out_specs=_where(used_outputs, graph.out_specs),
        check_vma=graph.check_vma,
    )
    return list(used_inputs), eqn.replace(
        invars=list(_where(used_inputs, eqn.invars)),
        outvars=list(_where(used_outputs, eqn.outvars)),
        params={**eqn.params, "graph": smaller},
        effects=smaller.effects,
    )


# ------------------------------------------------------------------- checkpoint with a policy


def _partial_eval(saveable, unknown_in, instantiated_in, eqn):
    """Splits `eqn` into one that runs now and one that runs (again) in the backward pass."""
    graph: Graph = eqn.params["graph"]
    split = _split(graph.jaxpr, unknown_in, instantiated_in, saveable)
    known_in = [not u for u in unknown_in]
    known_out = [not u for u in split.unknown_out]
    count = sum(known_out)
    residuals = Residuals()
    run_known = jex_core.jaxpr_as_fun(split.known)
    run_staged = jex_core.jaxpr_as_fun(split.staged)

    def known(*blocks):
        results = run_known(*blocks)
        outs = results[:count]
        return [*outs, *residuals.save(results[count:], blocks, outs)]

    known_invars = list(_where(known_in, eqn.invars))
    out_specs = _where(known_out, graph.out_specs)
    known_graph = retrace(
        graph,
        known,
        _where(known_in, graph.in_specs),
        lambda results: [*out_specs, *[PartitionSpec()] * (len(results) - count)],
        [v.aval for v in known_invars],
    )
    known_graph = residuals.with_specs(known_graph, count)
    new_vars = [jex_core.Var(t) for t in known_graph.out_types[count:]]
    known_outvars = [*_where(known_out, eqn.outvars), *new_vars]
    saved = residuals.values(known_invars, known_outvars)

    def staged(*inputs):
        return run_staged(*residuals.restore(inputs[: len(saved)]), *inputs[len(saved) :])

    staged_invars = [*saved, *_where(instantiated_in, eqn.invars)]
    staged_graph = retrace(
        graph,
        staged,
        [*residuals.all_specs(known_graph), *_where(instantiated_in, graph.in_specs)],
        _where(split.instantiated_out, graph.out_specs),
        [v.aval for v in staged_invars],
    )
    known_eqn = _with_graph(eqn, known_graph, known_invars, known_outvars)
    staged_outvars = list(_where(split.instantiated_out, eqn.outvars))
    staged_eqn = _with_graph(eqn, staged_graph, staged_invars, staged_outvars)
    residual_vars = [v for v in saved if isinstance(v, jex_core.Var)]
    return known_eqn, staged_eqn, split.unknown_out, split.instantiated_out, residual_vars


def _with_graph(eqn: Any, graph: Graph, invars: list[Any], outvars: list[Any]) -> Any:
    return eqn.replace(
        invars=invars,
        outvars=outvars,
        params={**eqn.params, "graph": graph},
        effects=graph.effects,
    )


@dataclass(frozen=True)
class _Split:
    """known: known inputs -> known outputs and residuals.
    staged: residuals and instantiated inputs -> instantiated outputs."""

    known: Any
    staged: Any
    unknown_out: list[bool]
    instantiated_out: list[bool]


def _split(
    closed: Any,
    unknown_in: Sequence[bool],
    instantiated_in: Sequence[bool],
    saveable: Callable[..., Any],
) -> _Split:
    """Splits a program under a policy.

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
        if rule is not None:
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
    return _Split(
        known=_program(
            closed,
            _where([not u for u in unknown_in], jaxpr.invars),
            [*_where([not u for u in unknown_out], jaxpr.outvars), *residuals],
            known,
        ),
        staged=_program(
            closed,
            [*residuals, *_where(instantiated_in, jaxpr.invars)],
            _where(instantiated_out, jaxpr.outvars),
            staged,
        ),
        unknown_out=unknown_out,
        instantiated_out=instantiated_out,
    )


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


def _where(mask: Sequence[bool], values: Sequence[Any]) -> tuple[Any, ...]:
    return tuple(v for m, v in zip(mask, values, strict=True) if m)


pe.dce_rules[shmap_p] = _dce
pe.partial_eval_jaxpr_custom_rules[shmap_p] = _partial_eval
