"""The one primitive that stands for a whole shard_mapped program in JAX's world."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import jax
import numpy as np
from jax import lax
from jax.extend.core import Primitive
from jax.sharding import NamedSharding, PartitionSpec

from shmap_compiler.base.jax_compat import (
    AnyMesh,
    print_equations_as,
    replace_jaxpr,
    tracks_varying_types,
    varies_along,
    varying_type,
    with_manual_axes,
)
from shmap_compiler.base.specs import show, show_mesh
from shmap_compiler.base.untyped import AnyValue, Eqn, Jaxpr, Parameter
from shmap_compiler.collectives import COLLECTIVES
from shmap_compiler.graph.graph import Graph
from shmap_compiler.graph.host_memory import moves_to_host
from shmap_compiler.graph.nested_graphs import all_equations
from shmap_compiler.replication.inference import infer_types

shmap_p = Primitive("shard_map")  # the name in profiles and in error messages of JAX
shmap_p.multiple_results = True


def bind(graph: Graph, *args: AnyValue) -> list[AnyValue]:
    """Applies a graph to full arrays."""
    return shmap_p.bind(*args, **parameters(graph))


def parameters(graph: Graph) -> dict[str, Parameter]:
    """The parameters of an equation that applies a graph."""
    # JAX's caches hold jaxprs among the parameters of an equation by weak references. This copy
    # belongs to one equation, so what they keep for the graph is freed with that equation.
    return {
        "graph": graph,
        "witness": replace_jaxpr(witness(graph.mesh, moves_to_host(graph.jaxpr))),
    }


def results_outside(graph: Graph, inputs: Sequence[frozenset[str]]) -> list[frozenset[str]]:
    """The axes of an enclosing shard_map along which results vary, by JAX's types.

    Args:
      inputs: those along which the full input arrays vary.
    """
    outside = frozenset(graph.outer_manual_axes)
    found = infer_types(graph.region, graph.jaxpr, inputs)
    return [axes & outside for axes in found.outputs]


def named_axes(graph: Graph) -> frozenset[str]:
    """The mesh axes that collectives of a program name."""
    collectives = (eqn for eqn in all_equations(graph.jaxpr) if eqn.primitive in COLLECTIVES)
    return frozenset(axis for eqn in collectives for axis in eqn.params["axes"])


@functools.lru_cache(maxsize=256)
def witness(mesh: AnyMesh, reaches_host: bool) -> Jaxpr:
    """A jaxpr that mentions the mesh, and the memory of the host, and computes nothing of use.

    jit takes its devices from sharding constraints, including those in jaxprs that are parameters
    of equations. Without this parameter it would not find the mesh of a graph. Nor would it find
    that a graph moves values to the memory of the host, and it would leave them where they are.
    """

    def mention(x):
        x = lax.with_sharding_constraint(x, NamedSharding(mesh, PartitionSpec()))
        return jax.device_put(x, jax.memory.Space.Host) if reaches_host else x

    return jax.make_jaxpr(mention)(jax.ShapeDtypeStruct((), np.float32))


def _shown(eqn: Eqn) -> dict[str, Parameter]:
    """The parameters that `print(jax.make_jaxpr(f)(x))` shows."""
    graph: Graph = eqn.params["graph"]
    return {
        "name": graph.name,
        "jaxpr": graph.jaxpr,
        "mesh": show_mesh(graph.mesh),
        "manual_axes": graph.manual_axes,
        "in_specs": f"[{', '.join(map(show, graph.in_specs))}]",
        "out_specs": f"[{', '.join(map(show, graph.out_specs))}]",
    }


print_equations_as(shmap_p, _shown)


def _type(*in_types, graph, witness):
    types = graph.out_types
    if graph.outer_manual_axes and tracks_varying_types():
        found = results_outside(graph, [varies_along(t) for t in in_types])
        outside = with_manual_axes(graph.mesh, graph.outer_manual_axes)
        types = [varying_type(t, outside, axes) for t, axes in zip(types, found, strict=True)]
    return types, graph.effects


shmap_p.def_effectful_abstract_eval(_type)
