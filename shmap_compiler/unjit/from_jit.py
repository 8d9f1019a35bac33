"""unjit: the source of what XLA's partitioner made of a jitted program."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import jax

from shmap_compiler.base.descriptions import describe, function_name
from shmap_compiler.base.errors import TargetError, UnjitError
from shmap_compiler.base.specs import varying_axes
from shmap_compiler.base.untyped import Function, PyTree
from shmap_compiler.graph.graph import Graph
from shmap_compiler.stages.lower_call import lower_jitted
from shmap_compiler.targets import Target
from shmap_compiler.unjit import boundary, refusals
from shmap_compiler.unjit.body import NotConvertible, body_form
from shmap_compiler.unjit.conversion import ConversionFailed, shared
from shmap_compiler.unjit.derivative_rules import rules_of
from shmap_compiler.unjit.partitioned import (
    NotPartitioned,
    Partitioned,
    partition,
    partition_for,
)
from shmap_compiler.unjit.program import NoSpelling
from shmap_compiler.unjit.signature import identifier, parameter_names, read_sides
from shmap_compiler.unjit.source import Source, write_source
from shmap_compiler.unjit.unjitted import Unjitted
from shmap_compiler.unjit.wide import WideNumbers

Progress = Callable[[str], None]


def unjit(
    jitted: Function,
    *args: PyTree,
    target: str | Target | None = None,
    progress: Progress | None = None,
) -> Unjitted:
    """Brings what XLA's partitioner made of a jitted program back to source.

    The program is compiled as it is, for the devices of its shardings. What the partitioner made
    of it becomes a module in body form, and Python source of a `shard_map` function with the same
    collectives. Both are compared with the jitted program on `args` before anything is returned.

    Args:
      jitted: `jax.jit(f, in_shardings=..., out_shardings=...)`.
      *args: Its arguments: arrays, or `jax.ShapeDtypeStruct`s.
      target: What to partition the program for, as for `Lowered.compile`: "tpu:v5e:2x4" shows what
        the partitioner of TPUs does, without one. The shardings are on a mesh of as many devices
        here, such as virtual ones, on which the source is compared with the program.
      progress: Called with the name of each phase as it begins.

    Returns:
      An `Unjitted`.

    Raises:
      UnjitError: The program is not partitioned, has static arguments, holds what has no source, or
        its source does not compute the same.
      TargetError: The program does not fit the target.

    Examples:
      >>> rows, columns = NamedSharding(mesh, P("i")), NamedSharding(mesh, P(None, "i"))
      >>> transpose = jax.jit(lambda a: a.T, in_shardings=rows, out_shardings=rows)
      >>> "lax.all_to_all(" in unjit(transpose, jnp.ones((8, 8))).as_python()
      True
    """
    report = progress or (lambda phase: None)
    fun: Any = jitted if hasattr(jitted, "lower") else jax.jit(jitted)
    who = f"unjit of {describe(jitted)}"
    chosen = Target.parse(target, who) if isinstance(target, str) else target
    if chosen is not None and (missing := chosen.missing()):
        raise TargetError(who, missing)
    refusals.refuse_symbolic_shapes(who, args)
    report("compiling")
    lowered = lower_jitted(fun, args, who)
    refusals.refuse_unless_jitted(who, jitted, lowered)
    refusals.refuse_static_arguments(who, args, lowered)
    try:
        compiled, made = partition(lowered)
        refusals.refuse_callbacks(who, made.text)
        if chosen is not None:
            made = partition_for(chosen, fun, args, compiled, report)
        report("converting")
        unjitted = _unjitted(who, jitted, fun, lowered, compiled, chosen, made, args)
        report("comparing")
        validation = unjitted.validate()
    except NotPartitioned:
        raise refusals.one_device(who) from None
    except jax.errors.JaxRuntimeError as error:
        refused = refusals.missing_call(who, error, is_targets=chosen is not None)
        if refused is None:
            raise
        raise refused from None
    if not validation.holds:
        raise UnjitError(who, [validation.problem()])
    if validation.gradients:
        source = unjitted._source.with_hidden_rules(validation.gradients, validation.rules)
        return replace(unjitted, _source=source)
    return unjitted


def _unjitted(
    who: str,
    jitted: Function,
    fun: Function,
    lowered: jax.stages.Lowered,
    compiled: jax.stages.Compiled,
    target: Target | None,
    made: Partitioned,
    args: Sequence[PyTree],
) -> Unjitted:
    infos: Any = lowered.args_info
    leaves, tree = jax.tree.flatten(infos)
    shardings = tree.flatten_up_to(compiled.input_shardings)
    out_leaves, out_tree = jax.tree.flatten(lowered.out_info)
    out_shardings = out_tree.flatten_up_to(compiled.output_shardings)
    mesh = boundary.mesh_of([*shardings, *out_shardings])
    if mesh is None:
        raise refusals.no_mesh(who)
    refusals.refuse_processes(who, mesh)
    try:
        placed_in = [boundary.placement(shardings[k], leaves[k].shape, mesh) for k in made.kept]
        placed_out = [
            boundary.placement(s, leaf.shape, mesh)
            for s, leaf in zip(out_shardings, out_leaves, strict=True)
        ]
        code = shared().convert(made.proto)
        groups = made.groups(mesh.size)
        body = body_form(code, groups, boundary.passes_mesh(mesh), placed_in, placed_out)
    except boundary.NotOnMesh as error:
        needed = "one along whole axes of the mesh"
        raise refusals.not_convertible(who, f"the sharding {error}", needed) from None
    except (ConversionFailed, NotConvertible, ValueError) as error:
        needed = "operations and groups of devices that StableHLO and body form have"
        raise refusals.not_convertible(who, str(error), needed) from None
    names = parameter_names(fun, len(infos[0]))
    inputs = read_sides(infos[0], names)
    is_several = type(lowered.out_info) in (tuple, list) and len(lowered.out_info) > 0
    result = type(lowered.out_info) if is_several else None
    outputs = read_sides(
        lowered.out_info if is_several else [lowered.out_info],
        [f"result_{k}" for k in range(len(lowered.out_info))] if is_several else ["result"],
    )
    function = function_name(fun)
    name = identifier(function) if function != "<lambda>" else "program"
    program = describe(jitted)
    where = "" if target is None else f" for {target}"
    about = (f"{program} as XLA's partitioner divides it{where}, by shmap_compiler.unjit.",)

    def written(replicated: Mapping[int, tuple[str, ...]]) -> Source:
        return write_source(
            body, name, function, about, inputs, outputs, result, made.kept, replicated
        )

    def assembled(source: Source) -> Unjitted:
        return Unjitted(
            who=program,
            compiled=compiled,
            target=target,
            _jitted=fun,
            _body=body,
            _source=source,
            _inputs=inputs,
            _outputs=outputs,
            _out_types=tuple(out_leaves),
            _result=result,
            _kept=made.kept,
            _mesh=mesh,
            _args=tuple(args),
        )

    try:
        unjitted = assembled(written({}))
    except WideNumbers as error:
        raise refusals.wide_numbers(who, str(error)) from None
    except NoSpelling as error:
        needed = "collectives that jax.lax has, or operations of one device"
        raise refusals.not_convertible(who, str(error), needed) from None
    graph = unjitted._mapped.replace(check_vma=False).trace(*unjitted.given(args))
    replicated = _hidden_replication(graph)
    if replicated:
        unjitted = assembled(written(replicated))
    return replace(unjitted, _rules=rules_of(jax.make_jaxpr(fun)(*args), graph.jaxpr))


def _hidden_replication(graph: Graph) -> dict[int, tuple[str, ...]]:
    """The results that are equal along axes for a reason that cannot be inferred."""
    found = {}
    for k, (varying, spec) in enumerate(
        zip(graph.replication.outputs, graph.out_specs, strict=True)
    ):
        mentioned = varying_axes(spec)
        missing = tuple(a for a in graph.manual_axes if a in varying and a not in mentioned)
        if missing:
            found[k] = missing
    return found
