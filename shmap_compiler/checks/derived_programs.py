"""The static checks of programs that transformations make with rules of the user's (R17, R18).

A value that is equal on all devices may have, by the rule of a `custom_jvp` function, a tangent
that is not; and the batched form of a `custom_vmap` function may vary where the function does not.
Programs without such rules need no second check: what JAX makes of an operation varies where the
operation does.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import jax
from jax.extend import core as jex_core

from shmap_compiler.base import specs
from shmap_compiler.base.errors import Problem, ReplicationError
from shmap_compiler.base.jax_compat import jaxprs_in, open_jaxpr, replace_jaxpr, trace_with_axes
from shmap_compiler.base.source_lines import source_line
from shmap_compiler.base.untyped import Eqn
from shmap_compiler.checks.hangs import check_hangs
from shmap_compiler.checks.provenance import ValueRef, format_provenance, provenance
from shmap_compiler.graph.graph import Graph
from shmap_compiler.graph.nested_graphs import all_equations, holds_graph, nested_graphs
from shmap_compiler.jaxprs.contents import names_any
from shmap_compiler.jaxprs.held_programs import CUSTOM_JVP, CUSTOM_LIN, CUSTOM_VMAP
from shmap_compiler.replication.frames import Frame
from shmap_compiler.replication.inference import infer_program
from shmap_compiler.tracing.canonicalize_collectives import normalize

_RULED = {
    "jvp": (CUSTOM_JVP,),
    "gradient": (CUSTOM_LIN,),
    "vmap": (CUSTOM_VMAP,),
}
"""By the kind of a transformation, the primitives for which it asks a rule of the user's."""


def check_derived(kind: str, before: Graph, after: Graph, in_names: Sequence[str]) -> None:
    """Raises ReplicationError or HangError for what rules of the user's made of a Graph.

    Args:
      kind: "jvp", "gradient" or "vmap".
      before, after: the Graph, and what the transformation made of it.
      in_names: the last inputs of `after`, for messages.
    """
    ruled = _RULED[kind]
    if not _holds(before, ruled):
        return
    who = f"the {kind} of `{before.name}`"
    if kind != "gradient":  # backward rules have a check of their own
        check_hangs(after, who, in_names)
    # A program that holds backward rules will be transposed, and its own results are not used.
    if not after.check_vma or _holds(after, (CUSTOM_LIN,)):
        return
    problems = list(_problems(kind, before, after, in_names))
    if problems:
        raise ReplicationError(who, problems)


def _holds(graph: Graph, names: Sequence[str]) -> bool:
    """Whether an equation of a Graph, or of one nested in it, has a primitive of these names."""
    return any(names_any(each.jaxpr, names) for each in nested_graphs(graph))


def _problems(kind: str, before: Graph, after: Graph, in_names: Sequence[str]) -> Iterator[Problem]:
    names = ["an array closed over"] * (len(after.in_specs) - len(in_names)) + list(in_names)
    values = len(before.out_specs) if kind == "jvp" else 0
    outputs = zip(
        after.jaxpr.jaxpr.outvars, after.out_specs, after.replication.outputs, strict=True
    )
    for index, (out, spec, axes) in enumerate(outputs):
        missing = [a for a in after.manual_axes if a in axes - {*specs.varying_axes(spec)}]
        if not missing or 0 in out.aval.shape:
            continue
        found = provenance(after.replication, ValueRef((), out), missing[0])
        lines = format_provenance(after, found, names)
        along = ", ".join(map(repr, missing))
        what = _output_name(kind, index, values)
        rules = " or ".join(_at_fault(kind, before))
        yield Problem(
            f"{what} with the spec {specs.show(spec)}",
            f"blocks that vary along {along}, which that spec does not mention; they last became"
            f" varying along {missing[0]!r} at{lines}",
            f"a rule whose results are equal along {along} wherever those of its function are",
            f"sum or average over {along} in the rule of {rules}, with jax.lax.psum or pmean; or"
            " let the result of the function vary along it, and out_specs say so",
        )


def _output_name(kind: str, index: int, values: int) -> str:
    if kind == "jvp" and index >= values:
        return f"the tangent of result [{index - values}]"
    return f"the gradient of input [{index}]" if kind == "gradient" else f"result [{index}]"


def _at_fault(kind: str, graph: Graph) -> list[str]:
    """The functions whose tangents vary where their values do not; all, if these are not found."""
    frames = _frames(graph.replication.frame)
    calls = [(f, e) for f in frames for e in f.jaxpr.eqns if e.primitive.name in _RULED[kind]]
    found = [e for f, e in calls if kind != "jvp" or _tangent_varies_more(graph, f, e)]
    every = (e for e in all_equations(graph.jaxpr) if e.primitive.name in _RULED[kind])
    return list(dict.fromkeys(map(_named, found or every)))


def _frames(frame: Frame) -> list[Frame]:
    """A solved program and those it holds, each once; without Graphs, which have their own axes."""
    found: dict[int, Frame] = {}

    def collect(each: Frame) -> None:
        if id(each) in found:
            return
        found[id(each)] = each
        for position, (_, frames) in each.nested.items():
            if not holds_graph(each.jaxpr.eqns[position]):
                for inner in frames:
                    collect(inner)

    collect(frame)
    return list(found.values())


def _named(eqn: Eqn) -> str:
    if eqn.primitive.name == CUSTOM_LIN:
        return f"the custom_vjp function called at {source_line(eqn)}"
    (held, *_) = jaxprs_in(eqn.params)
    name = open_jaxpr(held).debug_info.func_name
    line = source_line(eqn)  # none if the body itself is that function
    kind = eqn.primitive.name.removesuffix("_call")
    return f"the {kind} function `{name}`" + (f" called at {line}" if line else "")


def _tangent_varies_more(graph: Graph, frame: Frame, eqn: Eqn) -> bool:
    """Whether a `custom_jvp` function, alone, has tangents that vary where its values do not."""
    operands = list(dict.fromkeys(v for v in eqn.invars if isinstance(v, jex_core.Var)))
    alone = replace_jaxpr(
        graph.jaxpr,
        invars=operands,
        outvars=list(eqn.outvars),
        eqns=[eqn],
        effects=set(eqn.effects),
        debug_info=open_jaxpr(graph.jaxpr).debug_info.with_unknown_names(),
    )
    fun = jex_core.jaxpr_as_fun(alone)

    def tangents(*blocks):
        values, moving = blocks[: len(operands)], blocks[len(operands) :]
        return jax.jvp(fun, values, moving)[1]

    types = [v.aval for v in operands]
    types += [t.to_tangent_aval() for t in types]
    traced = trace_with_axes(tangents, graph.body_mesh, graph.manual_axes, types)
    program = normalize(traced, graph.body_mesh, graph.all_manual_axes, f"`{graph.name}`")
    axes = graph.replication.axes
    varying = [axes.names(frame.mask(v)) for v in operands]
    found = infer_program(graph.region, program, [*varying, *varying]).outputs
    own = [frozenset(axes.names(frame.mask(v))) for v in eqn.outvars]
    return any(not t <= v for t, v in zip(found, own, strict=True))
