"""Compiles a program for a target, in a separate process unless its devices are attached."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from jax.sharding import Mesh

from shmap_compiler.base.errors import Problem, TargetError
from shmap_compiler.graph.graph import Graph
from shmap_compiler.lowering.compiler_options import NO_OPTIONS, CompilerOptions
from shmap_compiler.lowering.portable_module import compile_portable
from shmap_compiler.records.portable_program import PortableProgram
from shmap_compiler.records.signature import Signature
from shmap_compiler.stages.compiled import Compiled
from shmap_compiler.stages.executable import Executable
from shmap_compiler.stages.memory_report import check_capacity, does_not_fit, read_demand
from shmap_compiler.stages.option_errors import refused_option, refused_options
from shmap_compiler.stages.subprocess_compiler import (
    Failure,
    compile_in_subprocess,
    places_in_subprocess,
)
from shmap_compiler.targets.gpu import GpuTarget
from shmap_compiler.targets.target import Target
from shmap_compiler.targets.tpu import TpuTarget

Progress = Callable[[str], None]

# What XLA says where the CUDA toolkit is missing.
_NO_ASSEMBLER = ("No PTX compilation provider", "libdevice not found")


def compile_for_target(
    program: PortableProgram,
    target: Target,
    progress: Progress,
    graph: Graph | None = None,
    options: CompilerOptions = NO_OPTIONS,
    *,
    apart: bool = False,
) -> Compiled:
    """A program compiled for the devices of a target.

    Args:
      progress: called with the name of each phase of a compilation elsewhere as it begins.
      graph: of the program, to name its arrays in errors.
      options: of the compiler.
      apart: whether to compile in a separate process also if the devices are attached.

    Raises:
      TargetError: it does not fit them, or what compiles for them is missing or refuses it.
    """
    signature = program.signature
    check_target(signature, target)
    if program.platform != target.platform:
        problem = Problem(
            target.where,
            f"a program lowered for {program.platform!r}",
            f"one lowered for {target.platform!r}",
            f"save it again: lower(...).save(path, platform={target.platform!r})",
        )
        raise TargetError(signature.who, [problem])
    if target.is_here and not apart:
        mesh = target_mesh(signature, target)
        with refused_options(signature.who, options.given):
            return Executable(signature.on(mesh), compile_portable(program, mesh, options), target)
    if isinstance(target, GpuTarget) and (problems := list(_on_host(signature))):
        raise TargetError(signature.who, problems)
    of_target = {**target.options_without_devices, **options.of_target}
    options = replace(options, of_target=of_target)
    try:
        compiled = compile_in_subprocess(program, target, progress, options)
    except Failure as failure:
        demand = read_demand(failure.message)
        problem = (
            refused_option(failure.message, options.given)
            or _refusal(failure, target, program.partitioner)
            if demand is None
            else does_not_fit(demand, target, signature, graph)
        )
        raise TargetError(signature.who, [problem]) from None
    check_capacity(compiled, graph)
    return compiled


def check_target(signature: Signature, target: Target) -> None:
    """Raises TargetError if a program's mesh does not fit a target, or its compiler is missing."""
    missing = [] if target.is_here else target.missing()
    problems = target.mesh_problems(signature.mesh.shape)
    if problems and not missing and (refused := _refused_arrangement(target)):
        problems = [refused]  # No mesh would fit.
    if missing or problems:
        raise TargetError(signature.who, [*missing, *problems])


def target_mesh(signature: Signature, target: Target) -> Mesh:
    """A mesh of the axes of a program over the devices of a target."""
    try:
        return target.mesh(signature.mesh.shape, signature.axis_types)
    except TargetError as error:
        raise TargetError(signature.who, error.problems) from None


def _on_host(signature: Signature) -> Iterator[Problem]:
    """The arguments on the host, which XLA takes to be on a GPU if it compiles without one."""
    closed_over = ["an array that the function closes over"] * len(signature.constants)
    paths = (*closed_over, *signature.in_paths)
    for path, kind in zip(paths, signature.in_memory_kinds, strict=True):
        if kind is not None:
            yield Problem(
                path,
                f"an array with memory_kind={kind!r}",
                "an array in the memory of the device: without a GPU, its compiler knows no other",
                "compile it where the GPU is attached, or pass the array without a memory kind",
            )


def _refused_arrangement(target: Target) -> Problem | None:
    """What libtpu says of an arrangement of chips that is not one of the usual ones."""
    if not isinstance(target, TpuTarget) or target.is_usual or target.is_here:
        return None
    try:
        places_in_subprocess(target, (("chips", target.device_count),))
    except Failure as failure:
        return _arrangement_problem(failure, target)
    return None


def _arrangement_problem(failure: Failure, target: Target) -> Problem | None:
    refuses = failure.phase == "topology" and failure.message.startswith("INVALID_ARGUMENT")
    if not refuses or not isinstance(target, TpuTarget):
        return None
    needed = "an arrangement of chips that libtpu takes"
    return target.refused(f"libtpu says: {failure.message}", needed)


def _refusal(failure: Failure, target: Target, partitioner: str) -> Problem:
    if (problem := _arrangement_problem(failure, target)) is not None:
        return problem
    if isinstance(target, GpuTarget) and any(text in failure.message for text in _NO_ASSEMBLER):
        return target.lacks("no ptxas or libdevice, with which its compiler ends")
    other = {"gspmd": "shardy", "shardy": "gspmd"}[partitioner]
    return Problem(
        target.where,
        f"{'an abort of the compiler' if failure.aborted else 'an error'} in the phase "
        f"{failure.phase!r}: {failure.message}",
        "a program that the compiler accepts",
        f"try partitioner={other!r}, or reduce the program to find what fails",
    )
