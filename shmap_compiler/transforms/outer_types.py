"""JAX's types of cotangents and tangents along the axes of an enclosing shard_map.

The derivative of a nested program is taken on its own, and there every cotangent is a share of each
device's own along these axes. While JAX differentiates the enclosing body with its types of varying
values, a cotangent is whole along the axes along which its value does not vary.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import jax
from jax import lax

from shmap_compiler.base.jax_compat import HIGH_PRIMITIVE, tracks_varying_types, varies_along
from shmap_compiler.base.meshes import Axes
from shmap_compiler.base.untyped import AnyValue, Aval
from shmap_compiler.graph.graph import Graph
from shmap_compiler.graph.nested_graphs import nested_graphs
from shmap_compiler.graph.primitive import named_axes
from shmap_compiler.jaxprs.contents import names_any
from shmap_compiler.jaxprs.held_programs import CUSTOM_LIN, LINEAR_CALL


def typed_outside(graph: Graph) -> bool:
    """Whether values around a nested program have types along the axes of the enclosing one."""
    return bool(graph.outer_manual_axes) and tracks_varying_types()


def axes_outside(graph: Graph, types: Sequence[Aval]) -> tuple[str, ...]:
    """The axes of an enclosing shard_map along which devices may compute different values.

    Args:
      types: of the arguments of the program and of the cotangents of its results.
    """
    if not typed_outside(graph):
        return ()
    if any(names_any(each.jaxpr, _CALL_RULES) for each in nested_graphs(graph)):
        return graph.outer_manual_axes
    found = named_axes(graph).union(*map(varies_along, types))
    return tuple(a for a in graph.outer_manual_axes if a in found)


_CALL_RULES = (CUSTOM_LIN, HIGH_PRIMITIVE, LINEAR_CALL)
"""Primitives whose backward rules may name any axes."""


def with_types_of(values: Sequence[AnyValue], tangents: Sequence[AnyValue]) -> list[AnyValue]:
    """Tangents, cast to vary along all axes along which their values vary."""
    rows = zip(values, tangents, strict=True)
    return [_varying(t, varies_along(jax.typeof(x))) for x, t in rows]


def as_share(cotangent: AnyValue, graph: Graph, axes: Sequence[str]) -> AnyValue:
    """A cotangent that is a share of each device's own along `axes`."""
    whole = set(axes) - varies_along(jax.typeof(cotangent))
    if not whole:
        return cotangent
    return _varying(cotangent / math.prod(graph.mesh.shape[a] for a in whole), frozenset(axes))


def summed(cotangent: AnyValue, axes: Sequence[str], type_: Aval) -> AnyValue:
    """The cotangent of a value of a type, from shares along `axes`."""
    over = tuple(a for a in axes if a not in varies_along(type_))
    cotangent = _varying(cotangent, frozenset(axes))
    return lax.psum(cotangent, over) if over else cotangent


def _varying(x: AnyValue, axes: Axes) -> AnyValue:
    missing = tuple(sorted(axes - varies_along(jax.typeof(x))))
    return lax.pcast(x, missing, to="varying") if missing else x
