"""Compiles in a separate process: compilers may abort it, or need another environment."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from shmap_compiler.artifacts import write_portable
from shmap_compiler.artifacts.container import unpack
from shmap_compiler.base.jax_compat import setting
from shmap_compiler.base.untyped import Unchecked
from shmap_compiler.base.values import are_wide
from shmap_compiler.base.worker_process import reason_of_abort
from shmap_compiler.lowering.compiler_options import NO_OPTIONS, CompilerOptions
from shmap_compiler.records.portable_program import PortableProgram
from shmap_compiler.stages.compiled import CompiledForTarget
from shmap_compiler.targets.target import Target

# Run as a file: frames of `python -m` would appear among the source lines of the program.
_WORKER = Path(__file__).with_name("subprocess_worker.py")
_PLACES_WORKER = _WORKER.with_name("places_worker.py")


class Failure(Exception):
    """The compiler of a target failed.

    Attributes:
      phase: when; see subprocess_worker.py.
      message: its message.
      aborted: whether it aborted its process.
    """

    def __init__(self, phase: str, message: str, aborted: bool):
        super().__init__(message)
        self.phase, self.message, self.aborted = phase, message, aborted


def compile_in_subprocess(
    program: PortableProgram,
    target: Target,
    progress: Callable[[str], None],
    options: CompilerOptions = NO_OPTIONS,
) -> CompiledForTarget:
    """A program compiled for devices that are not here.

    Args:
      progress: called with the name of each phase as it begins.
      options: of the compiler; warns of those of the target that it does not know.

    Raises:
      Failure: the compiler refuses the target or the program.
    """
    with tempfile.TemporaryDirectory(prefix="shmap_") as folder:
        source, result = Path(folder, "program"), Path(folder, "compiled")
        flat = replace(program, signature=program.signature.flat())
        source.write_bytes(write_portable(flat))
        arguments = [str(source), target.text, str(result), json.dumps(asdict(options))]
        is_wide = are_wide((*program.signature.in_types, *program.signature.out_types))
        _run(_WORKER, arguments, target, progress, is_wide=is_wide)
        return CompiledForTarget(program.signature, target, unpack(result))


@functools.lru_cache(maxsize=64)
def places_in_subprocess(
    target: Target, sizes: tuple[tuple[str, int], ...]
) -> tuple[Unchecked, ...]:
    """The coordinates of each device of a mesh of these axes, by position in the mesh.

    Raises:
      Failure: the compiler refuses the target.
    """
    arguments = [target.text, json.dumps(dict(sizes))]
    reports = _run(_PLACES_WORKER, arguments, target, lambda _: None)
    return tuple(tuple(place) for place in reports["places"])


def _run(
    worker: Path,
    arguments: list[str],
    target: Target,
    progress: Callable[[str], None],
    *,
    is_wide: bool = False,
) -> dict[str, Unchecked]:
    """Runs a worker until it exits; reads its reports, lines of JSON on its standard output.

    Returns the last report of each kind.
    """
    reports: dict[str, Any] = {}
    with tempfile.TemporaryFile("w+", errors="replace") as log:
        process = subprocess.Popen(
            [sys.executable, "-P", str(worker), *arguments],
            env=_environment(target, is_wide),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
        phase, failure = "start", ""
        with process:  # which closes the input, at which the worker ends
            assert process.stdout is not None, "asked for above"
            for line in process.stdout:
                report = _report(line)
                if "phase" in report:
                    phase = report["phase"]
                    progress(phase)
                if "note" in report:
                    warnings.warn(report["note"], stacklevel=2)
                failure = report.get("failure", failure)
                reports |= report
        log.seek(0)
        if process.returncode < 0:
            raise Failure(phase, reason_of_abort(log.read()), aborted=True)
        if failure:
            raise Failure(phase, failure, aborted=False)
        if process.returncode:
            raise RuntimeError(f"a defect of {worker.name}\n{log.read()}")
    return reports


def _environment(target: Target, is_wide: bool) -> dict[str, str]:
    """The environment of this process, with JAX's current settings and what the compiler needs."""
    return {
        "TF_CPP_MIN_LOG_LEVEL": "2",
        **os.environ,
        **target.environment,
        "JAX_PLATFORMS": "cpu",
        "JAX_ENABLE_X64": str(is_wide or bool(setting("jax_enable_x64"))),
        # The worker imports from the same places.
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
    }


def _report(line: str) -> dict[str, Unchecked]:
    """The report in a line of output; empty for other lines, which a compiler may print."""
    try:
        report = json.loads(line)
    except ValueError:
        return {}
    return report if isinstance(report, dict) else {}
