"""The static check: out_specs must not hide that a result varies (R17).

An output whose spec does not mention an axis is one array that all devices along the axis hold. If
their blocks differ, the array has no value: which block a reader sees depends on the reader.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from jax.sharding import PartitionSpec

from shmap_compiler.base import specs
from shmap_compiler.base.descriptions import show_axes, show_names
from shmap_compiler.base.errors import Problem, ReplicationError
from shmap_compiler.checks.provenance import (
    Provenance,
    ValueRef,
    format_provenance,
    provenance,
)
from shmap_compiler.graph.graph import Graph


def check_outputs(
    graph: Graph, who: str, in_paths: Sequence[str], out_paths: Sequence[tuple[str, str]]
) -> None:
    """Raises ReplicationError for every output that varies along an axis its spec leaves out.

    Args:
      who: the user's function.
      in_paths: the last inputs of the graph as the user names them: `args[0]`. Inputs before these
        are arrays that the function closes over.
      out_paths: each output and its spec as the user names them: `result['w']`, `out_specs['w']`.
    """
    names = ["an array closed over"] * (len(graph.in_specs) - len(in_paths)) + list(in_paths)
    problems = [
        problem
        for index, (path, spec_path) in enumerate(out_paths)
        for problem in _problems(graph, index, path, spec_path, names)
    ]
    if problems:
        raise ReplicationError(who, problems)


def _problems(
    graph: Graph, index: int, path: str, spec_path: str, names: Sequence[str]
) -> Iterator[Problem]:
    spec = graph.out_specs[index]
    mentioned = specs.varying_axes(spec)
    left_out = [axis for axis in graph.manual_axes if axis not in mentioned]
    if not left_out:
        return  # nothing to infer
    missing = [axis for axis in left_out if axis in graph.replication.outputs[index]]
    out = graph.jaxpr.jaxpr.outvars[index]
    if not missing or 0 in out.aval.shape:  # blocks without elements are equal
        return
    found = provenance(graph.replication, ValueRef((), out), missing[0])
    axes = show_axes(missing)
    lines = format_provenance(graph, found, names)
    yield Problem(
        f"{path} with {spec_path}={specs.show(spec)}",
        f"a result {specs.show_type(out.aval)} that varies along {axes}; "
        f"it last became varying along {missing[0]!r} at{lines}",
        f"a value that is replicated over {axes}, which {spec_path} does not mention; if it is, for"
        " a reason that cannot be inferred, use assume_replicated",
        _repair(graph, index, path, spec_path, missing, found),
    )


# ------------------------------------------------------------------------------------- repairs

# What a device does to its part of a sum before the parts are added up.
_SUMS = {"dot_general", "reduce_sum", "cumsum", "conv_general_dilated", "scatter-add"}
_EXTREMES = {"reduce_max": "pmax", "reduce_min": "pmin"}


def _repair(
    graph: Graph, index: int, path: str, spec_path: str, missing: list[str], found: Provenance
) -> str:
    """The two shortest ways to make the program right, the likelier one first."""
    axes = show_names(missing)
    keep = _keep(graph, index, path, spec_path, missing, found)
    made = [step.eqn.primitive.name for step in found.steps]
    for name in reversed(made if found.input is not None else []):
        if name in _EXTREMES:
            combined = f"jax.lax.{_EXTREMES[name]}({path}, {axes})"
            return f"combine the devices' results: {combined}; or {keep}"
        if name in _SUMS:
            total = f"jax.lax.psum({path}, {axes})"
            return f"add up the devices' parts: {total}, or pmean for their mean; or {keep}"
    equal = f"jax.lax.psum, pmean or all_gather over {axes}"
    return f"{keep}; or make the blocks equal with {equal}"


def _keep(
    graph: Graph, index: int, path: str, spec_path: str, missing: list[str], found: Provenance
) -> str:
    spec = graph.out_specs[index]
    rank = len(graph.body_out_types[index].shape)
    if rank == 0:
        return f"keep each device's own: return {path}[None] with {spec_path}={_spec([missing])}"
    dims = [list(axes) for axes in specs.dim_axes(spec, rank)]
    dims[_dimension(graph, dims, missing, found)] += missing
    return f"keep each device's own: {spec_path}={_spec(dims)}"


def _dimension(graph: Graph, dims: list[list[str]], missing: list[str], found: Provenance) -> int:
    """Where the result is split if it is split as the input it was made from; or a free place."""
    if found.input is not None:
        shape = graph.body_in_types[found.input].shape
        split = specs.dim_axes(graph.in_specs[found.input], len(shape))
        # An unreduced input is split nowhere.
        d = next((d for d, axes in enumerate(split) if missing[0] in axes), None)
        d = None if d is None else _followed(d, shape, found)
        if d is not None:
            return d
    return next((d for d, axes in enumerate(dims) if not axes), 0)


def _followed(d: int, shape: tuple[int, ...], found: Provenance) -> int | None:
    """Where dimension `d` is after all steps, as far as transposes alone move dimensions."""
    for step in found.steps:
        after = getattr(step.eqn.outvars[-1].aval, "shape", ())
        if step.eqn.primitive.name == "transpose":
            d = step.eqn.params["permutation"].index(d)
        elif after != shape:
            return None
        shape = after
    return d


def _spec(dims: Sequence[Sequence[str]]) -> str:
    entries: list[Any] = [None if not a else a[0] if len(a) == 1 else tuple(a) for a in dims]
    while entries and entries[-1] is None:
        entries.pop()
    return specs.show(PartitionSpec(*entries))
