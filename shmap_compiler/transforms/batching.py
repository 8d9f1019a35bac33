"""vmap of a shard_mapped program: the Graph of the vmapped body."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend import core as jex_core
from jax.interpreters import batching
from jax.sharding import PartitionSpec

from shmap_compiler import specs
from shmap_compiler._compat import jaxprs_in, open_jaxpr
from shmap_compiler.errors import Problem, SpecError
from shmap_compiler.graph import Graph
from shmap_compiler.primitive import bind, shmap_p
from shmap_compiler.scopes import in_scopes_of_its_own
from shmap_compiler.tracer import retrace


def _batch(axis_data, args, dims, *, graph: Graph, mesh_witness):
    spmd_axes = _manual_axes_of_mapped_dimension(axis_data, graph)
    _check_spmd_axes(graph, spmd_axes)
    mapped_out = _mapped_outputs(graph, dims, axis_data.name)
    if not any(mapped_out):
        args = [x if d is None else jnp.take(x, 0, axis=d) for x, d in zip(args, dims, strict=True)]
        return bind(graph, *args), [None] * len(mapped_out)
    split = math.prod(graph.mesh.shape[a] for a in spmd_axes)
    batched = jax.vmap(
        in_scopes_of_its_own(graph.fun),
        in_axes=tuple(dims),
        out_axes=[0 if m else None for m in mapped_out],
        axis_size=axis_data.size // split,
        axis_name=axis_data.name,
        spmd_axis_name=axis_data.spmd_name,
    )
    traced = retrace(
        graph,
        batched,
        [_insert(s, d, spmd_axes) for s, d in zip(graph.in_specs, dims, strict=True)],
        [
            _insert(s, 0 if m else None, spmd_axes)
            for s, m in zip(graph.out_specs, mapped_out, strict=True)
        ],
        [jax.typeof(x) for x in args],
    )
    return bind(traced.graph, *traced.constants, *args), [0 if m else None for m in mapped_out]


def _manual_axes_of_mapped_dimension(axis_data: Any, graph: Graph) -> tuple[str, ...]:
    """The manual axes that split the mapped dimension: by spmd_axis_name, or by its type."""
    axes = _tuple(axis_data.spmd_name) or _tuple(axis_data.explicit_mesh_axis)
    return tuple(a for a in axes if a in graph.manual_axes)


def _insert(spec: PartitionSpec, dim: int | None, axes: tuple[str, ...]) -> PartitionSpec:
    """The spec of an array with a new dimension at `dim`, split over `axes`."""
    if dim is None:
        return spec
    entries = list(spec) + [None] * (dim - len(spec))
    entries.insert(dim, axes or None)
    return PartitionSpec(*entries)


def _mapped_outputs(graph: Graph, dims: list[int | None], axis_name: Any) -> list[bool]:
    """Which outputs depend on a mapped input, or on the position along the mapped axis."""
    jaxpr = graph.jaxpr.jaxpr
    mapped = {v for v, d in zip(jaxpr.invars, dims, strict=True) if d is not None}
    for eqn in jaxpr.eqns:
        if any(v in mapped for v in eqn.invars if isinstance(v, jex_core.Var)) or (
            isinstance(axis_name, str) and _asks_position(eqn, axis_name)
        ):
            mapped.update(eqn.outvars)
    return [isinstance(v, jex_core.Var) and v in mapped for v in jaxpr.outvars]


def _asks_position(eqn: Any, axis_name: str) -> bool:
    if eqn.primitive.name == "axis_index" and axis_name in _tuple(eqn.params.get("axis_name")):
        return True
    inner = (e for held in jaxprs_in(eqn.params) for e in open_jaxpr(held).eqns)
    return any(_asks_position(e, axis_name) for e in inner)


def _check_spmd_axes(graph: Graph, axes: tuple[str, ...]) -> None:
    used = {a for s in (*graph.in_specs, *graph.out_specs) for a in specs.mentioned(s)}
    clash = [a for a in axes if a in used]
    if clash:
        names = ", ".join(map(repr, clash))
        problem = Problem(
            f"vmap with spmd_axis_name={axes}",
            f"axis {names}, which in_specs or out_specs split arrays over already",
            "an axis that no spec of the mapped function mentions",
            f"take {names} out of the specs, or choose another spmd_axis_name",
        )
        raise SpecError(f"`{graph.name}`", [problem])


def _tuple(names: Any) -> tuple[Any, ...]:
    if names is None:
        return ()
    return tuple(names) if isinstance(names, (tuple, list)) else (names,)


batching.fancy_primitive_batchers[shmap_p] = _batch
