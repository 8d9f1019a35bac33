"""The Graphs nested in a Graph: programs of shard_mapped functions that its body calls."""

from __future__ import annotations

from collections.abc import Iterator

from shmap_compiler.base.untyped import Eqn
from shmap_compiler.graph.graph import Graph
from shmap_compiler.jaxprs.contents import equations, names_any


def nested_graphs(graph: Graph) -> Iterator[Graph]:
    """The Graph itself, then all Graphs nested in it, outer ones first."""
    yield graph
    if names_any(graph.jaxpr, ("shard_map",)):
        for eqn in equations(graph.jaxpr):
            if holds_graph(eqn):
                yield from nested_graphs(eqn.params["graph"])


def holds_graph(eqn: Eqn) -> bool:
    """Whether an equation is a nested shard_map of this package, rather than of JAX's own."""
    return isinstance(eqn.params.get("graph"), Graph)


def all_equations(graph: Graph) -> Iterator[Eqn]:
    """All equations of a Graph and of the Graphs nested in it."""
    for each in nested_graphs(graph):
        yield from equations(each.jaxpr)
