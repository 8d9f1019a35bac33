"""vmap of a shard_mapped program: the Graph of the vmapped body."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
from jax.extend.core import Primitive
from jax.interpreters import batching
from jax.sharding import PartitionSpec

from shmap_compiler.base import specs
from shmap_compiler.base.errors import Problem, SpecError
from shmap_compiler.base.jax_compat import reductions, with_reductions
from shmap_compiler.base.jax_compat.name_stacks import in_scopes_of_its_own
from shmap_compiler.base.untyped import AxisName, Parameter, Unchecked
from shmap_compiler.checks.derived_programs import check_derived
from shmap_compiler.checks.hangs import check_hangs
from shmap_compiler.collectives.vmapped_axes import SplitName
from shmap_compiler.graph.graph import Graph
from shmap_compiler.graph.nested_graphs import all_equations
from shmap_compiler.graph.primitive import bind, named_axes, shmap_p
from shmap_compiler.tracing.canonicalize_collectives import COLLECTIVE_NAMES
from shmap_compiler.tracing.trace import retrace
from shmap_compiler.transforms.derivatives_in_rules import refuse_in_batching_rules


def _batch(axis_data, args, dims, *, graph: Graph, witness):
    if all(d is None for d in dims) and not _mentions(graph, axis_data.name):
        return bind(graph, *args), [None] * len(graph.out_specs)
    mesh_axes = _manual_axes_of_mapped_dimension(axis_data, graph)
    _check_mesh_axes(graph, mesh_axes, axis_data)
    split = math.prod(graph.mesh.shape[a] for a in mesh_axes)
    others = tuple(a for a in _tuple(axis_data.spmd_name) if a not in mesh_axes)
    mapped_out: list[bool] = []

    body = in_scopes_of_its_own(graph.fun)

    def fun(*blocks):
        mapped_out.clear()
        return [leave_p.bind(x, mapped=mapped_out) for x in body(*blocks)]

    batched = jax.vmap(
        fun,
        in_axes=tuple(dims),
        out_axes=None,
        axis_size=axis_data.size // split,
        axis_name=SplitName(axis_data.name, mesh_axes) if mesh_axes else axis_data.name,
        # They are also part of JAX's cache keys, which must differ for other splits.
        spmd_axis_name=(*mesh_axes, *others) or None,
    )

    def out_specs(_):
        new_dims = [0 if m else None for m in mapped_out]
        return [_insert(s, d, mesh_axes) for s, d in zip(graph.out_specs, new_dims, strict=True)]

    traced = retrace(
        graph,
        batched,
        [_insert(s, d, mesh_axes) for s, d in zip(graph.in_specs, dims, strict=True)],
        out_specs,
        [jax.typeof(x) for x in args],
        equal_inputs=graph.inputs_are_equal,
    )
    refuse_in_batching_rules(graph, traced.graph.jaxpr)
    names = [f"args[{k}]" for k in range(len(args))]
    check_derived("vmap", graph, traced.graph, names)
    if mesh_axes:
        check_hangs(traced.graph, f"the vmap of `{graph.name}`", names)
    return bind(traced.graph, *traced.constants, *args), [0 if m else None for m in mapped_out]


leave_p = Primitive("shmap_leave_vmap")
"""Marks a result of a vmapped body. Its rule returns the stacked value as one that is not vmapped.

`jax.vmap` must be told beforehand which results are vmapped, which depends on the rules of all
primitives. The rule appends to the list `mapped` whether this result is.
"""


def _leave(axis_data, args, dims, *, mapped):
    (x,), (d,) = args, dims
    mapped.append(d is not None)
    return (x if d is None else jnp.moveaxis(x, d, 0)), None


batching.fancy_primitive_batchers[leave_p] = _leave


def _mentions(graph: Graph, axis_name: AxisName) -> bool:
    """Whether a collective of the program names the vmapped axis."""
    return any(
        axis_name in _tuple(eqn.params.get("axes", eqn.params.get("axis_name", ())))
        for eqn in all_equations(graph.jaxpr)
        if eqn.primitive.name in COLLECTIVE_NAMES
    )


def _manual_axes_of_mapped_dimension(axis_data: Parameter, graph: Graph) -> tuple[str, ...]:
    """The manual axes that split the mapped dimension: by spmd_axis_name, or by its type."""
    axes = _tuple(axis_data.spmd_name) or _tuple(axis_data.explicit_mesh_axis)
    return tuple(a for a in axes if a in graph.manual_axes)


def _insert(spec: PartitionSpec, dim: int | None, axes: tuple[str, ...]) -> PartitionSpec:
    """The spec of an array with a new dimension at `dim`, split over `axes`."""
    if dim is None:
        return spec
    entries = list(spec.partitions) + [None] * (dim - len(spec))
    entries.insert(dim, axes or None)
    return with_reductions(PartitionSpec(*entries), reductions(spec))


# ------------------------------------------------------------------------------------- mistakes


def _check_mesh_axes(graph: Graph, axes: tuple[str, ...], axis_data: Parameter) -> None:
    """The axes that split the mapped dimension are used for nothing else."""
    source = "spmd_axis_name" if axis_data.spmd_name else "a dimension split, by its type, over"
    where = f"vmap with {source}={axes}" if axis_data.spmd_name else f"vmap over {source} {axes}"
    split = math.prod(graph.mesh.shape[a] for a in axes)
    problems = []
    in_specs = {a for s in (*graph.in_specs, *graph.out_specs) for a in specs.own_cotangent_axes(s)}
    clash = [a for a in axes if a in in_specs]
    if clash:
        names = ", ".join(map(repr, clash))
        problems.append(
            Problem(
                where,
                f"axis {names}, which in_specs or out_specs split arrays over already",
                "an axis that no spec of the mapped function mentions",
                f"remove {names} from the specs, or choose another spmd_axis_name",
            )
        )
    clash = [a for a in axes if a in named_axes(graph)]
    if clash:
        names = ", ".join(map(repr, clash))
        problems.append(
            Problem(
                where,
                f"axis {names}, along which collectives of the mapped function communicate",
                "an axis that no collective of the mapped function names: devices along it work on"
                " different examples",
                f"remove {names} from the collectives, or choose another spmd_axis_name",
            )
        )
    if axis_data.size % split:
        problems.append(
            Problem(
                where,
                f"{axis_data.size} examples",
                f"a multiple of {split}, the number of devices along {', '.join(map(repr, axes))}",
                f"pad the examples to {-(-axis_data.size // split) * split}",
            )
        )
    if problems:
        raise SpecError(f"`{graph.name}`", problems)


def _tuple(names: Unchecked) -> tuple[AxisName, ...]:
    if names is None:
        return ()
    return tuple(names) if isinstance(names, (tuple, list)) else (names,)


batching.fancy_primitive_batchers[shmap_p] = _batch
