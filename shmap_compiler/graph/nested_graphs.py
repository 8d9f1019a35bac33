"""The Graphs nested in a Graph: programs of shard_mapped functions that its body calls."""

from __future__ import annotations

from collections.abc import Iterator

from shmap_compiler.base.untyped import Eqn, Jaxpr
from shmap_compiler.graph.graph import Graph
from shmap_compiler.jaxprs.contents import equations, names_any


def nested_graphs(graph: Graph) -> Iterator[Graph]:
    """The Graph itself, then all Graphs nested in it, outer ones first."""
    yield graph
    yield from graphs_in(graph.jaxpr)


def graphs_in(jaxpr: Jaxpr) -> Iterator[Graph]:
    """The Graphs that a program calls, and all Graphs nested in them, outer ones first."""
    if names_any(jaxpr, ("shard_map",)):
        for eqn in equations(jaxpr):
            if holds_graph(eqn):
                yield from nested_graphs(eqn.params["graph"])


def holds_graph(eqn: Eqn) -> bool:
    """Whether an equation is a nested shard_map of this package, rather than of JAX's own."""
    return isinstance(eqn.params.get("graph"), Graph)


def all_equations(jaxpr: Jaxpr) -> Iterator[Eqn]:
    """All equations of a program and of the Graphs nested in it."""
    yield from equations(jaxpr)
    for graph in graphs_in(jaxpr):
        yield from equations(graph.jaxpr)
