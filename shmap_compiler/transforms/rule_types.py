"""The types by which the backward rules of `custom_vjp` functions take their cotangents.

In JAX with check_vma the type of a value says along which axes it varies, and a backward rule takes
and returns cotangents of the types of the function's results and operands. These types are recorded
in a program before its derivative is taken, because they are those of the function, not of its
linear program (`with_types`); the types of residuals are recorded in the derivative
(`with_residual_types`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from jax.extend import core as jex_core
from jax.extend import linear_util

from shmap_compiler.base import specs
from shmap_compiler.base.jax_compat import open_jaxpr, replace_jaxpr, replace_jaxprs_in
from shmap_compiler.base.meshes import Axes
from shmap_compiler.base.untyped import Atom, Aval, Eqn, Jaxpr, Unchecked
from shmap_compiler.graph.graph import Graph
from shmap_compiler.graph.nested_graphs import holds_graph, nested_graphs
from shmap_compiler.jaxprs.contents import names_any
from shmap_compiler.jaxprs.held_programs import CUSTOM_LIN, CUSTOM_VJP
from shmap_compiler.replication.frames import Frame, Replication
from shmap_compiler.replication.inference import infer_types
from shmap_compiler.replication.region_dataflow import Wiring
from shmap_compiler.replication.typed_rule import TypedRule
from shmap_compiler.tracing.vma_queries import rule_asks


def with_types(graph: Graph, outside: Sequence[Axes] | None = None) -> Callable[..., list[Aval]]:
    """`graph.fun`, with the types of operands and results recorded in each backward rule.

    The rules of a nested Graph got their types with those of the Graph around it.

    Args:
      outside: the axes of an enclosing shard_map along which each input varies; by default all.
    """
    note = _with_operand_types
    if graph.outer_manual_axes and outside is None:
        note = _with_operand_types_once
    noted = _noted_program(graph, CUSTOM_VJP, partial(note, {}), outside)
    return graph.fun if noted is graph.jaxpr else jex_core.jaxpr_as_fun(noted)


def with_residual_types(graph: Graph, outside: Sequence[Axes] | None = None) -> Graph:
    """A forward derivative, with the types of residuals recorded in each backward rule.

    Args:
      outside: as for `with_types`.
    """
    noted = _noted_program(graph, CUSTOM_LIN, _with_residual_types, outside)
    return graph if noted is graph.jaxpr else dataclasses.replace(graph, jaxpr=noted)


def _with_operand_types(
    silent: dict[int, Unchecked], eqn: Eqn, axes: Callable[[Sequence[Atom]], tuple[Axes, ...]]
) -> TypedRule:
    """The rule of an equation.

    Args:
      silent: as for `rule_asks`.
      axes: a function from variables to their types.
    """
    rule = eqn.params["bwd"]
    return TypedRule(rule, axes(eqn.invars), axes(eqn.outvars), asks=rule_asks(rule, silent))


def _with_operand_types_once(
    silent: dict[int, Unchecked], eqn: Eqn, axes: Callable[[Sequence[Atom]], tuple[Axes, ...]]
) -> TypedRule | None:
    has_types = isinstance(eqn.params["bwd"].f, TypedRule)
    return None if has_types else _with_operand_types(silent, eqn, axes)


def _with_residual_types(
    eqn: Eqn, axes: Callable[[Sequence[Atom]], tuple[Axes, ...]]
) -> TypedRule | None:
    rule = eqn.params["bwd"].f
    if not isinstance(rule, TypedRule):
        return None
    residuals = axes(eqn.invars[: eqn.params["num_res"]])
    # JAX may have wrapped the rule in a function, for values that it closes over.
    return dataclasses.replace(rule, rule=eqn.params["bwd"], residuals=residuals)


# -------------------------------------------------------------------------------- the programs


def _noted_program(
    graph: Graph,
    primitive: str,
    note: Callable[..., TypedRule | None],
    outside: Sequence[Axes] | None = None,
) -> Jaxpr:
    """The program of a graph, with the rules of equations of a primitive replaced.

    Args:
      note: makes the rule of an equation, given a function from variables to their types; None
        keeps the rule.
      outside: see `with_types`.
    """
    if not _calls(graph, primitive):
        return graph.jaxpr
    if outside is None:
        outside = [frozenset(graph.outer_manual_axes)] * len(graph.in_specs)
    # Cotangents of unreduced and reduced values are each device's own, like those of varying ones.
    inputs = [
        specs.own_cotangent_axes(s) | axes for s, axes in zip(graph.in_specs, outside, strict=True)
    ]
    types = infer_types(graph.region, graph.jaxpr, inputs)
    return _Noter(primitive, note, types, graph.check_vma).program(graph.jaxpr, types.frame)


def _calls(graph: Graph, primitive: str) -> bool:
    """Whether a Graph, or one nested in it, has equations of a primitive."""
    return any(names_any(each.jaxpr, [primitive]) for each in nested_graphs(graph))


class _Noter:
    def __init__(
        self,
        primitive: str,
        note: Callable[..., TypedRule | None],
        types: Replication,
        is_checked: bool,
    ):
        self.primitive = primitive
        self.note = note
        self.types = types
        self.is_checked = is_checked
        # By the identity of its frame: several equations may hold a program with equal types.
        self.known: dict[int, Any] = {}
        self.graphs: dict[int, Graph] = {}

    def program(self, jaxpr: Jaxpr, frame: Frame) -> Jaxpr:
        if id(frame) not in self.known:
            eqns = [
                self.equation(eqn, frame, *frame.nested.get(position, (None, ())))
                for position, eqn in enumerate(open_jaxpr(jaxpr).eqns)
            ]
            self.known[id(frame)] = replace_jaxpr(jaxpr, eqns=eqns)
        return self.known[id(frame)]

    def equation(
        self, eqn: Eqn, frame: Frame, wiring: Wiring | None, frames: Sequence[Frame]
    ) -> Eqn:
        if eqn.primitive.name == self.primitive:
            typed = self.note(eqn, lambda atoms: self.axes(atoms, frame))
            if typed is None:
                return eqn
            rule = linear_util.wrap_init(typed, debug_info=eqn.params["bwd"].debug_info)
            return eqn.replace(params={**eqn.params, "bwd": rule})
        if wiring is None:
            return eqn
        if holds_graph(eqn):
            return self.nested(eqn, *frames)
        inner = {id(p.jaxpr): f for p, f in zip(wiring.programs, frames, strict=True)}

        def noted(held: Jaxpr) -> Jaxpr:
            frame = inner.get(id(open_jaxpr(held)))
            return held if frame is None else self.program(held, frame)

        return eqn.replace(params=replace_jaxprs_in(eqn.params, noted))

    def nested(self, eqn: Eqn, frame: Frame) -> Eqn:
        """The call of a nested Graph: its rules get the types of the operands of this call."""
        graph: Graph = eqn.params["graph"]
        is_typed = self.is_checked and graph.check_vma
        if not is_typed or specs.has_reductions((graph.in_specs, graph.out_specs)):
            return eqn
        if not _calls(graph, self.primitive):
            return eqn
        if id(frame) not in self.graphs:
            jaxpr = self.program(graph.jaxpr, frame)
            self.graphs[id(frame)] = dataclasses.replace(graph, jaxpr=jaxpr)
        return eqn.replace(params={**eqn.params, "graph": self.graphs[id(frame)]})

    def axes(self, atoms: Sequence[Atom], frame: Frame) -> tuple[Axes, ...]:
        return tuple(frozenset(self.types.axes.names(frame.mask(v))) for v in atoms)
