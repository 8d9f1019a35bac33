"""Turns one call of a shard_mapped function into a traced Call."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax

from shmap_compiler import references
from shmap_compiler.errors import describe, function_name
from shmap_compiler.graph import Graph
from shmap_compiler.inputs import Inputs, read_inputs
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

    Raises:
      SpecError: mesh, specs, arguments and results do not fit together.
      BodyError: see `misuse` and `references`.
      ReplicationError, HangError: see `shard_map`.
    """
    who = describe(mapped.fun)
    inputs = read_inputs(who, region, mapped.in_specs, mapped.out_specs, args)
    references.refuse_arguments(who, inputs.dynamic)
    leaves, in_tree = jax.tree.flatten(args)
    results = Results(who, region, mapped.out_specs)

    def flat_fun(*blocks):
        return results.record(mapped.fun(*inputs.rebuild(args, blocks)))

    traced = trace(
        flat_fun,
        name=function_name(mapped.fun),
        who=who,
        mesh=region.mesh,
        manual_axes=region.manual_axes,
        in_specs=[i.spec for i in inputs.dynamic],
        out_specs=results.checked_specs,
        in_types=[i.type for i in inputs.dynamic],
        check_vma=mapped.check_vma,
    )
    references.refuse_in_body(who, traced.graph)
    _check_replication(mapped, traced.graph, inputs, results)
    call = Call(
        fun=mapped.fun,
        graph=traced.graph,
        constants=tuple(traced.constants),
        in_tree=in_tree,
        in_paths=tuple(i.path for i in inputs.dynamic),
        static=inputs.static,
        out_tree=results.tree,
    )
    return call, [leaves[i.position] for i in inputs.dynamic]


def _check_replication(mapped: ShardMapped, graph: Graph, inputs: Inputs, results: Results) -> None:
    who, in_paths = describe(mapped.fun), [i.path for i in inputs.dynamic]
    if mapped.check_hangs:
        check_hangs(graph, who, in_paths)
    if mapped.check_vma:
        check_outputs(graph, who, in_paths, results.paths)
