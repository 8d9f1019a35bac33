"""The one primitive that stands for a whole shard_mapped program in JAX's world."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass

import jax
import numpy as np
import shmap_passes
from jax import lax
from jax.extend.core import Primitive
from jax.interpreters import mlir
from jax.interpreters.mlir import ir
from jax.sharding import NamedSharding, PartitionSpec
from shmap_passes import ChooseOverlap, GroupNaming, Pass, PassFailure, PipelineError
from shmap_passes.cost.machine import Machine
from shmap_passes.ir.memoize import memoizing

from shmap_compiler.base.errors import Problem, TargetError
from shmap_compiler.base.frames import with_room
from shmap_compiler.base.jax_compat import (
    AnyMesh,
    groups_among_other_meshes,
    keep_unreduced,
    print_equations_as,
    replace_jaxpr,
    shardy_is_on,
    tracks_varying_types,
    varies_along,
    varying_type,
    with_manual_axes,
)
from shmap_compiler.base.specs import show, show_mesh
from shmap_compiler.base.untyped import AnyValue, Eqn, Jaxpr, LoweringContext, OpView, Parameter
from shmap_compiler.collectives import COLLECTIVES
from shmap_compiler.graph.graph import Graph
from shmap_compiler.graph.nested_graphs import all_equations
from shmap_compiler.lowering.added_passes import with_added
from shmap_compiler.lowering.emit_module import emit
from shmap_compiler.lowering.inline_module import merge
from shmap_compiler.lowering.overlap import overlap_setting
from shmap_compiler.lowering.symbolic_dimensions import refuse_symbolic_dimensions
from shmap_compiler.lowering.watchdog import is_watching
from shmap_compiler.targets.attached import machine_of_mesh

shmap_p = Primitive("shard_map")  # the name in profiles and in error messages of JAX
shmap_p.multiple_results = True


def bind(graph: Graph, *args: AnyValue) -> list[AnyValue]:
    """Applies a graph to full arrays."""
    if graph.outer_manual_axes and tracks_varying_types():
        args = tuple(_varying_together(graph, args))
    # JAX's caches hold jaxprs among the parameters of an equation by weak references. This copy
    # belongs to one equation, so what they keep for the graph is freed with that equation.
    witness = replace_jaxpr(mesh_witness(graph.mesh))
    return shmap_p.bind(*args, graph=graph, mesh_witness=witness)


def _varying_together(graph: Graph, args: Sequence[AnyValue]) -> list[AnyValue]:
    """The arguments, cast to a common type: to JAX, every result depends on every argument."""
    found = [varies_along(jax.typeof(x)) for x in args]
    joined = _varies_outside(graph, found)
    missing = [tuple(a for a in graph.outer_manual_axes if a in joined - axes) for axes in found]
    return [lax.pcast(x, m, to="varying") if m else x for x, m in zip(args, missing, strict=True)]


def _varies_outside(graph: Graph, inputs: Sequence[frozenset[str]]) -> frozenset[str]:
    """The axes of an enclosing shard_map along which the types of results vary."""
    return named_axes(graph).intersection(graph.outer_manual_axes).union(*inputs)


def named_axes(graph: Graph) -> frozenset[str]:
    """The mesh axes that collectives of a program name."""
    collectives = (eqn for eqn in all_equations(graph) if eqn.primitive in COLLECTIVES)
    return frozenset(axis for eqn in collectives for axis in eqn.params["axes"])


@functools.lru_cache(maxsize=256)
def mesh_witness(mesh: AnyMesh) -> Jaxpr:
    """A jaxpr that mentions the mesh and computes nothing of use.

    jit takes its devices from sharding constraints, including those in jaxprs that are parameters
    of equations. Without this parameter it would not find the mesh of a graph.
    """
    constrain = functools.partial(
        lax.with_sharding_constraint, shardings=NamedSharding(mesh, PartitionSpec())
    )
    return jax.make_jaxpr(constrain)(jax.ShapeDtypeStruct((), np.float32))


def _shown(eqn: Eqn) -> dict[str, Parameter]:
    """The parameters that `print(jax.make_jaxpr(f)(x))` shows."""
    graph: Graph = eqn.params["graph"]
    return {
        "name": graph.name,
        "jaxpr": graph.jaxpr,
        "mesh": show_mesh(graph.mesh),
        "manual_axes": graph.manual_axes,
        "in_specs": f"[{', '.join(map(show, graph.in_specs))}]",
        "out_specs": f"[{', '.join(map(show, graph.out_specs))}]",
    }


print_equations_as(shmap_p, _shown)


def _type(*in_types, graph, mesh_witness):
    types = graph.out_types
    if graph.outer_manual_axes and tracks_varying_types():
        joined = _varies_outside(graph, [varies_along(t) for t in in_types])
        outside = with_manual_axes(graph.mesh, graph.outer_manual_axes)
        types = [varying_type(t, outside, joined) for t in types]
    return types, graph.effects


# ------------------------------------------------------------------------------------ lowering


@dataclass(frozen=True)
class LoweringOptions:
    """How graphs are lowered inside `lowering_with`.

    Attributes:
      groups: collectives name their groups by mesh "axes", or list the device "ids" of each; None
        for what is right whatever other meshes the enclosing jit has.
      machine: that of a target for which the program is compiled; None for that of its mesh.
      compiler_options: whether it is compiled with those of its devices; see `Machine`.
      observer: called as `observer(module, passes)` for each graph, with the emitted module and the
        passes that will change it. Graphs nested in another come before it.
    """

    groups: GroupNaming | None = None
    observer: Callable[[ir.Module, Sequence[Pass | str]], None] | None = None
    machine: Machine | None = None
    compiler_options: bool = False


_DEFAULT = LoweringOptions()
_options: ContextVar[LoweringOptions] = ContextVar("lowering_options", default=_DEFAULT)


@contextlib.contextmanager
def lowering_with(options: LoweringOptions) -> Iterator[None]:
    """Graphs are lowered with these options inside this context."""
    token = _options.set(options)
    try:
        yield
    finally:
        _options.reset(token)


_UNREDUCED_NEEDS_SHARDY = Problem(
    "out_specs",
    "unreduced results, lowered for GSPMD",
    "the partitioner Shardy: JAX lowers unreduced results for Shardy only",
    'write partitioner="shardy"; inside jit, leave jax_use_shardy_partitioner on',
)


def _lowering(ctx, *args, graph, mesh_witness):
    return with_room(_lowered, ctx, args, graph)


def _lowered(ctx: LoweringContext, args: Sequence[OpView], graph: Graph) -> Sequence[OpView]:
    if not shardy_is_on() and any(spec.unreduced for spec in graph.out_specs):
        raise TargetError(f"`{graph.name}`", [_UNREDUCED_NEEDS_SHARDY])
    refuse_symbolic_dimensions(graph, ctx)
    effects = [e for e in ctx.tokens_in.effects() if e in graph.jaxpr.effects]
    # Programs that are shown, saved or compiled ahead of time are never watched.
    watch = is_watching() and _options.get() is _DEFAULT
    # Emission knows what the passes would read of @main.
    with memoizing(ctx.module_context.context):
        module = emit(graph, ctx, effects, watch)
        _run_passes(module, lambda: emit(graph, ctx, effects), _chooser(graph, ctx))
    tokens = [ctx.tokens_in.get(e) for e in effects]
    results = merge(module, ctx, [*ctx.dim_var_values, *tokens, *args])
    if effects:
        new_tokens = dict(zip(effects, results, strict=False))
        ctx.set_tokens_out(ctx.tokens_in.update_tokens(mlir.TokenSet(new_tokens)))
    return keep_unreduced(results[len(effects) :], ctx.avals_out)


def _chooser(graph: Graph, ctx: LoweringContext) -> ChooseOverlap | None:
    """What chooses where transfers run beside products, for the devices of the program."""
    setting, options = overlap_setting(), _options.get()
    if setting.mode == "off":
        return None
    is_judged, machine = options.machine is not None, options.machine
    platforms = ctx.module_context.platforms
    if machine is None and len(platforms) == 1:
        machine = machine_of_mesh(graph.mesh, platforms[0], options.compiler_options)
    return setting.chooser(machine, is_judged)


def _run_passes(
    module: ir.Module, emit_again: Callable[[], ir.Module], chooser: ChooseOverlap | None
) -> None:
    """Runs the pipeline. If a pass fails, the message names a reproducer.

    The reproducer is emitted again, as passes may have changed the module: a copy of each module
    before its passes would cost time in all programs.
    """
    options = _options.get()
    groups = options.groups or groups_among_other_meshes()
    partitioner = "shardy" if shardy_is_on() else "gspmd"
    passes = with_added(shmap_passes.pipeline(partitioner, groups, chooser))
    if options.observer is not None:
        options.observer(module, passes)
    try:
        shmap_passes.run(module, passes, verify=False)  # JAX verifies the enclosing module
    except PassFailure as failure:
        command = shmap_passes.write_reproducer(emit_again(), passes)
        raise PassFailure(failure.diagnostics, command) from None
    except PipelineError:
        raise
    except Exception as error:
        command = shmap_passes.write_reproducer(emit_again(), passes)
        error.add_note(f"a pass raised this; to reproduce: {command}")
        raise


shmap_p.def_effectful_abstract_eval(_type)
mlir.register_lowering(shmap_p, _lowering, cacheable=False)
