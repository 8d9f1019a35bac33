"""Traces a user's per-device function into a Graph.

The function is traced by JAX itself, on the types of one device's blocks, with the mesh's manual
axes in scope. What JAX records is then normalised (`normalize`) and closed: arrays and outer
tracers that the function closes over become inputs, equal on all devices.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import jax
from jax.extend import source_info_util
from jax.sharding import AbstractMesh, PartitionSpec

from shmap_compiler.base import specs
from shmap_compiler.base.errors import BodyError, Problem, ShmapError
from shmap_compiler.base.jax_compat import (
    AnyMesh,
    closes_over_explicit,
    constants_to_inputs,
    described_alike,
    enclosing_manual_axes,
    is_of_other_mesh,
    is_ref,
    memory_space,
    once_per_type,
    reductions,
    trace_with_axes,
    tracks_varying_types,
    type_on_mesh,
    type_reductions,
    type_split,
    varying_type,
    varying_types,
    with_manual_axes,
)
from shmap_compiler.base.source_lines import user_line
from shmap_compiler.base.untyped import AnyValue, Aval, Function, Jaxpr
from shmap_compiler.collectives import collective_errors, kept_types, vmapped_axes
from shmap_compiler.graph.graph import Graph, HangCheck
from shmap_compiler.tracing.canonicalize_collectives import normalize
from shmap_compiler.tracing.futures import without_futures
from shmap_compiler.tracing.ref_discharge import discharge
from shmap_compiler.tracing.regions_of_jax import with_graphs_of_regions
from shmap_compiler.tracing.vma_erasure import trace_forward_rules, trace_with_types
from shmap_compiler.tracing.vma_typing import trace_by_need, trace_unreduced, varies_outside

source_info_util.register_exclusion(str(Path(__file__).parents[1]))


_CLOSED_OVER = Problem(
    "a value of the enclosing shard_mapped function, which this one closes over",
    "a value of a mesh with other manual axes, which JAX cannot use here",
    "values of this function's own",
    "pass it as an argument, with jax.sharding.PartitionSpec() as its spec",
)


def on_explicit_axes(error: NotImplementedError) -> Problem:
    """What is wrong with an array for which `closes_over_explicit(error)`."""
    type_ = str(error).rpartition("Got input with shape ")[2].partition("(")[0]
    return Problem(
        f"an array from outside of the function, used at {user_line(error)}",
        f"{type_ or 'an array'} on axes of type Explicit",
        "an argument; or, in shard_map, an array that is replicated over the manual axes, in a "
        "variable of an enclosing function or of the module",
        "pass it as an argument; in shard_map, you can also replicate it with jax.sharding.reshard "
        "and assign it to a variable first",
    )


@dataclass(frozen=True)
class Traced:
    """A Graph and what its leading inputs are: values the function closed over.

    Attributes:
      written: which of the constants are references that the function writes. The last results of
        the Graph are their last values.
    """

    graph: Graph
    constants: list[AnyValue]
    written: tuple[int, ...] = ()


def trace(
    fun: Callable[..., Sequence[AnyValue]],
    *,
    name: str,
    who: str,
    mesh: AnyMesh,
    manual_axes: Sequence[str],
    in_specs: Sequence[PartitionSpec],
    out_specs: Sequence[PartitionSpec] | Callable[[Sequence[Aval]], Sequence[PartitionSpec]],
    in_types: Sequence[Aval],
    outer_manual_axes: Sequence[str] | None = None,
    check_vma: bool = True,
    hang_check: HangCheck = HangCheck.ALL,
    user_fun: Function | None = None,
    finish: Callable[[Jaxpr], Jaxpr] | None = None,
    has_reductions: bool = False,
    equal_inputs: Sequence[bool] = (),
    keeps_types: bool = False,
) -> Traced:
    """Graph of `fun`, a function from flat blocks to flat blocks.

    Args:
      name, who: the user's function, for printing and for errors.
      in_types: types of the full input arrays.
      out_specs: the specs, or a function from the traced output types to them.
      outer_manual_axes: axes already manual; by default those of the enclosing shard_map.
      check_vma, hang_check, equal_inputs: see `Graph`.
      user_fun: the user's function that `fun` calls, with its static arguments, unless `fun` is
        made from a Graph.
      finish: rewrites the traced jaxpr.
      has_reductions: whether specs have unreduced or reduced axes. What a program may do with such
        values is up to JAX's types.
      keeps_types: see `collectives.kept_types`.
    """
    manual = tuple(a for a in mesh.axis_names if a in manual_axes)
    if outer_manual_axes is None:
        outer_manual_axes = enclosing_manual_axes(mesh)
    outer = tuple(a for a in outer_manual_axes if a not in manual)
    body_mesh = with_manual_axes(mesh, (*manual, *outer))
    block_types = _block_types(in_types, in_specs, body_mesh)

    def traced(*blocks):
        try:
            with vmapped_axes.body(who), kept_types.kept(keeps_types):
                return fun(*blocks)
        except ShmapError:
            raise
        except Exception as error:
            refusal = collective_errors.refused(
                error, who, {a: mesh.shape[a] for a in (*manual, *outer)}
            )
            if refusal is None:
                raise
            raise refusal from error

    described_alike(traced, fun)

    def untyped():
        with varying_types(False):  # which may be on for an enclosing function
            jaxpr = trace_with_axes(traced, body_mesh, manual, block_types)
        return without_futures(jaxpr)

    def typed():
        types = [
            varying_type(
                block, body_mesh, (*specs.mentioned(s), *varies_outside(t, outer)), reductions(s)
            )
            for block, t, s in zip(block_types, in_types, in_specs, strict=True)
        ]
        # By the types of its results, JAX differentiates an enclosing function.
        keeps = bool(outer) and tracks_varying_types()
        return trace_with_types(traced, body_mesh, manual, types, keeps_results=keeps)

    def forward_rules(jaxpr: Jaxpr) -> None:
        trace_forward_rules(jaxpr, body_mesh, manual)

    try:
        if user_fun is None or not check_vma:
            jaxpr = untyped()
        elif has_reductions:
            jaxpr = trace_unreduced(typed, who)
        else:
            jaxpr = trace_by_need(untyped, typed, user_fun, who, forward=forward_rules)
    except NotImplementedError as error:
        if not closes_over_explicit(error):
            raise
        raise BodyError(who, [on_explicit_axes(error)]) from error
    except ValueError as error:
        if not is_of_other_mesh(error):
            raise
        raise BodyError(who, [_CLOSED_OVER]) from error
    if finish is not None:
        jaxpr = finish(jaxpr)
    checks = hang_check is not HangCheck.NONE
    jaxpr = with_graphs_of_regions(jaxpr, mesh, (*manual, *outer), who, check_hangs=checks)
    jaxpr, constants = constants_to_inputs(normalize(jaxpr, body_mesh, (*manual, *outer), who))
    jaxpr, written = discharge(jaxpr, body_mesh, who)
    results = jaxpr.out_avals[: len(jaxpr.out_avals) - len(written)]
    graph = Graph(
        name=name,
        jaxpr=jaxpr,
        mesh=mesh,
        manual_axes=manual,
        outer_manual_axes=outer,
        in_specs=(PartitionSpec(),) * len(constants) + tuple(in_specs),
        out_specs=(
            *(out_specs(results) if callable(out_specs) else out_specs),
            *[PartitionSpec()] * len(written),
        ),
        check_vma=check_vma,
        hang_check=hang_check,
        equal_inputs=(*[False] * len(constants), *equal_inputs) if any(equal_inputs) else (),
    )
    return Traced(graph, constants, tuple(written))


def _block_types(
    full: Sequence[Aval], in_specs: Sequence[PartitionSpec], body_mesh: AbstractMesh
) -> list[Aval]:
    """The types of blocks, which over axes that stay Explicit are split as the full arrays are."""
    return [_block_type(t, spec, body_mesh) for t, spec in zip(full, in_specs, strict=True)]


@once_per_type
def _block_type(full: Aval, spec: PartitionSpec, mesh: AbstractMesh) -> Aval:
    shape = specs.shard_shape(full.shape, spec, mesh)
    kept = full.dtype, full.weak_type, type_reductions(full), memory_space(full)
    return type_on_mesh(mesh, type_split(full), shape, *kept)


def retrace(
    graph: Graph,
    fun: Callable[..., Sequence[AnyValue]],
    in_specs: Sequence[PartitionSpec],
    out_specs: Sequence[PartitionSpec] | Callable[[Sequence[Aval]], Sequence[PartitionSpec]],
    in_types: Sequence[Aval],
    finish: Callable[[Jaxpr], Jaxpr] | None = None,
    equal_inputs: Sequence[bool] = (),
) -> Traced:
    """`fun`, made from the program of `graph` by a transformation, on the same mesh.

    Its constants are those of derivative rules of the user's, which JAX traces only now.

    Args:
      finish: rewrites the traced jaxpr.
      equal_inputs: see `Graph`.
    """
    traced = trace(
        fun,
        name=graph.name,
        who=f"`{graph.name}`",
        mesh=graph.mesh,
        manual_axes=graph.manual_axes,
        in_specs=in_specs,
        out_specs=out_specs,
        in_types=in_types,
        outer_manual_axes=graph.outer_manual_axes,
        check_vma=graph.check_vma,
        hang_check=graph.hang_check,
        finish=finish,
        equal_inputs=equal_inputs,
        keeps_types=graph.check_vma,
    )
    if traced.written:
        raise BodyError(f"`{graph.name}`", [_RULE_WRITES])
    return Traced(traced.graph, [x[...] if is_ref(jax.typeof(x)) else x for x in traced.constants])


_RULE_WRITES = Problem(
    "the derivative or batching rule of a function that it calls",
    "a write to a mutable reference that the rule closes over",
    "a rule that reads references only: it runs as a part of the derivative's own program",
    "return the value as a result, or take the derivative inside shard_map",
)
