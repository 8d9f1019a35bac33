"""Lowered: a program after tracing and lowering, as in `jax.stages`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import overload

import jax
from jax.sharding import AbstractMesh, Mesh
from shmap_passes import GroupNaming, Partitioner
from shmap_passes.cost.machine import Machine

from shmap_compiler.base.descriptions import describe
from shmap_compiler.base.errors import PlatformProblem, Problem, SimulationError, TargetError
from shmap_compiler.base.jax_compat import compiling_for
from shmap_compiler.base.meshes import no_devices
from shmap_compiler.base.untyped import (
    Analysis,
    Function,
    OpView,
    PyTree,
    Setting,
    TreeDef,
    Unchecked,
    Wrapped,
)
from shmap_compiler.graph.graph import Graph
from shmap_compiler.lowering.added_passes import AddedPass, added_passes, using
from shmap_compiler.lowering.compiler_options import NO_OPTIONS, CompilerOptions, compile_with
from shmap_compiler.lowering.overlap import (
    OverlapMode,
    OverlapSetting,
    read_setting,
    using_setting,
)
from shmap_compiler.lowering.snapshots import Snapshots
from shmap_compiler.records.traced_call import TracedCall
from shmap_compiler.simulate.arguments import simulate
from shmap_compiler.simulate.simulation import Simulation
from shmap_compiler.simulate.validate_stages import validate
from shmap_compiler.simulate.validation import Validation
from shmap_compiler.stages.compile_for_target import check_target, target_mesh
from shmap_compiler.stages.compile_overlapped import (
    compile_overlapped,
    machine_for,
    may_overlap,
    with_options_here,
)
from shmap_compiler.stages.compiled import Compiled
from shmap_compiler.stages.executable import Executable
from shmap_compiler.stages.lower_call import (
    GROUPS,
    PARTITIONERS,
    PLATFORMS,
    check_choice,
    lower_for,
    lower_portable,
    no_such_choice,
    platform_here,
    refuse_callbacks,
)
from shmap_compiler.stages.option_errors import read_options, refused_options
from shmap_compiler.stages.overlap_report import OverlapReport, report_of
from shmap_compiler.stages.portable import Portable
from shmap_compiler.targets import Target
from shmap_compiler.targets.attached import machine_of_mesh

STAGES = ("graph", "body", "stablehlo", "hlo")
"""The names of the stages of a program, in order: see `Lowered.as_text`."""


def lower(
    call: TracedCall, partitioner: Partitioner, groups: GroupNaming, setting: OverlapSetting
) -> Lowered:
    """Lowers a traced call by itself, for the devices of its mesh.

    What JAX cannot lower for these is an error where the module is used; it may be compiled for
    others.

    Raises:
      TargetError: `partitioner` is not one of PARTITIONERS, or `groups` not one of GROUPS.
    """
    check_choice(call, "partitioner", partitioner, PARTITIONERS)
    check_choice(call, "groups", groups, GROUPS)
    here = None
    try:
        with using_setting(setting):
            here = _lower_here(call, partitioner, groups)
    except TargetError as error:
        if not all(isinstance(problem, PlatformProblem) for problem in error.problems):
            raise
    return Lowered(call, partitioner, groups, added_passes(), setting, here)


def _lower_here(
    call: TracedCall, partitioner: Partitioner, groups: GroupNaming
) -> tuple[Wrapped, Snapshots]:
    platform = "cpu" if isinstance(call.graph.mesh, AbstractMesh) else None
    return lower_for(call, partitioner, groups, platform)


@dataclass(frozen=True, repr=False)
class Lowered:
    """A program lowered to StableHLO, not yet compiled.

    Made by `ShardMapped.lower`.

    Attributes:
      call: The traced call that was lowered.
      partitioner: "gspmd" (full-to-shard custom calls) or "shardy" (manual computation).
      groups: Whether collectives name their groups by mesh "axes" or list device "ids";
        "one-axis" lists ids along several axes only.
      added: The user's passes in its pipeline.
      overlap: Whether communication is overlapped with matrix products.
      here: `jax_lowered` and `snapshots`; None if JAX cannot lower the program for the devices of
        its mesh.

    Examples:
      >>> f = shard_map(jnp.sin, mesh=mesh, in_specs=P("i"), out_specs=P("i"))
      >>> lowered = f.lower(x)
      >>> lowered.compile()(x).shape
      (16,)
    """

    call: TracedCall
    partitioner: Partitioner
    groups: GroupNaming
    added: tuple[AddedPass, ...]
    overlap: OverlapSetting
    here: tuple[jax.stages.Lowered, Snapshots] | None

    @property
    def jax_lowered(self) -> jax.stages.Lowered:
        """The same program as a `jax.stages.Lowered`.

        Raises:
          TargetError: JAX cannot lower it for the devices of its mesh.
        """
        return self._needed_here[0]

    @property
    def snapshots(self) -> Snapshots:
        """The module after emission and after each pass. Raises as `jax_lowered` does."""
        return self._needed_here[1]

    @cached_property
    def _needed_here(self) -> tuple[jax.stages.Lowered, Snapshots]:
        if self.here is not None:
            return self.here
        with using(self.added), using_setting(self.overlap):  # raises the error again
            return _lower_here(self.call, self.partitioner, self.groups)

    @property
    def passes(self) -> tuple[tuple[str, str], ...]:
        """The module after emission ("body") and after each pass, as (name, text)."""
        return self.snapshots.texts

    def __repr__(self) -> str:
        """One line; `as_text` gives the program at each stage."""
        return (
            f"<Lowered of {describe(self.call.fun)}, partitioner {self.partitioner!r}, "
            f"groups {self.groups!r}: {self.graph!r}>"
        )

    @property
    def graph(self) -> Graph:
        return self.call.graph

    def as_text(self, stage: str = "stablehlo") -> str:
        """Returns the program at one of its stages.

        Args:
          stage: "graph", the traced program of one device; "body", the emitted module, on
            per-device types; "stablehlo", the module that XLA receives, after all passes; or "hlo",
            the optimized program of one device, for which the program is compiled.

        Returns:
          The text of the program.

        Raises:
          TargetError: There is no such stage.

        Examples:
          >>> f = shard_map(lambda b: lax.psum(b, "i"), mesh=mesh, in_specs=P("i"), out_specs=P())
          >>> lowered = f.lower(x)
          >>> "psum" in lowered.as_text("graph"), "all-reduce" in lowered.as_text("hlo")
          (True, True)
        """
        if stage == "graph":
            return str(self.graph)
        if stage == "body":
            return self.snapshots.body
        if stage == "stablehlo":
            return self.jax_lowered.as_text()
        if stage == "hlo":
            return self.compile().as_text()
        raise no_such_choice(self.call, "stage", stage, STAGES)

    def compiler_ir(self, dialect: str | None = None) -> OpView:
        """Returns the module that XLA receives as an object, as `jax.stages.Lowered` does.

        Args:
          dialect: "stablehlo" or "hlo"; "stablehlo" by default.
        """
        return self.jax_lowered.compiler_ir(dialect)

    def cost_analysis(self) -> Analysis:
        """Returns XLA's estimates before it partitions the program (flops, ...), by name."""
        return self.jax_lowered.cost_analysis()

    @property
    def in_tree(self) -> TreeDef:
        """The structure of the arguments, as `jax.stages` has it: of positions and keywords."""
        return self.call.signature.call_tree

    @property
    def out_tree(self) -> TreeDef:
        """The structure of the results."""
        return self.call.signature.out_tree

    @property
    def out_info(self) -> PyTree:
        """A `jax.ShapeDtypeStruct` for each result, with its sharding."""
        return self.call.signature.out_info

    @overload
    def compile(
        self,
        target: None = None,
        *,
        compiler_options: Mapping[str, Setting] | None = ...,
        overlap: OverlapMode | None = ...,
        overlap_rounding: bool | None = ...,
    ) -> Executable: ...

    @overload
    def compile(
        self,
        target: str | Target,
        progress: Callable[[str], None] = ...,
        *,
        compiler_options: Mapping[str, Setting] | None = ...,
        overlap: OverlapMode | None = ...,
        overlap_rounding: bool | None = ...,
    ) -> Compiled: ...

    def compile(
        self,
        target: str | Target | None = None,
        progress: Callable[[str], None] = lambda _: None,
        *,
        compiler_options: Mapping[str, Setting] | None = None,
        overlap: OverlapMode | None = None,
        overlap_rounding: bool | None = None,
    ) -> Compiled:
        """Compiles the program for the devices of its mesh, or for those of a target.

        On a target the program gets a mesh of the same axes that follows the topology of its
        devices. If they are not attached to this process, as for "tpu:v5e:2x4" on a machine without
        TPUs, the program is compiled in a separate process.

        Args:
          target: A `Target` or its text: "cpu:8", "tpu:v5e:2x4", "gpu:h100:8" or "local". Defaults
            to the devices of the mesh.
          progress: A function that is called with the name of each phase of a compilation in a
            separate process, when the phase begins.
          compiler_options: Options of XLA or of the target's compiler by name, as of
            `jax.stages.Lowered.compile`, such as {"xla_tpu_enable_async_all_to_all": True}.
          overlap: As for the context manager `overlap`. With "measure" and a target, the program is
            compiled both as it is and with overlap, and the one that is faster by the model of
            `explain`, or the only one that compiles, is returned. Defaults to the setting with
            which it was lowered.
          overlap_rounding: As `rounding` of that context manager.

        Returns:
          An `Executable`; or a `CompiledForTarget`, which can be inspected and saved but not
          called, if the devices are not attached to this process.

        Raises:
          TargetError: The mesh has no devices, the program does not fit the target, or the compiler
            does not take an option.

        Examples:
          >>> f = shard_map(jnp.sin, mesh=mesh, in_specs=P("i"), out_specs=P("i"))
          >>> f.lower(x).compile("cpu:8")(x).shape
          (16,)
        """
        signature = self.call.signature
        given = read_options(signature.who, compiler_options)
        if target is None:
            return self._with_setting(overlap, overlap_rounding)._compiled_here(given)
        if not isinstance(target, Target):
            target = Target.parse(target, signature.who)
        check_target(signature, target)
        program = self._with_setting(overlap, overlap_rounding)
        if target.is_here and isinstance(signature.mesh, Mesh):
            mesh = target_mesh(signature, target)
            if list(mesh.devices.flat) == list(signature.mesh.devices.flat):
                return replace(program._compiled_here(given), target=target)
        with using(self.added):
            return compile_overlapped(
                program._portable, program.overlap, target, given, progress, self.graph, signature
            )

    def _with_setting(self, mode: OverlapMode | None, rounding: bool | None) -> Lowered:
        """The program with another setting of overlap."""
        if mode is None and rounding is None:
            return self
        with using_setting(self.overlap):
            setting = read_setting(mode, rounding, self.call.signature.who)
        if setting == self.overlap:
            return self
        with using(self.added):
            return lower(self.call, self.partitioner, self.groups, setting)

    def overlap_report(self, target: str | Target | None = None) -> OverlapReport:
        """Returns where transfers could run beside products, what was chosen, and why.

        Args:
          target: A `Target` or its text. Defaults to the devices of the mesh.

        Returns:
          An `OverlapReport`. If overlap is off, it has what "auto" would choose.

        Raises:
          TargetError: The program does not fit the target.

        Examples:
          >>> f = shard_map(lambda x, w: lax.all_gather(x, "i", tiled=True) @ w, mesh=mesh,
          ...               in_specs=(P("i"), P()), out_specs=P(), check_vma=False)
          >>> report = f.lower(jnp.ones((16, 4)), jnp.ones((4, 4))).overlap_report()
          >>> report.choices[0].pattern, report.choices[0].reason
          ('gather-product', 'the figures of its devices are not known')
        """
        signature = self.call.signature
        if target is None:
            machine = machine_of_mesh(
                signature.mesh, platform_here(signature.mesh), compiler_options=True
            )
            return report_of(self.snapshots, self.overlap, machine, is_judged=False)
        if not isinstance(target, Target):
            target = Target.parse(target, signature.who)
        check_target(signature, target)
        with using(self.added):
            if not may_overlap(self.graph):
                return OverlapReport(())
        snapshots, machine = self._snapshots_for(target.platform), machine_for(signature, target)
        return report_of(snapshots, self.overlap, machine, is_judged=machine is not None)

    def _snapshots_for(self, platform: str) -> Snapshots:
        """Snapshots of the program for a platform, on which a body may do other things."""
        if platform == platform_here(self.call.signature.mesh):
            return self.snapshots
        refuse_callbacks(self.call.signature)
        with using(self.added), using_setting(OverlapSetting("off")):
            _, snapshots = lower_for(self.call, self.partitioner, self.groups, platform)
        return snapshots

    def _compiled_here(self, given: Mapping[str, Unchecked]) -> Executable:
        if not given:
            return self._executable
        with refused_options(self.call.signature.who, given):
            return self._compile_here(CompilerOptions(given))

    @cached_property
    def _executable(self) -> Executable:
        return self._compile_here(NO_OPTIONS)

    def _compile_here(self, options: CompilerOptions) -> Executable:
        if isinstance(self.graph.mesh, AbstractMesh):
            raise TargetError(describe(self.call.fun), [no_devices(self.graph.mesh)])
        with compiling_for(self.partitioner):
            options = with_options_here(options, self.snapshots)
            return Executable(self.call.signature, compile_with(self.jax_lowered, options))

    def simulate(self, *args: PyTree, stage: str | None = None) -> Simulation:
        """Runs the program device by device, on StableHLO's reference interpreter.

        No device of the mesh is needed. Reports the collectives, deadlocks, blocks that differ
        though they should be copies, and where NaN and infinities come from.

        Args:
          *args: The arguments of the function: arrays of the types it was lowered for.
          stage: Which state of the module: "body", or the name of a pass in `passes` for the
            module after it. Defaults to the last one, which XLA receives.

        Returns:
          A `Simulation`.

        Raises:
          SimulationError: An argument has another type, or an operation cannot be simulated.
          TargetError: There is no such stage.

        Examples:
          >>> f = shard_map(lambda b: lax.psum(b, "i"), mesh=mesh, in_specs=P("i"), out_specs=P())
          >>> f.lower(x).simulate(x).results
          array([56., 64.], dtype=float32)
        """
        snapshots = self._with_all_inputs
        if stage is not None:
            check_choice(self.call, "stage", stage, snapshots.names)
        text = snapshots.text_with_lines(stage or snapshots.names[-1])
        return simulate(self.call.signature, text, args)

    def validate(
        self,
        *args: PyTree,
        reference: Function | None = None,
        seeds: int = 1,
        xla: bool = True,
    ) -> Validation:
        """Compares the program after each pass with the program before it, by simulation.

        Results are compared bitwise where a pass promises it (`Pass.keeps_bits`), else up to the
        order of additions. The last module is also compared with the compiled program and with
        `reference`, from which it may differ as rounding explains.

        Args:
          *args: The arguments of the function: arrays of the types it was lowered for.
          reference: An unsharded function of the same arguments.
          seeds: How many times; after the first time, arrays of floats are replaced by random ones.
          xla: Whether to compare with the compiled program, if the mesh has devices.

        Returns:
          A `Validation`.

        Raises:
          SimulationError: An argument has another type, an operation cannot be simulated, or
            nothing would be compared.

        Examples:
          >>> f = shard_map(lambda b: lax.psum(b, "i"), mesh=mesh, in_specs=P("i"), out_specs=P())
          >>> f.lower(x).validate(x).holds
          True
        """
        if seeds < 1:
            problem = Problem("seeds", str(seeds), "at least 1", "choose how often to compare")
            raise SimulationError(self.call.signature.who, [problem])
        is_abstract = isinstance(self.graph.mesh, AbstractMesh)
        compiled = self.compile() if xla and not is_abstract else None
        states = self._with_all_inputs.stages
        return validate(
            self.call.signature, states, args, compiled, reference, seeds, self.partitioner
        )

    @cached_property
    def _with_all_inputs(self) -> Snapshots:
        """The modules with all inputs; `jit` leaves out those that the program does not use."""
        if self.snapshots.input_count == len(self.call.signature.in_types):
            return self.snapshots
        with using(self.added), using_setting(self.overlap):
            _, snapshots = lower_for(self.call, self.partitioner, self.groups, "cpu", True)
        return snapshots

    def portable(self, platform: str) -> Portable:
        """Returns the program without its Python source, for devices of one platform.

        Args:
          platform: "cpu", "tpu" or "cuda".

        Returns:
          A `Portable`.

        Raises:
          TargetError: The program calls back into Python.
        """
        check_choice(self.call, "platform", platform, PLATFORMS)
        return self._portable(platform, self.overlap, None, is_kept=True)[0]

    def _portable(
        self,
        platform: str,
        setting: OverlapSetting,
        machine: Machine | None,
        *,
        is_kept: bool = False,
    ) -> tuple[Portable, Snapshots]:
        with using(self.added), using_setting(setting):
            program, snapshots = lower_portable(
                self.call, self.partitioner, self.groups, platform, machine, is_kept=is_kept
            )
        return Portable.of(program), snapshots

    def save(self, path: str | Path, platform: str = "cpu") -> None:
        """Saves the program as a portable StableHLO artifact with its signature.

        `load(path)` reads it back, without the source of the program; it can then be compiled for
        any devices of the platform.

        Args:
          path: The file to write.
          platform: "cpu", "tpu" or "cuda".

        Raises:
          TargetError: The program calls back into Python.
          ArtifactError: The program contains a value that cannot be saved.
        """
        self.portable(platform).save(path)
