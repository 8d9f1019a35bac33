"""Turns one call of a shard_mapped function into a TracedCall, and applies it."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Hashable, Sequence

import jax
from jax.core import ShapedArray
from jax.sharding import AxisType, PartitionSpec

from shmap_compiler.base import specs
from shmap_compiler.base.descriptions import describe, function_name, runs_traced_program
from shmap_compiler.base.jax_compat import axis_types, described_as, tracing_context
from shmap_compiler.base.meshes import ManualRegion
from shmap_compiler.base.untyped import AnyValue, Aval, Function, PyTree, TreeDef
from shmap_compiler.base.values import is_hashable
from shmap_compiler.checks.hangs import check_hangs
from shmap_compiler.checks.replicated_outputs import check_outputs
from shmap_compiler.frontend import ref_arguments, trace_cache
from shmap_compiler.frontend.arguments import Inputs, read_inputs
from shmap_compiler.frontend.closed_over import ClosedOver, closed_over, without_unused
from shmap_compiler.frontend.mapped import MappedFunction
from shmap_compiler.frontend.results import Results
from shmap_compiler.frontend.variables import values_key
from shmap_compiler.graph import structural_keys
from shmap_compiler.graph.graph import Graph
from shmap_compiler.graph.primitive import bind
from shmap_compiler.lowering.emit_module import lowerable
from shmap_compiler.records.traced_call import TracedCall
from shmap_compiler.tracing.trace import trace


def trace_call(
    mapped: MappedFunction, region: ManualRegion, args: tuple[PyTree, ...]
) -> tuple[TracedCall, list[AnyValue]]:
    """(the traced call, those of the arguments that are inputs of its graph, after its constants).

    Calls with equal types are traced once: as in `jax.jit` the function is taken to be pure. One
    that closes over arrays is traced each time, as they may be others then.

    Raises:
      SpecError: mesh, specs, arguments and results do not fit together.
      BodyError: the function uses a collective or a reference wrongly.
      ReplicationError, HangError: see `shard_map`.
    """
    who = describe(mapped.fun)
    inputs = read_inputs(who, region, mapped.in_specs, mapped.out_specs, args)
    leaves, in_tree = jax.tree.flatten(args)
    ref_arguments.refuse_aliases(who, _arguments(args, inputs))
    program = _program_key(mapped)
    key = None if program is None else _key(mapped.fun, program, region, in_tree, inputs)
    call = mapped.calls.find(key)
    if call is None:
        call = traced = _trace(who, mapped, region, args, inputs)
        program = trace_cache.unchanged(mapped, program)
        if key is not None and program is not None and not traced.constants:
            call = mapped.calls.get(key, lambda: traced)
            trace_cache.keep(mapped, program)
        elif not runs_traced_program(mapped.fun):
            trace_cache.note(mapped, program)
    return call, [leaves[i.position] for i in inputs.dynamic]


def apply_call(call: TracedCall, inputs: Sequence[AnyValue]) -> Sequence[AnyValue]:
    """The results of a traced call; references are read before and written after."""
    run = functools.partial(bind, call.graph)
    operands = (*call.constants, *inputs)
    if call.references:
        return ref_arguments.apply(run, operands, call.written)
    return run(*operands)


def _program_key(mapped: MappedFunction) -> trace_cache.Key | None:
    """Equal for what computes the same; None if that is unknown, or if there is one call."""
    if runs_traced_program(mapped.fun):  # made for this call, by another front end
        return None
    return trace_cache.key(mapped.fun, mapped.options)


def _key(
    fun: Function, program: Hashable, region: ManualRegion, in_tree: TreeDef, inputs: Inputs
) -> Hashable:
    """Equal for calls of one program that are traced alike; None if that is unknown."""
    values = [value for _, _, value in inputs.static]
    static = values_key(fun, values)
    metadata = structural_keys.metadata(in_tree)
    read = values_key(fun, metadata)  # None if equal metadata have to do, as in `jax.jit`
    if static is None or not all(map(is_hashable, [*values, *metadata])):
        return None
    distinct = {id(i.type): i.type for i in inputs.dynamic}  # of hundreds few differ
    keys = {each: _type_key(type_) for each, type_ in distinct.items()}
    types = tuple((keys[id(i.type)], i.is_ref) for i in inputs.dynamic)
    return structural_keys.Key(
        program,
        region,
        in_tree,
        types,
        (static, read),
        tuple(map(structural_keys.key, [*values, *metadata])),
        tracing_context(),
    )


def _type_key(type_: Aval) -> Hashable:
    """Equal for types that are traced alike: a mesh of Auto axes in a type says nothing."""
    sharding = getattr(type_, "sharding", None)
    if not isinstance(type_, ShapedArray) or sharding is None:
        return type_
    if any(kind is not AxisType.Auto for kind in axis_types(sharding.mesh).values()):
        return type_
    return type_.shape, type_.dtype, type_.weak_type, type_.memory_space


def _trace(
    who: str,
    mapped: MappedFunction,
    region: ManualRegion,
    args: tuple[PyTree, ...],
    inputs: Inputs,
) -> TracedCall:
    results = Results(who, region, mapped.out_specs)

    refs = [k for k, i in enumerate(inputs.dynamic) if i.is_ref]
    is_users = not runs_traced_program(mapped.fun)
    closed = closed_over(mapped.fun, region) if is_users else ClosedOver(mapped.fun)
    more = len(closed.values)

    def flat_fun(*inputs_of_body: AnyValue) -> list[AnyValue]:
        fun, blocks = closed.with_blocks(inputs_of_body[:more]), list(inputs_of_body[more:])
        for k in refs:
            blocks[k] = jax.new_ref(blocks[k])
        leaves = results.record(fun(*inputs.rebuild(args, blocks)))
        return [*leaves, *(jax.freeze(blocks[k]) for k in refs)]

    def out_specs(types: Sequence[Aval]) -> list[PartitionSpec]:
        count = len(types) - len(refs)
        return [*results.checked_specs(types[:count]), *(inputs.dynamic[k].spec for k in refs)]

    traced = trace(
        described_as(flat_fun, mapped.fun, len(args), [i.path for i in inputs.dynamic], more),
        name=function_name(mapped.fun),
        who=who,
        mesh=region.mesh,
        manual_axes=region.manual_axes,
        in_specs=[*[PartitionSpec()] * more, *(i.spec for i in inputs.dynamic)],
        out_specs=out_specs,
        in_types=[*map(jax.typeof, closed.values), *(i.type for i in inputs.dynamic)],
        check_vma=mapped.check_vma,
        hang_check=mapped.hang_check,
        user_fun=inputs.scanned(mapped.fun) if is_users else None,
        keeps_types=is_users and mapped.check_vma,
        has_reductions=specs.has_reductions((mapped.out_specs, [i.spec for i in inputs.dynamic])),
    )
    first = len(traced.constants)
    graph, used = without_unused(traced.graph, range(first, first + more))
    constants = *traced.constants, *(closed.values[k - first] for k in used)
    before, count = len(constants), len(results.paths)
    graph, written = ref_arguments.without_unwritten(graph, count, [before + k for k in refs])
    written += traced.written
    _check_program(who, mapped, graph, inputs, results, written)
    closed_refs = [k for k, x in enumerate(constants) if ref_arguments.is_reference(x)]
    ref_arguments.refuse_aliases(who, [*_arguments(args, inputs), *_closed_refs(constants)])
    return TracedCall(
        fun=mapped.fun,
        graph=graph,
        constants=constants,
        in_tree=jax.tree.structure(args),
        in_paths=tuple(i.path for i in inputs.dynamic),
        static=inputs.static,
        out_tree=results.tree,
        references=(*closed_refs, *(before + k for k in refs)),
        written=tuple(written),
    )


def _arguments(args: tuple[PyTree, ...], inputs: Inputs) -> list[tuple[str, AnyValue]]:
    leaves = jax.tree.leaves(args)
    return [(i.path, leaves[i.position]) for i in inputs.dynamic if i.is_ref]


def _closed_refs(constants: Sequence[AnyValue]) -> list[tuple[str, AnyValue]]:
    refs = filter(ref_arguments.is_reference, constants)
    return [(f"reference {k} that the function closes over", ref) for k, ref in enumerate(refs)]


def _check_program(
    who: str,
    mapped: MappedFunction,
    graph: Graph,
    inputs: Inputs,
    results: Results,
    written: Sequence[int],
) -> None:
    in_paths = [i.path for i in inputs.dynamic]
    program = lowerable(graph)
    if program is not graph.jaxpr:
        graph = dataclasses.replace(graph, jaxpr=program)
    check_hangs(graph, who, in_paths)
    if mapped.check_vma:
        before = len(graph.in_specs) - len(in_paths)
        after = [
            (f"{in_paths[k - before]} after the call", "its spec")
            if k >= before
            else ("a reference that the function closes over and writes", "its spec")
            for k in written
        ]
        check_outputs(graph, who, in_paths, [*results.paths, *after])
