"""Any function that JAX can trace, lowered for a target with its transfers beside products."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from shmap_passes.cost.machine import Machine
from shmap_passes.overlap.choose.chosen_forms import observing, recording

from shmap_compiler.base.untyped import Function, PyTree, Setting
from shmap_compiler.lowering.overlap import OverlapSetting, using_setting
from shmap_compiler.lowering.snapshots import Snapshots
from shmap_compiler.stages.any_function import lower_function
from shmap_compiler.stages.compile_for_target import check_target
from shmap_compiler.stages.compile_overlapped import PLAIN, compile_overlapped, machine_for
from shmap_compiler.stages.compiled import Compiled
from shmap_compiler.stages.option_errors import read_options
from shmap_compiler.stages.overlap_report import OverlapChoice, OverlapReport
from shmap_compiler.stages.portable import Portable
from shmap_compiler.targets import Target


@dataclass(frozen=True)
class OverlappedFunction:
    """A function of which the shard_maps are overlapped when it is compiled.

    Attributes:
      plain: the program without overlap.
    """

    fun: Function
    args: tuple[PyTree, ...]
    setting: OverlapSetting
    plain: Portable

    @classmethod
    def of(
        cls, fun: Function, args: Sequence[PyTree], platform: str, setting: OverlapSetting
    ) -> OverlappedFunction:
        """Lowers `fun(*args)` without overlap; see `lower_function`."""
        with using_setting(PLAIN):
            return cls(fun, tuple(args), setting, lower_function(fun, args, platform))

    @property
    def partitioner(self) -> str:
        return self.plain.partitioner

    def compile(
        self,
        target: Target,
        progress: Callable[[str], None] = lambda _: None,
        *,
        compiler_options: Mapping[str, Setting] | None = None,
    ) -> Compiled:
        """Compiles the program for the devices of a target; see `Lowered.compile`.

        Raises:
          TargetError: The program does not fit the target.
        """
        signature = self.plain.signature
        given = read_options(signature.who, compiler_options)
        check_target(signature, target)
        return compile_overlapped(
            self._lowered, self.setting, target, given, progress, None, signature
        )

    def overlap_report(self, target: Target) -> OverlapReport:
        """What is chosen in the shard_maps of the function; see `Lowered.overlap_report`.

        Nothing if the figures of the target are not known, or some axes of a mesh are automatic.
        """
        machine = machine_for(self.plain.signature, target)
        found: list[OverlapChoice] = []
        with (
            using_setting(self.setting),
            observing(lambda choice: found.append(OverlapChoice.of(choice))),
        ):
            lower_function(self.fun, self.args, target.platform, machine)
        return OverlapReport(tuple(found))

    def _lowered(
        self, platform: str, setting: OverlapSetting, machine: Machine | None
    ) -> tuple[Portable, Snapshots]:
        snapshots = Snapshots()
        if setting == PLAIN:
            return self.plain, snapshots
        with using_setting(setting), recording() as chosen:
            program = lower_function(self.fun, self.args, platform, machine)
        snapshots.chosen = tuple(chosen)
        return program, snapshots
