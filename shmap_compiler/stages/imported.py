"""Modules that other producers wrote for several devices, as handles."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import jax
import shmap_passes
from jaxlib.mlir import ir
from shmap_passes import ChooseOverlap, Partitioner, PassFailure
from shmap_passes.checks.check_hangs import CheckHangs
from shmap_passes.cost.machine import Machine
from shmap_passes.overlap.choose.chosen_forms import recording

from shmap_compiler.base.descriptions import show_type_of, show_value
from shmap_compiler.base.errors import (
    Problem,
    ProgramName,
    TargetError,
    TargetTypeError,
    TypeProblem,
)
from shmap_compiler.base.untyped import AnyValue, Setting
from shmap_compiler.explain import Explanation
from shmap_compiler.lowering.added_passes import with_added
from shmap_compiler.lowering.overlap import OverlapMode, OverlapSetting, read_setting
from shmap_compiler.lowering.portable_module import portable
from shmap_compiler.lowering.snapshots import Snapshots
from shmap_compiler.records.signature import Signature
from shmap_compiler.simulate.simulate_module import THE_MODULE, simulate_module
from shmap_compiler.simulate.simulation import Simulation
from shmap_compiler.stages.compile_for_target import check_target
from shmap_compiler.stages.compile_overlapped import compile_overlapped, machine_for
from shmap_compiler.stages.compiled import Compiled
from shmap_compiler.stages.imported_body import import_body
from shmap_compiler.stages.lower_call import PARTITIONERS
from shmap_compiler.stages.option_errors import read_options
from shmap_compiler.stages.overlap_report import OverlapReport, report_of
from shmap_compiler.stages.portable import Portable
from shmap_compiler.targets import Target

Progress = Callable[[str], None]


def import_module(
    text: str | bytes,
    *,
    axes: Mapping[str, int] | None = None,
    partitioner: Partitioner | None = None,
    who: str = THE_MODULE,
) -> ImportedModule:
    """Imports a StableHLO module that another producer wrote for several devices.

    It reads per-device code with what says how it is split: Shardy's manual computations, GSPMD's
    custom calls, as `jax.shard_map`, torch_xla and tt-mlir write them, or body form.

    Args:
      text: The module: its text, its bytecode, or a portable artifact, as `jax.export` writes them.
        Reports name the lines of the producer if it has locations, else those of the module.
      axes: Names and sizes of the mesh axes, major axis first. GSPMD's form has none; by default
        they are chosen, and named "axis_0" and so on.
      partitioner: What to export it for again: "gspmd" or "shardy". Defaults to the form it came
        in.
      who: What to call the program, such as the name of its file.

    Returns:
      An `ImportedModule`.

    Raises:
      TargetError: The text is not a module, or has no manual region.
      PassFailure: A pass of `shmap_passes` rejects the module; it names the operations.

    Examples:
      >>> f = shard_map(lambda b: lax.psum(b, "i"), mesh=mesh, in_specs=P("i"), out_specs=P())
      >>> module = import_module(f.lower(x, partitioner="shardy").as_text())
      >>> [(c.kind, c.axes) for c in module.compile("cpu:8").explain().collectives]
      [('all-reduce', ('i',))]
    """
    if not isinstance(text, (str, bytes)):
        needed = "a StableHLO module: its text, or its bytecode"
        problem = TypeProblem("text", show_type_of(text), needed, "pass str(module), or its bytes")
        raise TargetTypeError(ProgramName(who), [problem])
    if partitioner not in (None, *PARTITIONERS):
        needed = f"one of {', '.join(map(repr, PARTITIONERS))}, or None for the form it came in"
        problem = Problem("partitioner", show_value(partitioner), needed, "leave it out")
        raise TargetError(ProgramName(who), [problem])
    body = import_body(text, axes, ProgramName(who))
    chosen: Partitioner = partitioner or ("shardy" if body.is_shardy else "gspmd")
    return ImportedModule(body.signature, chosen, body.text)


@dataclass(frozen=True, repr=False)
class ImportedModule:
    """A module of another producer, in body form.

    Made by `import_module`.

    Attributes:
      signature: The arguments and results of the program, and its mesh.
      partitioner: What it is exported for.
      body: The text of the module in body form, with lines.

    Examples:
      >>> f = shard_map(lambda b: lax.psum(b, "i"), mesh=mesh, in_specs=P("i"), out_specs=P())
      >>> module = import_module(f.lower(x, partitioner="shardy").as_text())
      >>> module.simulate(x).results[0]
      array([56., 64.], dtype=float32)
      >>> module.hangs
      ()
    """

    signature: Signature
    partitioner: Partitioner
    body: str

    def __repr__(self) -> str:
        """One line; `body` is the program."""
        return f"<ImportedModule of {self.signature.summary}, partitioner {self.partitioner!r}>"

    @cached_property
    def hangs(self) -> tuple[str, ...]:
        """The collectives that could deadlock, each with its line and reason."""
        with shmap_passes.make_context():
            module = ir.Module.parse(self.body)
            try:
                shmap_passes.run(module, [CheckHangs()])
            except PassFailure as failure:
                return tuple(
                    "; ".join([f"{each.place}: {each.message}", *map(_noted, each.notes)])
                    for each in failure.diagnostics
                )
        return ()

    def simulate(self, *args: AnyValue) -> Simulation:
        """Runs the program device by device; see `simulate_module`."""
        return simulate_module(self.body, args, who=self.signature.who)

    def portable(self, platform: str) -> Portable:
        """Returns the program for devices of one platform: "cpu", "tpu" or "cuda"."""
        return self._portable(platform, OverlapSetting("off"), None, is_kept=True)[0]

    def compile(
        self,
        target: str | Target | None = None,
        progress: Progress = lambda _: None,
        *,
        compiler_options: Mapping[str, Setting] | None = None,
        overlap: OverlapMode | None = None,
        overlap_rounding: bool | None = None,
    ) -> Compiled:
        """Compiles the program for a target; see `Lowered.compile`.

        Args:
          target: A `Target` or its text. Defaults to as many CPU devices as the mesh has.
          progress: As for `Lowered.compile`.
          compiler_options: As for `Lowered.compile`.
          overlap: As for `Lowered.compile`.
          overlap_rounding: As for `Lowered.compile`.

        Returns:
          An `Executable`; or a `CompiledForTarget` if the devices are not attached.

        Raises:
          TargetError: The program does not fit the target.
        """
        setting = read_setting(overlap, overlap_rounding, self.signature.who)
        chosen = self._target(target)
        if chosen.is_here:
            self._refuse_wide_types()
        return self._compiled(chosen, progress, compiler_options, setting, apart=False)

    def explain(
        self,
        target: str | Target | None = None,
        progress: Progress = lambda _: None,
        *,
        compiler_options: Mapping[str, Setting] | None = None,
        overlap: OverlapMode | None = None,
        overlap_rounding: bool | None = None,
    ) -> Explanation:
        """Returns what the program costs on one device, and which collectives could deadlock.

        It is compiled in a process of its own, because XLA ends its process on some modules.

        Args:
          target: A `Target` or its text. Defaults to as many CPU devices as the mesh has.
          progress: As for `Lowered.compile`.
          compiler_options: As for `Lowered.compile`.
          overlap: As for `Lowered.compile`.
          overlap_rounding: As for `Lowered.compile`.

        Raises:
          TargetError: The program does not fit the target.
        """
        setting = read_setting(overlap, overlap_rounding, self.signature.who)
        chosen = self._target(target)
        compiled = self._compiled(chosen, progress, compiler_options, setting, apart=True)
        found = compiled.explain()
        hangs = tuple(f"could deadlock: {each}" for each in self.hangs)
        return replace(found, notes=(*hangs, *found.notes))

    def overlap_report(
        self,
        target: str | Target,
        *,
        overlap: OverlapMode | None = None,
        overlap_rounding: bool | None = None,
    ) -> OverlapReport:
        """Returns where transfers could run beside products; see `Lowered.overlap_report`.

        Args:
          target: A `Target` or its text.
          overlap: As for `Lowered.compile`.
          overlap_rounding: As for `Lowered.compile`.

        Returns:
          An `OverlapReport`.

        Raises:
          TargetError: The program does not fit the target.
        """
        setting = read_setting(overlap, overlap_rounding, self.signature.who)
        _, snapshots = self._portable("cpu", OverlapSetting("off"), None)
        machine = machine_for(self.signature, self._target(target))
        return report_of(snapshots, setting, machine, is_judged=machine is not None)

    def _target(self, target: str | Target | None) -> Target:
        if not isinstance(target, Target):
            target = Target.parse(target or f"cpu:{self.signature.mesh.size}", self.signature.who)
        check_target(self.signature, target)
        return target

    def _compiled(
        self,
        target: Target,
        progress: Progress,
        compiler_options: Mapping[str, Setting] | None,
        setting: OverlapSetting,
        *,
        apart: bool,
    ) -> Compiled:
        given = read_options(self.signature.who, compiler_options)
        return compile_overlapped(
            self._portable, setting, target, given, progress, None, self.signature, apart=apart
        )

    def _portable(
        self,
        platform: str,
        setting: OverlapSetting,
        machine: Machine | None,
        *,
        is_kept: bool = False,
    ) -> tuple[Portable, Snapshots]:
        snapshots = Snapshots()
        with shmap_passes.make_context(), recording() as chosen:
            module = ir.Module.parse(self.body)
            chooser: ChooseOverlap | None = setting.chooser(machine, machine is not None)
            passes = with_added(shmap_passes.pipeline(self.partitioner, "axes", chooser))
            snapshots.emitted(module, passes)
            shmap_passes.run(module, passes)
            program = portable(self.signature, module, self.partitioner, platform, is_kept=is_kept)
        snapshots.chosen = tuple(chosen)
        return Portable.of(program), snapshots

    def _refuse_wide_types(self) -> None:
        types = {t.dtype for t in (*self.signature.in_types, *self.signature.out_types)}
        wide = sorted(t.name for t in types if jax.dtypes.canonicalize_dtype(t) != t)
        if wide:
            problem = Problem(
                "the module",
                f"arrays of {', '.join(wide)}",
                "types that JAX has: 64-bit numbers are switched off",
                "set jax.config.update('jax_enable_x64', True)",
            )
            raise TargetError(self.signature.who, [problem])


def _noted(note: shmap_passes.Diagnostic) -> str:
    return f"{note.place}: {note.message}"
