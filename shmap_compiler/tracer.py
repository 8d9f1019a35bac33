"""Traces a user's per-device function into a Graph.

The function is traced by JAX itself, on the types of one device's blocks, with the mesh's manual
axes in scope. What JAX records is then normalised (`normalize`) and closed: arrays and outer
tracers that the function closes over become inputs, equal on all devices.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
from jax.extend import source_info_util
from jax.sharding import PartitionSpec

from shmap_compiler import specs
from shmap_compiler._compat import (
    AnyMesh,
    constants_to_inputs,
    enclosing_manual_axes,
    trace_with_axes,
    with_manual_axes,
)
from shmap_compiler.errors import BodyError, Problem, ShmapError, UnknownAxisError
from shmap_compiler.graph import Graph
from shmap_compiler.normalize import normalize

source_info_util.register_exclusion(__file__.rpartition("tracer.py")[0])


@dataclass(frozen=True)
class Traced:
    """A Graph and what its leading inputs are: values the function closed over."""

    graph: Graph
    constants: list[Any]


def trace(
    fun: Callable[..., Sequence[Any]],
    *,
    name: str,
    who: str,
    mesh: AnyMesh,
    manual_axes: Sequence[str],
    in_specs: Sequence[PartitionSpec],
    out_specs: Sequence[PartitionSpec] | Callable[[Sequence[Any]], Sequence[PartitionSpec]],
    in_types: Sequence[Any],
) -> Traced:
    """Graph of `fun`, a function from flat blocks to flat blocks.

    Args:
      name, who: the user's function, for printing and for errors.
      in_types: types of the full input arrays.
      out_specs: the specs, or a function from the traced output types to them.
    """
    manual = tuple(a for a in mesh.axis_names if a in manual_axes)
    outer = tuple(a for a in enclosing_manual_axes(mesh) if a not in manual)
    body_mesh = with_manual_axes(mesh, (*manual, *outer))
    block_types = [
        jax.ShapeDtypeStruct(
            specs.shard_shape(t.shape, s, mesh), t.dtype, weak_type=getattr(t, "weak_type", False)
        )
        for t, s in zip(in_types, in_specs, strict=True)
    ]

    def traced(*blocks):
        try:
            return fun(*blocks)
        except ShmapError:
            raise
        except (ValueError, TypeError, NameError) as error:
            raise _translated(error, who, body_mesh, manual) from error

    jaxpr = trace_with_axes(traced, body_mesh, manual, block_types)
    jaxpr, constants = constants_to_inputs(normalize(jaxpr, body_mesh, (*manual, *outer), who))
    results = jaxpr.out_avals
    graph = Graph(
        name=name,
        jaxpr=jaxpr,
        mesh=mesh,
        manual_axes=manual,
        outer_manual_axes=outer,
        in_specs=(PartitionSpec(),) * len(constants) + tuple(in_specs),
        out_specs=tuple(out_specs(results) if callable(out_specs) else out_specs),
    )
    return Traced(graph, constants)


# ------------------------------------------------------------ errors of JAX's own collectives


def _translated(error: Exception, who: str, mesh: Any, manual: Sequence[str]) -> Exception:
    """What JAX says of a collective it refuses, in our form; other errors as they are."""
    frames = traceback.extract_tb(error.__traceback__)
    in_jax = [k for k, f in enumerate(frames) if f.filename.endswith(("lax/parallel.py",))]
    unbound = isinstance(error, NameError) and "axis name" in str(error)
    if not in_jax and not unbound:
        return error
    user = [f for f in frames[: in_jax[0] if in_jax else None] if "/jax/_src/" not in f.filename]
    place = f"{user[-1].filename}:{user[-1].lineno}, `{user[-1].line}`" if user else "its body"
    axes = ", ".join(f"{a!r} of size {mesh.shape[a]}" for a in manual) or "none"
    if unbound:
        problem = Problem(
            f"the collective at {place}",
            str(error),
            f"a manual axis of the mesh: {axes}",
            "use one of these names, or add the axis to the mesh (or to axis_names)",
        )
        return UnknownAxisError(who, [problem])
    problem = Problem(
        f"the collective at {place}",
        str(error),
        f"operands and axes that fit; manual axes here: {axes}",
        "make the dimension a multiple of the group size, or choose another dimension or axis",
    )
    return BodyError(who, [problem])
