"""`shmap compile`: compiles a program for a target, here or not, and saves it."""

from __future__ import annotations

import argparse
import contextlib
import time
from collections.abc import Generator
from functools import partial
from typing import TYPE_CHECKING

from . import module_files, output, program, shared_options
from .progress import Progress
from .tables import print_table

if TYPE_CHECKING:
    from shmap_compiler import Compiled, ImportedModule, Target

NAME = "compile"
SUMMARY = "compile a program for a target and save it"
DESCRIPTION = """\
Compiles a function for a target: one that is shard_mapped, or anything that JAX can trace. The
devices of the target need not be attached: the compilers for TPUs and GPUs work without them.
Targets:

  cpu:8           virtual CPU devices
  tpu:v5e:2x4     a slice of TPUs: generation and arrangement of its chips (v5e, v5p,
                  v6e, tpu7x; one of tpu7x is two devices)
  gpu:h100:8      GPUs of a node; gpu:h200:2x8 is 2 nodes of 8
  local           the devices of this machine

The mesh must have as many devices as the target; use --mesh if the file's has not. Prints the
memory that the program needs on each device, its collectives, and times; with --overlap=measure,
also which program was kept, and why.

A file FILE.mlir holds a module instead, of any producer: in body form, with Shardy's manual
computations, or with GSPMD's custom calls. --mesh names and sizes the axes of its mesh, if it does
not. A module whose devices could deadlock is refused.
"""
EPILOG = """\
examples:
  shmap compile examples/matmul.py:matmul_basic --target tpu:v5e:2x4
  shmap compile examples/matmul.py:matmul_basic --target tpu:v5p:4x4x4 --mesh i=16,j=4 \\
      --arg 'bf16[8192,1024]' --arg 'bf16[1024,4096]' -o matmul.bin
  shmap compile module.mlir --mesh data=2,model=4 --target tpu:v5e:2x4 -o module.bin

With -o, shmap_compiler.load reads the compiled program where such devices are. It takes the
arguments of the function; docs/targets.md names those of which it takes the arrays only.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    shared_options.add_arguments(parser, any_function=True, modules=True)
    parser.add_argument(
        "--target", dest="compile_for", metavar="TARGET", required=True, help="what to compile for"
    )
    shared_options.add_compiler_options(parser)
    shared_options.add_overlap(parser)
    parser.add_argument("-o", metavar="FILE", dest="output", help="save the program to FILE")


def execute(options: argparse.Namespace) -> int:
    from shmap_compiler import Target
    from shmap_compiler.base.text_tables import show_seconds

    compiler_options = shared_options.compiler_options(options)
    output.require_writable("-o", options.output, is_text=False)
    target = Target.parse(options.compile_for)
    times: dict[str, float] = {}
    overlap = program.overlap_options(options)
    if module_files.names_module(options.target):
        module = _without_hangs(module_files.load(options))
        compile_program, partitioner = partial(module.compile, **overlap), module.partitioner
    else:
        work = program.load_any(options)
        with _timed(times, "lower"):
            lowered = program.lower_for(work, options.partitioner, target, **overlap)
        compile_program, partitioner = lowered.compile, lowered.partitioner
    with _timed(times, "compile"), Progress(f"compiling for {target}") as progress:
        compiled = compile_program(target, progress.phase, compiler_options=compiler_options)
    if options.output is not None:
        output.save("-o", options.output, lambda: compiled.save(options.output))
    _print_summary(compiled, target, partitioner)
    print_table(("time", ""), [(name, show_seconds(spent)) for name, spent in times.items()])
    for note in compiled.notes:
        print(f"\nnote: {note}")
    if options.output is not None:
        print(f"\nsaved: {options.output}")
    return 0


def _without_hangs(module: ImportedModule) -> ImportedModule:
    """Raises `HangError` for a module whose devices could deadlock."""
    from shmap_compiler import HangError
    from shmap_compiler.base.errors import Problem

    needed = "a collective that all of its devices reach"
    fix = "shmap simulate FILE.mlir shows where each device waits"
    if module.hangs:
        found = "could deadlock"
        raise HangError(
            module.signature.who, [Problem(h, found, needed, fix) for h in module.hangs]
        )
    return module


@contextlib.contextmanager
def _timed(times: dict[str, float], name: str) -> Generator[None]:
    started = time.perf_counter()
    yield
    times[name] = time.perf_counter() - started


def _print_summary(compiled: Compiled, target: Target, partitioner: str) -> None:
    from shmap_compiler.base.text_tables import show_bytes

    from .hlo_collectives import collectives

    print(f"{compiled.signature.summary}, target {target}, partitioner {partitioner}")
    memory = compiled.memory_analysis()
    figures = {
        "arguments": memory.argument_size_in_bytes,
        "results": memory.output_size_in_bytes,
        "of these in arguments": memory.alias_size_in_bytes,
        "temporaries": memory.temp_size_in_bytes,
        "program": memory.generated_code_size_in_bytes,
    }
    rows = [(name, show_bytes(count)) for name, count in figures.items()]
    if target.chip is not None:
        rows.append(("there is", f"{show_bytes(target.chip.hbm_bytes)} on a {target.chip.name}"))
    print_table(("memory of one device", ""), rows)
    kinds = collectives(compiled.as_text())
    print_table(
        ("collectives", "count", "bytes on each device"),
        [(c.kind, str(c.count), str(c.bytes)) for c in kinds] or [("none", "", "")],
    )
