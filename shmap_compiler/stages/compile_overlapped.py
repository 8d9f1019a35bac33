"""Compiles a program with its transfers beside products, where that is expected to be faster."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import replace

from shmap_passes.cost.machine import Machine

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
from shmap_compiler.stages.measured import (
    Verdict,
    better,
    not_compiled,
    plain_not_compiled,
    shares_of_memory,
)
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

    Only a program in which transfers run beside products is compiled with the options of the
    target.

    Args:
      graph: of the program; None for a module of another producer.
      apart: see `compile_for_target`.

    Raises:
      TargetError: it cannot be compiled; with "measure", neither as it is nor rewritten.
    """

    def compiled(program: PortableProgram, of_target: Mapping[str, Setting]) -> Compiled:
        options = CompilerOptions(given, of_target)
        return compile_for_target(program, target, progress, graph, options, apart=apart)

    def plain() -> Compiled:
        return compiled(lower(target.platform, PLAIN, None)[0], {})

    if setting.mode == "off" or (graph is not None and not may_overlap(graph)):
        return plain()
    machine = machine_for(signature, target)
    program, snapshots = lower(target.platform, setting, machine)
    if not snapshots.chosen:
        return compiled(program, {})  # As the plain one.

    def options_for(made: Snapshots) -> Mapping[str, Setting]:
        return target.compiler_options if _needs_options(made) else {}

    if setting.mode != "measure":
        return compiled(program, options_for(snapshots))
    try:
        as_it_is = plain()
    except TargetError as error:
        with contextlib.suppress(TargetError):
            return plain_not_compiled(compiled(program, options_for(snapshots)), error)
        raise

    def judged(changed: PortableProgram, made: Snapshots, limit: Mapping[str, Setting]) -> Verdict:
        try:
            other = compiled(changed, {**options_for(made), **limit})
        except TargetError as error:
            return not_compiled(as_it_is, error)
        return better(as_it_is, other, made.chosen)

    verdict = judged(program, snapshots, {})
    if not verdict.is_large:
        return verdict.kept
    limits = [target.options_for_memory(share) for share in shares_of_memory(as_it_is)]
    if not all(limits):
        return verdict.kept
    # The forms of sums keep the fewest arrays in memory.
    smaller, sums = lower(target.platform, replace(setting, only_sums=True), machine)
    for limit in limits if sums.chosen else ():
        found = judged(smaller, sums, limit)
        if found.is_rewritten:
            return found.kept
    return verdict.kept


def _needs_options(made: Snapshots) -> bool:
    return any(form.needs_options for form in made.chosen)


def may_overlap(graph: Graph) -> bool:
    """Whether a program may have something to rewrite: communication, or the maximum of a softmax.

    Permutes run beside products in any case. The coordinates of devices that are not attached, for
    which a form is chosen, take seconds to find.
    """
    if added_passes():
        return True
    primitives = {eqn.primitive for eqn in all_equations(graph.jaxpr)}
    found = (record_of(primitive) for primitive in primitives)
    communicates = any(record is not None and record.hlo in _OVERLAPPED for record in found)
    return communicates or any(primitive.name == "reduce_max" for primitive in primitives)


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
    if not _needs_options(snapshots):
        return options
    return CompilerOptions(options.given, Target.parse("local").compiler_options)
