"""Compiles one saved program for a target, in a process that subprocess_compiler.py starts.

    python subprocess_worker.py PROGRAM TARGET RESULT OPTIONS

OPTIONS are the fields of CompilerOptions as JSON. Reports on standard output, in lines of JSON:
{"phase": ...} as each phase begins, {"note": ...}, and {"failure": ...} at the end if there is one.
The phases are "topology" (the compiler is loaded and makes the devices of the target), "lowering",
"compiling" and "saving".
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import jax

from shmap_compiler.artifacts import write_executable
from shmap_compiler.base.jax_compat import compiling_for
from shmap_compiler.base.worker_process import end_with_starter
from shmap_compiler.lowering.compiler_options import CompilerOptions, compile_with
from shmap_compiler.lowering.portable_module import lower_portable
from shmap_compiler.records.loaded_program import LoadedProgram
from shmap_compiler.stages.loading import load
from shmap_compiler.stages.portable import Portable
from shmap_compiler.targets import Target


def main(source: str, text: str, result: str, options: str) -> int:
    program, target = load(source), Target.parse(text)
    assert isinstance(program, Portable), "subprocess_compiler.py saves such a program"
    try:
        contents = _compiled(program, target, CompilerOptions(**json.loads(options)))
    except (jax.errors.JaxRuntimeError, ValueError, NotImplementedError) as error:
        _report(failure=str(error))
        return 1
    Path(result).write_bytes(contents)
    return 0


def _compiled(program: Portable, target: Target, options: CompilerOptions) -> bytes:
    _report(phase="topology")
    signature = program.signature
    mesh = target.mesh(signature.mesh.shape, signature.axis_types)
    _report(phase="lowering")
    lowered = lower_portable(program, mesh)
    _report(phase="compiling")
    with compiling_for(program.partitioner):
        compiled = compile_with(lowered, options, lambda text: _report(note=text))
    _report(phase="saving")
    return write_executable(LoadedProgram(signature.on(mesh), compiled, target))


def _report(**what: str) -> None:
    print(json.dumps(what), flush=True)


if __name__ == "__main__":
    end_with_starter()
    sys.exit(main(*sys.argv[1:]))
