"""Derivatives of a shard_mapped program: two Graphs, one before the other.

The forward Graph computes the results and what the derivative needs later (the residuals); the
linear Graph maps residuals and tangents to tangents. Reverse mode transposes the linear Graph.
"""

from __future__ import annotations

import math
from collections.abc import Sequence, Set
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend import core as jex_core
from jax.interpreters import ad
from jax.sharding import PartitionSpec

from shmap_compiler import specs
from shmap_compiler.collectives import psum
from shmap_compiler.graph import Graph
from shmap_compiler.primitive import bind, shmap_p
from shmap_compiler.tracer import retrace
from shmap_compiler.transforms.cotangent_types import with_cotangent_types
from shmap_compiler.transforms.residuals import Residuals


def _jvp(primals, tangents, *, graph: Graph, mesh_witness):
    moves = [_is_nonzero(t) for t in tangents]
    if not any(moves):
        outs = bind(graph, *primals)
        return outs, [_zero(x) for x in outs]
    residuals = Residuals()

    def forward(*blocks):
        moving = [x for x, m in zip(blocks, moves, strict=True) if m]

        def of_moving(*moving):
            rest = iter(moving)
            return graph.fun(*[next(rest) if m else x for x, m in zip(blocks, moves, strict=True)])

        outs, linear = jax.linearize(of_moving, *moving)
        return [*outs, *residuals.save(linear, blocks, outs)]

    count = len(graph.out_specs)
    forward_graph = retrace(
        graph,
        forward,
        graph.in_specs,
        lambda results: [*graph.out_specs, *[PartitionSpec()] * (len(results) - count)],
        [jax.typeof(x) for x in primals],
    )
    forward_graph = residuals.with_specs(forward_graph, count)
    results = bind(forward_graph, *primals)
    outs = results[:count]
    saved = residuals.values(primals, results)
    saved_specs = residuals.all_specs(forward_graph)
    smooth = [_has_tangent(x) for x in outs]

    def tangent_map(*inputs):
        linear = residuals.restore(inputs[: len(saved)])
        out_tangents = linear(*inputs[len(saved) :])
        return [t for t, s in zip(out_tangents, smooth, strict=True) if s]

    moving_tangents = [t for t, m in zip(tangents, moves, strict=True) if m]
    linear_graph = retrace(
        graph,
        tangent_map,
        [*saved_specs, *[s for s, m in zip(graph.in_specs, moves, strict=True) if m]],
        [s for s, k in zip(graph.out_specs, smooth, strict=True) if k],
        [jax.typeof(x) for x in (*saved, *moving_tangents)],
    )
    out_tangents = iter(bind(linear_graph, *saved, *moving_tangents))
    return outs, [next(out_tangents) if s else _zero(x) for x, s in zip(outs, smooth, strict=True)]


def _transpose(cotangents, *args, graph: Graph, mesh_witness):
    linear = [ad.is_undefined_primal(a) for a in args]
    known = [a for a, is_linear in zip(args, linear, strict=True) if not is_linear]
    linear_types = [t for t, m in zip(graph.body_in_types, linear, strict=True) if m]
    linear_specs = [s for s, m in zip(graph.in_specs, linear, strict=True) if m]
    known_specs = [s for s, m in zip(graph.in_specs, linear, strict=True) if not m]
    cotangents = [ad.instantiate_zeros(ct) for ct in cotangents]

    program, out_axes, in_axes = _cotangent_types(graph, linear)
    run = jex_core.jaxpr_as_fun(program)

    def backward(*blocks):
        known_blocks, cts = blocks[: len(known)], blocks[len(known) :]

        def of_linear(*linear_blocks):
            rest_linear, rest_known = iter(linear_blocks), iter(known_blocks)
            return run(*[next(rest_linear if m else rest_known) for m in linear])

        shares = [
            _share(ct, axes - set(specs.mentioned(s)), graph)
            for ct, axes, s in zip(cts, out_axes, graph.out_specs, strict=True)
        ]
        results = jax.linear_transpose(of_linear, *linear_types)(shares)
        return [
            _sum(x, axes - set(specs.mentioned(s)), graph)
            for x, axes, s in zip(results, in_axes, linear_specs, strict=True)
        ]

    transposed = retrace(
        graph,
        backward,
        [*known_specs, *graph.out_specs],
        linear_specs,
        [jax.typeof(x) for x in (*known, *cotangents)],
    )
    results = iter(bind(transposed, *known, *cotangents))
    return [next(results) if is_linear else None for is_linear in linear]


def _cotangent_types(
    graph: Graph, linear: Sequence[bool]
) -> tuple[Any, list[frozenset[str]], list[frozenset[str]]]:
    """(the program to transpose; the axes along which the cotangent of each output, and of each
    linear input, is a share of each device's own).

    With check_vma every value has its own axes. Without, all have all axes: what a device computes
    is taken to be its own, whether others compute the same or not.
    """
    if not graph.check_vma:
        everything = frozenset(graph.manual_axes)
        return graph.jaxpr, [everything] * len(graph.out_specs), [everything] * sum(linear)
    program, out_axes = with_cotangent_types(graph, linear)
    linear_specs = [s for s, m in zip(graph.in_specs, linear, strict=True) if m]
    return program, out_axes, [frozenset(specs.mentioned(s)) for s in linear_specs]


# A result that its spec replicates over n devices is one array. Where each device's copy has a
# cotangent of its own, each is responsible for 1/n; and an argument replicated over n devices owes
# what its n copies owe.


def _share(cotangent: Any, replicating: Set[str], graph: Graph) -> Any:
    replicas = math.prod(graph.mesh.shape[a] for a in replicating)
    return cotangent / replicas if replicas > 1 else cotangent


def _sum(cotangent: Any, replicating: Set[str], graph: Graph) -> Any:
    axes = tuple(a for a in graph.mesh.axis_names if a in replicating)
    size = math.prod(graph.mesh.shape[a] for a in axes)
    return psum(cotangent, axes=axes, groups=None, size=size) if axes else cotangent


def _is_nonzero(tangent: Any) -> bool:
    return type(tangent) is not ad.Zero and jax.typeof(tangent).dtype != jax.dtypes.float0


def _has_tangent(x: Any) -> bool:
    return jnp.issubdtype(jax.typeof(x).dtype, jnp.inexact)


def _zero(primal: Any) -> ad.Zero:
    return ad.Zero(jax.typeof(primal).to_tangent_aval())


ad.primitive_jvps[shmap_p] = _jvp
ad.primitive_transposes[shmap_p] = _transpose
