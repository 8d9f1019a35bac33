"""Compiles for TPUs in this process, for benchmarks of many small programs.

`compile(target=...)` starts a process for each program, as a compiler may abort its process. Most
of the time then goes into loading libtpu: a small program takes 5 s of CPU time, and 0.5 s here.
"""

import functools
import os
import tempfile
from dataclasses import replace
from pathlib import Path

from shmap_compiler import Target
from shmap_compiler.artifacts import write_executable
from shmap_compiler.artifacts.container import unpack
from shmap_compiler.base.jax_compat import compiling_for
from shmap_compiler.lowering.compiler_options import NO_OPTIONS, compile_with
from shmap_compiler.lowering.portable_module import lower_portable
from shmap_compiler.records.loaded_program import LoadedProgram
from shmap_compiler.stages import compile_for_target, compile_overlapped
from shmap_compiler.stages.compiled import CompiledForTarget
from shmap_compiler.stages.subprocess_compiler import Failure


def compile_in_this_process(text="tpu:v5e:2x4"):
    """Lets `compile(target=...)` compile for TPUs here. Call it before libtpu is loaded.

    Args:
      text: any TPU; programs may be compiled for others.
    """
    os.environ.update(Target.parse(text).environment)
    compile_for_target.compile_in_subprocess = _compiled
    compile_overlapped.places_in_subprocess = _places


def _compiled(program, target, progress, options=NO_OPTIONS):
    progress("lowering")
    signature = program.signature.flat()
    mesh = target.mesh(signature.mesh.shape, signature.axis_types)
    lowered = lower_portable(replace(program, signature=signature), mesh)
    progress("compiling")
    try:
        with compiling_for(program.partitioner):
            compiled = compile_with(lowered, options, print)
    except (RuntimeError, ValueError, NotImplementedError) as error:
        raise Failure("compiling", str(error), aborted=False) from None
    with tempfile.TemporaryDirectory(prefix="shmap_") as folder:
        file = Path(folder, "compiled")
        loaded = LoadedProgram(signature.on(mesh), compiled, target)
        file.write_bytes(write_executable(loaded))
        return CompiledForTarget(program.signature, target, unpack(file))


@functools.lru_cache(maxsize=64)
def _places(target, sizes):
    return tuple(target.place(device) for device in target.mesh(dict(sizes)).devices.flat)
