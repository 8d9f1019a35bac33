"""Rejects derivatives in rules of the user's that were traced without JAX's types.

The gradient of a value that is equal on all devices is the sum over devices, which only JAX's types
show (`tracing/vma_typing.py`). A rule for a derivative, or for vmap, may be traced when these types
are no longer known. One that differentiates is then right only if all its operands vary along the
same axes and it does not communicate.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from shmap_compiler.base.errors import BodyError, Problem
from shmap_compiler.base.jax_compat import (
    HIGH_PRIMITIVE,
    holds_functions,
    is_defined_in_jax,
    trace_with_axes,
    varying_types,
)
from shmap_compiler.base.meshes import Axes
from shmap_compiler.base.source_lines import shown_source
from shmap_compiler.base.untyped import Atom, Eqn, Jaxpr
from shmap_compiler.base.values import has_tangent
from shmap_compiler.graph.graph import Graph
from shmap_compiler.jaxprs.contents import equations
from shmap_compiler.jaxprs.held_programs import CUSTOM_JVP, CUSTOM_VJP, CUSTOM_VMAP
from shmap_compiler.jaxprs.transposed import transposes
from shmap_compiler.replication.collective_rules import jax_axes

_RULES = {CUSTOM_JVP: "jvp_jaxpr_fun", CUSTOM_VJP: "fwd_jaxpr_thunk"}
"""The parameters with the rules that JAX traces in forward mode."""


def refuse_in_derivative_rules(graph: Graph, derivative: Jaxpr) -> None:
    """Raises BodyError for each derivative rule that differentiates values of several types.

    Args:
      derivative: the program with tangents that was made of the graph.
    """

    def is_wrong(eqn: Eqn, types: Collection[Axes]) -> bool:
        if eqn.primitive.name == HIGH_PRIMITIVE:
            return len(types) > 1 and holds_functions(eqn)
        parameter = _RULES.get(eqn.primitive.name)
        if parameter is None or (len(types) <= 1 and is_defined_in_jax(eqn.params[parameter])):
            return False
        program = _rule_program(graph, eqn, parameter)
        if not transposes(program):
            return False
        return len(types) > 1 or _makes_other_types(graph, program, frozenset().union(*types))

    _refuse(graph, derivative, is_wrong)


def refuse_in_batching_rules(graph: Graph, batched: Jaxpr) -> None:
    """The same for rules for vmap."""
    _refuse(graph, batched, lambda eqn, types: eqn.primitive.name == CUSTOM_VMAP and len(types) > 1)


def _refuse(graph: Graph, made: Jaxpr, is_wrong: Callable[[Eqn, Collection[Axes]], bool]) -> None:
    """Raises BodyError for each call of which `is_wrong`, given the types of operands, is true."""
    if not graph.check_vma or not transposes(made):
        return

    def types(operands: Sequence[Atom]) -> set[Axes]:
        return {_own_axes(graph, v) for v in operands if has_tangent(v.aval)}

    guilty = [
        _problem(eqn)
        for eqn in equations(graph.jaxpr)
        if eqn.primitive.name in _CALLS and is_wrong(eqn, types(eqn.invars))
    ]
    if guilty:
        raise BodyError(f"`{graph.name}`", guilty)


def _makes_other_types(graph: Graph, program: Jaxpr, own: Axes) -> bool:
    """Whether a rule whose operands vary along the axes `own` makes values of other types.

    A psum does, along axes of `own`, too; an axis index along others.
    """
    return any(
        graph.mesh.shape.get(axis, 1) > 1
        for eqn in equations(program)
        for axis in jax_axes(eqn)
        if axis not in own or eqn.primitive.name != "axis_index"
    )


_CALLS = {*_RULES, CUSTOM_VMAP, HIGH_PRIMITIVE}


def _own_axes(graph: Graph, atom: Atom) -> Axes:
    """The axes with several devices along which a value varies."""
    return frozenset(a for a in graph.replication.of(atom) if graph.mesh.shape[a] > 1)


def _rule_program(graph: Graph, eqn: Eqn, parameter: str) -> Jaxpr:
    """The program of a rule, where all operands are differentiated."""
    found = []
    flags = [parameter == "fwd_jaxpr_thunk"] * (len(eqn.invars) - eqn.params["num_consts"])

    def call():
        found.append(eqn.params[parameter].call_wrapped(*flags)[0])
        return ()

    with varying_types(False):
        trace_with_axes(call, graph.body_mesh, graph.all_manual_axes, [])
    return found[0]


def _problem(eqn: Eqn) -> Problem:
    return Problem(
        f"a derivative taken in a rule of the function called at {shown_source(eqn.source_info)}",
        "values of which some are equal on all devices and others are each device's own: the "
        "gradient of the former is a sum over devices, which needs JAX's types of varying values, "
        "and this rule is traced without them",
        "a function and rules that JAX's varying-type checks accept, defined outside of the "
        "shard_mapped function; or a rule that differentiates values of one type only",
        "cast what it differentiates with jax.lax.pcast(x, axes, to='varying') before the call, "
        "and sum its gradient with jax.lax.psum; or write the derivative by hand",
    )
