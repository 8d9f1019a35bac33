"""Compiles a program with its transfers beside products, where that is expected to be faster."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from shmap_passes.cost.machine import Machine
from shmap_passes.overlap.chosen_forms import ChosenForm

from shmap_compiler.base.errors import TargetError
from shmap_compiler.base.untyped import Setting, Unchecked
from shmap_compiler.collectives import record_of
from shmap_compiler.graph.graph import Graph
from shmap_compiler.graph.nested_graphs import all_equations
from shmap_compiler.lowering.added_passes import added_passes
from shmap_compiler.lowering.compiler_options import CompilerOptions
from shmap_compiler.lowering.overlap import OverlapSetting
from shmap_compiler.lowering.snapshots import Snapshots
from shmap_compiler.records.portable_program import PortableProgram
from shmap_compiler.records.signature import Signature
from shmap_compiler.stages.compile_for_target import Progress, compile_for_target, target_mesh
from shmap_compiler.stages.compiled import Compiled
from shmap_compiler.stages.subprocess_compiler import Failure, places_in_subprocess
from shmap_compiler.targets import Target

Lower = Callable[[str, OverlapSetting, Machine | None], tuple[PortableProgram, Snapshots]]
"""Lowers a program for a platform, with a setting, for a machine."""

PLAIN = OverlapSetting("off")

_OVERLAPPED = {"all-gather", "all-reduce", "reduce-scatter", "all-to-all"}


def compile_overlapped(
    lower: Lower,
    setting: OverlapSetting,
    target: Target,
    given: Mapping[str, Unchecked],
    progress: Progress,
    graph: Graph | None,
    signature: Signature,
    *,
    apart: bool = False,
) -> Compiled:
    """A program compiled for a target.

    Only a program in which something was chosen is compiled with the options of the target.

    Args:
      graph: of the program; None for a module of another producer.
      apart: see `compile_for_target`.
    """

    def compiled(program: PortableProgram, of_target: Mapping[str, Setting]) -> Compiled:
        options = CompilerOptions(given, of_target)
        return compile_for_target(program, target, progress, graph, options, apart=apart)

    def plain() -> Compiled:
        return compiled(lower(target.platform, PLAIN, None)[0], {})

    if setting.mode == "off" or (graph is not None and not _may_overlap(graph)):
        return plain()
    machine = machine_for(signature, target)
    program, snapshots = lower(target.platform, setting, machine)
    if not snapshots.chosen:
        return compiled(program, {})  # As the plain one.
    if setting.mode != "measure":
        return compiled(program, target.compiler_options)
    as_it_is = plain()
    try:
        changed = compiled(program, target.compiler_options)
    except TargetError:  # It needs more memory, or the compiler fails.
        return as_it_is
    return changed if _is_better(changed, as_it_is, early_bytes(snapshots.chosen)) else as_it_is


def _may_overlap(graph: Graph) -> bool:
    """Whether a program communicates beside permutes, which run beside products in any case.

    The coordinates of devices that are not attached take seconds to find.
    """
    if added_passes():
        return True
    found = (record_of(eqn.primitive) for eqn in all_equations(graph))
    return any(record is not None and record.hlo in _OVERLAPPED for record in found)


def early_bytes(chosen: Sequence[ChosenForm]) -> int:
    """Bytes that unrolled loops need more, as a step gathers before the one before it ends.

    What a step gathers is there while that of the step before is read, and so are the results of
    both; the slices that the next steps gather take about half as much again.
    """
    steps = [
        each.received * each.count // (each.count - 1)
        for each in chosen
        if each.pattern == "gathering-loop"
    ]
    return 3 * max(steps, default=0)


def machine_for(signature: Signature, target: Target) -> Machine | None:
    """The machine of a program on a target; None if its figures are not known."""
    if target.chip is None or target.network is None:
        return None
    try:
        if target.is_here:
            devices = target_mesh(signature, target).devices.flat
            places = tuple(target.place(device) for device in devices)
        else:
            places = places_in_subprocess(target, tuple(signature.mesh.shape.items()))
    except Failure:
        return None  # The compilation reports it.
    return Machine(target.chip, target.network, places, compiler_options=True)


def with_options_here(options: CompilerOptions, snapshots: Snapshots) -> CompilerOptions:
    """The options for a program that is compiled for the devices of its mesh."""
    if not snapshots.chosen:
        return options
    return CompilerOptions(options.given, Target.parse("local").compiler_options)


def _is_better(changed: Compiled, plain: Compiled, more: int = 0) -> bool:
    """Whether a program is faster than the plain one, and needs no more memory.

    Memory traffic without an estimate of the compiler counts, or work that moves there would be
    free.

    Args:
      more: bytes that it may need more.
    """
    seconds = []
    for totals in (changed.explain().totals, plain.explain().totals):
        if totals.step_seconds is None:
            return False
        seconds.append(totals.step_seconds + (totals.unestimated_seconds or 0.0))
    memory = [each.explain().memory.total for each in (changed, plain)]
    return seconds[0] < seconds[1] and memory[0] <= 1.02 * memory[1] + more
