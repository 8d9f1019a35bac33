"""Dead-code elimination in a Graph, and its split in two for `jax.checkpoint` with a policy."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import jax
from jax.extend import core as jex_core
from jax.interpreters import partial_eval as pe

from shmap_compiler.base.jax_compat import close_jaxpr
from shmap_compiler.base.untyped import AnyValue, Atom, Eqn
from shmap_compiler.graph.graph import Graph
from shmap_compiler.graph.primitive import shmap_p
from shmap_compiler.jaxprs.building import where
from shmap_compiler.jaxprs.contents import is_all_alive
from shmap_compiler.transforms.checkpoint import split_program
from shmap_compiler.transforms.halves import halves

# ---------------------------------------------------------------------------------- dead code


def _dce(used_outputs: Sequence[bool], *version_dependent_and_eqn: AnyValue):
    eqn = version_dependent_and_eqn[-1]
    graph: Graph = eqn.params["graph"]
    if not any(used_outputs) and not eqn.effects:
        return [False] * len(eqn.invars), None
    if all(used_outputs) and is_all_alive(graph.jaxpr):
        return [True] * len(eqn.invars), eqn
    with jax.sharding.use_abstract_mesh(graph.body_mesh):  # this may be inside another body
        jaxpr, used_inputs = pe.dce_jaxpr(graph.jaxpr.jaxpr, list(used_outputs))
    if all((*used_outputs, *used_inputs)) and len(jaxpr.eqns) == len(graph.jaxpr.jaxpr.eqns):
        return list(used_inputs), eqn  # what is known of the graph stays known
    smaller = dataclasses.replace(
        graph,
        jaxpr=close_jaxpr(jaxpr),
        in_specs=where(used_inputs, graph.in_specs),
        out_specs=where(used_outputs, graph.out_specs),
        equal_inputs=where(used_inputs, graph.inputs_are_equal),
    )
    return list(used_inputs), eqn.replace(
        invars=list(where(used_inputs, eqn.invars)),
        outvars=list(where(used_outputs, eqn.outvars)),
        params={**eqn.params, "graph": smaller},
        effects=smaller.effects,
    )


def without_dead_code(graph: Graph) -> Graph:
    """The Graph without the equations that no result needs. It has the same inputs.

    jit removes them, but not with `keep_unused=True`.
    """
    if is_all_alive(graph.jaxpr):
        return graph
    program = graph.jaxpr.jaxpr
    with jax.sharding.use_abstract_mesh(graph.body_mesh):
        jaxpr, _ = pe.dce_jaxpr(program, [True] * len(program.outvars), instantiate=True)
    if len(jaxpr.eqns) == len(program.eqns):
        return graph  # what is known of it stays known
    return dataclasses.replace(graph, jaxpr=close_jaxpr(jaxpr))


# ------------------------------------------------------------------- checkpoint with a policy


def _partial_eval(saveable, unknown_in, instantiated_in, eqn):
    """Splits `eqn` into one that runs now and one that runs (again) in the backward pass."""
    graph: Graph = eqn.params["graph"]
    parts = split_program(graph, unknown_in, instantiated_in, saveable)
    known_in, known_out = [not u for u in unknown_in], [not u for u in parts.unknown_out]
    both = halves(
        graph,
        parts,
        known_in,
        where(known_out, graph.out_specs),
        instantiated_in,
        where(parts.instantiated_out, graph.out_specs),
    )
    known_invars = list(where(known_in, eqn.invars))
    known_outvars = list(where(known_out, eqn.outvars))
    known_outvars += [jex_core.Var(t) for t in both.known.out_types[len(known_outvars) :]]
    saved = both.residuals(known_invars, known_outvars)
    staged_invars = [*saved, *where(instantiated_in, eqn.invars)]
    staged_outvars = list(where(parts.instantiated_out, eqn.outvars))
    known_eqn = _with_graph(eqn, both.known, known_invars, known_outvars)
    staged_eqn = _with_graph(eqn, both.staged, staged_invars, staged_outvars)
    residual_vars = [v for v in saved if isinstance(v, jex_core.Var)]
    return known_eqn, staged_eqn, parts.unknown_out, parts.instantiated_out, residual_vars


def _with_graph(eqn: Eqn, graph: Graph, invars: list[Atom], outvars: list[Atom]) -> Eqn:
    return eqn.replace(
        invars=invars,
        outvars=outvars,
        params={**eqn.params, "graph": graph},
        effects=graph.effects,
    )


pe.dce_rules[shmap_p] = _dce
pe.partial_eval_jaxpr_custom_rules[shmap_p] = _partial_eval
