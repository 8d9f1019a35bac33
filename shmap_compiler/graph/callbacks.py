"""Where a program calls back into Python."""

from __future__ import annotations

import functools

from jax.extend.core import Primitive

from shmap_compiler.base.source_lines import source_line
from shmap_compiler.base.untyped import Jaxpr
from shmap_compiler.graph.graph import Graph
from shmap_compiler.graph.nested_graphs import all_equations, nested_graphs
from shmap_compiler.jaxprs.contents import primitives


def callback_lines(jaxpr: Jaxpr) -> tuple[str, ...]:
    """The user's lines that do it, also in nested Graphs: `debug_callback at model.py:12 (f)`."""
    calls = [eqn for eqn in all_equations(jaxpr) if is_callback(eqn.primitive)]
    return tuple(f"{eqn.primitive.name} at {source_line(eqn)}" for eqn in calls)


def calls_back(graph: Graph) -> bool:
    """Whether a program, or one nested in it, does it."""
    return any(
        is_callback(each) for part in nested_graphs(graph) for each in primitives(part.jaxpr)
    )


@functools.lru_cache(maxsize=4096)
def is_callback(primitive: Primitive) -> bool:
    return "callback" in primitive.name or primitive.name == "debug_print"
