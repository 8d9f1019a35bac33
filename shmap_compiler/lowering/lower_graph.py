"""The lowering rule of a Graph in an enclosing jit: emission, passes, merging."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass

import shmap_passes
from jax.interpreters import mlir
from jax.interpreters.mlir import ir
from shmap_passes import ChooseOverlap, GroupNaming, Pass, PassFailure, PipelineError
from shmap_passes.cost.machine import Machine
from shmap_passes.ir.memoize import memoizing

from shmap_compiler.base.errors import Problem, ShmapError, TargetError
from shmap_compiler.base.frames import with_room
from shmap_compiler.base.jax_compat import (
    NESTS_IN_MESH_ORDER,
    groups_among_other_meshes,
    keep_unreduced,
    shardy_is_on,
)
from shmap_compiler.base.untyped import Effect, LoweringContext, OpView
from shmap_compiler.graph.callbacks import calls_back
from shmap_compiler.graph.graph import Graph
from shmap_compiler.graph.primitive import shmap_p
from shmap_compiler.lowering.added_passes import added_passes, with_added
from shmap_compiler.lowering.emit_module import carries_names, emit
from shmap_compiler.lowering.inline_module import merge
from shmap_compiler.lowering.nested_results import left_to_the_partitioner
from shmap_compiler.lowering.overlap import overlap_setting
from shmap_compiler.lowering.repeated import repeated
from shmap_compiler.lowering.symbolic_dimensions import refuse_symbolic_dimensions
from shmap_compiler.lowering.watchdog import is_watching
from shmap_compiler.targets.attached import machine_of_mesh


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


_RAISED_BY_PASS = "a pass raised this"


def is_refusal(error: Exception) -> bool:
    """Whether JAX refuses to lower a program, rather than this package or a pass."""
    notes: list[str] = getattr(error, "__notes__", [])
    is_ours = isinstance(error, (ShmapError, PassFailure, PipelineError))
    return not is_ours and not any(note.startswith(_RAISED_BY_PASS) for note in notes)


def _nested_early(graph: Graph) -> Problem:
    named = ", ".join(map(repr, graph.early_axes))
    outer = ", ".join(map(repr, graph.outer_manual_axes))
    automatic = ", ".join(map(repr, graph.automatic_axes))
    return Problem(
        "axis_names",
        f"{named} inside of a shard_map over {outer}, lowered for Shardy beside {automatic}",
        "nested axes in the order of the mesh: XLA aborts on others if an axis is automatic",
        "nest them in the order of the mesh, or make all axes manual; or compile with "
        'f.lower(*args, partitioner="gspmd").compile()',
    )


def _lowering(ctx, *args, graph, witness):
    return with_room(_lowered, ctx, args, graph)


def _lowered(ctx: LoweringContext, args: Sequence[OpView], graph: Graph) -> Sequence[OpView]:
    if not shardy_is_on() and any(spec.unreduced for spec in graph.out_specs):
        raise TargetError(f"`{graph.name}`", [_UNREDUCED_NEEDS_SHARDY])
    if NESTS_IN_MESH_ORDER and shardy_is_on() and graph.early_axes:
        raise TargetError(f"`{graph.name}`", [_nested_early(graph)])
    refuse_symbolic_dimensions(graph, ctx)
    effects = [e for e in ctx.tokens_in.effects() if e in graph.jaxpr.effects]
    # Programs that are shown, saved or compiled ahead of time are never watched.
    watch = is_watching() and _options.get() is _DEFAULT

    def finished() -> ir.Module:
        return _finished(graph, ctx, effects, watch)

    key = (graph, ctx.jaxpr_eqn_ctx, ctx.name_stack if carries_names(graph) else None)
    module = repeated(ctx, key, finished) if _may_copy(graph, watch) else finished()
    tokens = [ctx.tokens_in.get(e) for e in effects]
    results = merge(module, ctx, [*ctx.dim_var_values, *tokens, *args])
    if effects:
        new_tokens = dict(zip(effects, results, strict=False))
        ctx.set_tokens_out(ctx.tokens_in.update_tokens(mlir.TokenSet(new_tokens)))
    outs = left_to_the_partitioner(graph, results[len(effects) :], ctx.avals_out)
    return keep_unreduced(outs, ctx.avals_out)


def _may_copy(graph: Graph, watch: bool) -> bool:
    """Whether another call of a graph in the same module may be a copy of the first.

    Passes of the user's and observers see each of them, and on some devices each callback needs a
    channel of its own, as those of the watchdog do.
    """
    is_seen = bool(added_passes()) or _options.get() is not _DEFAULT
    return not (is_seen or watch or calls_back(graph))


def _finished(
    graph: Graph, ctx: LoweringContext, effects: Sequence[Effect], watch: bool
) -> ir.Module:
    """The module of a graph after the passes."""
    # Emission knows what the passes would read of @main.
    with memoizing(ctx.module_context.context):
        module = emit(graph, ctx, effects, watch)
        _run_passes(module, lambda: emit(graph, ctx, effects), _chooser(graph, ctx))
    return module


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
        error.add_note(f"{_RAISED_BY_PASS}; to reproduce: {command}")
        raise


mlir.register_lowering(shmap_p, _lowering, cacheable=False)
