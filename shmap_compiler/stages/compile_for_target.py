"""Compiles a program for a target: here if its devices are here, else in a process of its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from jax.sharding import Mesh

from shmap_compiler.base.errors import Problem, TargetError
from shmap_compiler.records.signature import Signature
from shmap_compiler.stages.compiled import Compiled
from shmap_compiler.stages.executable import Executable
from shmap_compiler.stages.memory_report import check_capacity, does_not_fit, read_demand
from shmap_compiler.stages.subprocess_compiler import Failure, compile_apart
from shmap_compiler.targets.gpu import GpuTarget
from shmap_compiler.targets.target import Target
from shmap_compiler.targets.tpu import TpuTarget

if TYPE_CHECKING:
    from shmap_compiler.graph.graph import Graph
    from shmap_compiler.stages.lowered import Lowered
    from shmap_compiler.stages.portable import Portable

Progress = Callable[[str], None]

# What XLA says where the CUDA toolkit is missing.
_NO_ASSEMBLER = ("No PTX compilation provider", "libdevice not found")


def compile_for(lowered: Lowered, target: Target, progress: Progress) -> Compiled:
    """A lowered program, compiled for the devices of a target.

    Raises:
      TargetError: it does not fit them, or what compiles for them is missing or refuses it.
    """
    signature = lowered.call.signature
    _check(signature, target)
    if target.is_here and isinstance(signature.mesh, Mesh):
        mesh = _mesh(signature, target)
        if list(mesh.devices.flat) == list(signature.mesh.devices.flat):
            return replace(lowered.compile(), target=target)
    return _compile(lowered.portable(target.platform), target, progress, lowered.graph)


def compile_portable(program: Portable, target: Target, progress: Progress) -> Compiled:
    """A program without its source, compiled for the devices of a target.

    Raises:
      TargetError: as of `compile_for`.
    """
    _check(program.signature, target)
    if program.platform != target.platform:
        problem = Problem(
            target.where,
            f"a program lowered for {program.platform!r}",
            f"one lowered for {target.platform!r}",
            f"save it again: lower(...).save(path, platform={target.platform!r})",
        )
        raise TargetError(program.signature.who, [problem])
    return _compile(program, target, progress, None)


def _check(signature: Signature, target: Target) -> None:
    problems = [] if target.is_here else target.missing()
    problems += target.mesh_problems(signature.mesh.shape)
    if problems:
        raise TargetError(signature.who, problems)


def _mesh(signature: Signature, target: Target) -> Mesh:
    try:
        return target.mesh(signature.mesh.shape, signature.axis_types)
    except TargetError as error:
        raise TargetError(signature.who, error.problems) from None


def _compile(
    program: Portable, target: Target, progress: Progress, graph: Graph | None
) -> Compiled:
    signature = program.signature
    if target.is_here:
        mesh = _mesh(signature, target)
        return Executable(signature.on(mesh), program.compile_on(mesh), target)
    try:
        compiled = compile_apart(program, target, progress)
    except Failure as failure:
        demand = read_demand(failure.message)
        problem = (
            _refusal(failure, target, program.partitioner)
            if demand is None
            else does_not_fit(demand, target, signature, graph)
        )
        raise TargetError(signature.who, [problem]) from None
    check_capacity(compiled, graph)
    return compiled


def _refusal(failure: Failure, target: Target, partitioner: str) -> Problem:
    refuses = failure.phase == "topology" and failure.message.startswith("INVALID_ARGUMENT")
    if refuses and isinstance(target, TpuTarget):
        needed = "an arrangement of chips that libtpu takes"
        return target.refused(f"libtpu says: {failure.message}", needed)
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
