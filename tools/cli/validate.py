"""`shmap validate`: compares a program after each pass with the program before it."""

from __future__ import annotations

import argparse
import contextlib
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ..opt.load_passes import LoadError, load_passes
from ..usage import Mistake, UsageError
from . import program, shared_options

if TYPE_CHECKING:
    from shmap_passes import Pass

    from shmap_compiler.base.untyped import Function

NAME = "validate"
SUMMARY = "compare a program after each pass with the program before it, by simulation"
DESCRIPTION = """\
Simulates a shard_mapped function after emission and after each pass, and compares the results of
all devices: bitwise where the pass promises it, else up to the order of additions. The last module
is also compared with what XLA computes, and with NAME_reference, if the file defines it. Prints the
pass, the result, the device and the source line of the first difference. Exits with status 1 if
anything differs.

Passes of your own join the pipeline: --load-pass loads the classes of a file and adds each with its
default options, --pass adds one by name.
"""
EPILOG = """\
examples:
  shmap validate examples/transformer_2d.py:transformer_layer --seeds 3
  shmap validate examples/matmul.py:matmul_basic --partitioner shardy --against none
  shmap validate examples/fsdp.py:training_step --load-pass my_pass.py --after shmap-verify
  shmap validate examples/fsdp.py:training_step --pass 'canonicalize' --pass 'cse'
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    shared_options.add_arguments(parser)
    parser.add_argument(
        "--against",
        choices=("all", "xla", "reference", "none"),
        default="all",
        help="what else to compare the last module with (default: %(default)s)",
    )
    parser.add_argument(
        "--seeds",
        metavar="N",
        type=shared_options.count,
        default=1,
        help="how often to compare: on the arguments of the file, then on random ones (default: 1)",
    )
    parser.add_argument(
        "--load-pass",
        metavar="FILE.py",
        action="append",
        default=[],
        help="load the pass classes that this file defines",
    )
    parser.add_argument(
        "--pass",
        metavar="TEXT",
        action="append",
        dest="added",
        default=[],
        help="add this pass to the pipeline, such as 'canonicalize' or 'my-pass{option=3}'",
    )
    place = parser.add_mutually_exclusive_group()
    place.add_argument("--before", metavar="PASS", help="run added passes before this one")
    place.add_argument("--after", metavar="PASS", help="run added passes after this one")


def execute(options: argparse.Namespace) -> int:
    from shmap_compiler import passes

    from . import random_data

    if (options.before or options.after) and not (options.added or options.load_pass):
        where = f"--{'before' if options.before else 'after'}"
        fix = "add one with --pass, or leave the place out"
        raise UsageError(Mistake(where, "no pass to add", "a pass that is added there", fix))
    against_xla = options.against in ("all", "xla")
    work = program.load(options, needs_devices=against_xla)
    work = replace(work, args=random_data.fill(work.args, 0))
    added = _added(options)
    adding: Any = contextlib.nullcontext()
    if added:
        adding = passes(*added, before=options.before, after=options.after)
    with adding:
        lowered = work.lower(options.partitioner)
        reference = None
        if options.against in ("all", "reference") and work.function.reference is not None:
            reference = _reference(work)
        if options.against == "reference" and reference is None:
            name = f"{work.function.name}_reference"
            fix = f"define {name}, an unsharded function of the same arguments"
            raise UsageError(Mistake("--against reference", f"no {name}", "a reference", fix))
        validation = lowered.validate(
            *work.inputs, reference=reference, seeds=options.seeds, xla=against_xla
        )
    print(validation)
    return 0 if validation.holds else 1


def _reference(work: program.Program) -> Function:
    """The user's reference, with arguments and results as those of the lowered program."""
    from shmap_compiler import Pmapped
    from shmap_compiler.pmap.results import rows_first

    mapped, run = work.mapped, work.function.run_reference
    if isinstance(mapped, Pmapped):
        return lambda *inputs: rows_first(mapped.out_axes, run(work.with_inputs(inputs)))
    return lambda *inputs: run(inputs)


def _added(options: argparse.Namespace) -> list[Pass | str]:
    """The passes that the command line adds."""
    from shmap_passes import PASSES, PipelineError, parse_pipeline

    known: tuple[type[Pass], ...] = PASSES
    for path in options.load_pass:
        try:
            known += load_passes(path, known)
        except LoadError as error:
            fix = "define a frozen dataclass that inherits from shmap_passes.Pass"
            raise UsageError(Mistake("--load-pass", str(error), "a file of passes", fix)) from None
    loaded = [cls.name for cls in known[len(PASSES) :]]
    elements: list[Pass | str] = []
    for text in options.added or loaded:
        try:
            elements += parse_pipeline(f"builtin.module({text})", known)
        except PipelineError as error:
            fix = "`shmap-opt --list-passes` lists the passes of this project"
            raise UsageError(Mistake(f"--pass {text}", str(error), "a pass", fix)) from None
    return elements
