"""Turns one call of a shard_mapped function into a traced Call."""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable
from typing import TYPE_CHECKING, Any

import jax

from shmap_compiler import keys, references, reuse, specs
from shmap_compiler._compat import described_as, tracing_context
from shmap_compiler.emission import lowerable
from shmap_compiler.errors import describe, function_name
from shmap_compiler.graph import Graph
from shmap_compiler.inputs import Inputs, is_hashable, read_inputs
from shmap_compiler.region import Region
from shmap_compiler.replication.check import check_outputs
from shmap_compiler.replication.hangs import check_hangs
from shmap_compiler.results import Results
from shmap_compiler.stages import Call
from shmap_compiler.tracer import trace

if TYPE_CHECKING:
    from shmap_compiler.api import ShardMapped


def trace_call(
    mapped: ShardMapped, region: Region, args: tuple[Any, ...]
) -> tuple[Call, list[Any]]:
    """(the traced call, those of the arguments that are inputs of its graph, after its constants).

    Calls with equal types are traced once: as in `jax.jit` the function is taken to be pure. One
    that closes over arrays is traced each time, as they may be others then.

    Raises:
      SpecError: mesh, specs, arguments and results do not fit together.
      BodyError: see `misuse` and `references`.
      ReplicationError, HangError: see `shard_map`.
    """
    who = describe(mapped.fun)
    inputs = read_inputs(who, region, mapped.in_specs, mapped.out_specs, args)
    references.refuse_arguments(who, inputs.dynamic)
    leaves, in_tree = jax.tree.flatten(args)
    key = _key(mapped, region, in_tree, inputs)
    call = mapped.calls.find(key)
    if call is None:
        call = traced = _trace(mapped, region, args, inputs)
        if key is not None and not traced.constants:
            call = mapped.calls.get(key, lambda: traced)
            reuse.keep(mapped)
    return call, [leaves[i.position] for i in inputs.dynamic]


def _key(mapped: ShardMapped, region: Region, in_tree: Any, inputs: Inputs) -> Hashable:
    """Equal for calls that are traced alike; None if it cannot be told."""
    values = [value for _, _, value in inputs.static]
    program = reuse.key(mapped.fun, mapped.parts)
    if program is None or not all(map(is_hashable, values)):
        return None
    types = tuple(i.type for i in inputs.dynamic)
    return program, region, in_tree, types, tuple(map(keys.key, values)), tracing_context()


def _trace(mapped: ShardMapped, region: Region, args: tuple[Any, ...], inputs: Inputs) -> Call:
    who = describe(mapped.fun)
    results = Results(who, region, mapped.out_specs)

    def flat_fun(*blocks):
        return results.record(mapped.fun(*inputs.rebuild(args, blocks)))

    traced = trace(
        described_as(flat_fun, mapped.fun, args, [i.position for i in inputs.dynamic]),
        name=function_name(mapped.fun),
        who=who,
        mesh=region.mesh,
        manual_axes=region.manual_axes,
        in_specs=[i.spec for i in inputs.dynamic],
        out_specs=results.checked_specs,
        in_types=[i.type for i in inputs.dynamic],
        check_vma=mapped.check_vma,
        check_hangs=mapped.check_hangs,
        user_fun=mapped.fun,
        has_reductions=specs.has_reductions((mapped.out_specs, [i.spec for i in inputs.dynamic])),
    )
    references.refuse_in_body(who, traced.graph)
    _check_replication(mapped, traced.graph, inputs, results)
    return Call(
        fun=mapped.fun,
        graph=traced.graph,
        constants=tuple(traced.constants),
        in_tree=jax.tree.structure(args),
        in_paths=tuple(i.path for i in inputs.dynamic),
        static=inputs.static,
        out_tree=results.tree,
    )


def _check_replication(mapped: ShardMapped, graph: Graph, inputs: Inputs, results: Results) -> None:
    who, in_paths = describe(mapped.fun), [i.path for i in inputs.dynamic]
    program = lowerable(graph)
    if program is not graph.jaxpr:
        graph = dataclasses.replace(graph, jaxpr=program)
    if mapped.check_hangs:
        check_hangs(graph, who, in_paths)
    if mapped.check_vma:
        check_outputs(graph, who, in_paths, results.paths)
