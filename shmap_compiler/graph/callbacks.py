"""Where a program calls back into Python."""

from __future__ import annotations

import functools

from jax.extend.core import Primitive

from shmap_compiler.base.source_lines import source_line
from shmap_compiler.base.untyped import Jaxpr
from shmap_compiler.graph.nested_graphs import all_equations


def callback_lines(jaxpr: Jaxpr) -> tuple[str, ...]:
    """The user's lines that do it, also in nested Graphs: `debug_callback at model.py:12 (f)`."""
    calls = [eqn for eqn in all_equations(jaxpr) if is_callback(eqn.primitive)]
    return tuple(f"{eqn.primitive.name} at {source_line(eqn)}" for eqn in calls)


@functools.lru_cache(maxsize=4096)
def is_callback(primitive: Primitive) -> bool:
    return "callback" in primitive.name or primitive.name == "debug_print"
