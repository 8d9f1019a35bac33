"""`shmap lower`: prints a program at the stages of its way to XLA."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from ..usage import Mistake, UsageError
from . import output, program, shared_options

if TYPE_CHECKING:
    from shmap_compiler import Graph, Lowered

NAME = "lower"
SUMMARY = "print a program at one of its stages"
DESCRIPTION = """\
Traces a shard_mapped, xmapped or pmapped function and prints it at one of its stages:

  named      of a function that xmap returned: the program with the named shape of every value
  graph      the traced per-device program, with its mesh, specs and source lines
  body       the module emitted from it: StableHLO on per-device types
  stablehlo  the module handed to XLA, after all passes
  hlo        the program of one device that XLA made of it
  all        graph, body, stablehlo and hlo, each under a header

Up to stablehlo, the mesh may have more devices than are available (see --devices).
"""
EPILOG = """\
The file gives NAME, a shard_mapped function, and may give NAME_args, the tuple of its arguments or
a function that returns it.

examples:
  shmap lower examples/matmul.py:matmul_basic --stage graph
  shmap lower examples/matmul.py:matmul_basic --stage stablehlo --partitioner shardy -o out.mlir
  shmap lower examples/collective_matmul.py:plain --overlap=report --target tpu:v5e:2x4
  shmap lower examples/matmul.py:matmul_basic --mesh i=64,j=32 \\
      --arg 'bf16[8192,1024]' --arg 'bf16[1024,4096]'
"""
_STAGES = ("graph", "body", "stablehlo", "hlo")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    shared_options.add_arguments(parser)
    parser.add_argument(
        "--stage",
        choices=("named", *_STAGES, "all"),
        default="stablehlo",
        help="what to print (default: %(default)s)",
    )
    parser.add_argument(
        "--groups",
        choices=("axes", "one-axis", "ids"),
        default="axes",
        help="collectives name their groups by mesh axes (the default), or list device ids: "
        "of all groups, or of those along several axes",
    )
    shared_options.add_overlap(parser, "report")
    parser.add_argument(
        "--target",
        dest="report_for",
        metavar="TARGET",
        help="with --overlap=report: print, instead of the program, what would be chosen for this "
        "target, such as tpu:v5e:2x4",
    )
    shared_options.add_output(parser, "FILE", "what is printed")
    parser.add_argument(
        "--warn",
        action="store_true",
        help="print warnings on stderr about communication that is legal but probably unintended",
    )
    parser.add_argument(
        "--print-ir-after-all",
        action="store_true",
        help="print the module after emission and after each pass to stderr",
    )


def execute(options: argparse.Namespace) -> int:
    stages = _STAGES if options.stage == "all" else (options.stage,)
    if options.report_for is not None and options.overlap != "report":
        where = f"--target {options.report_for}"
        fix = "add --overlap=report, or use `shmap compile`, which compiles for a target"
        raise UsageError(Mistake(where, "no --overlap=report", "a report for this target", fix))
    output.require_writable("-o", options.output)
    with output.printing_beside(options.output or output.STDOUT):
        text = _printed(options, stages)
    output.write("-o", options.output or output.STDOUT, text)
    return 0


def _printed(options: argparse.Namespace, stages: tuple[str, ...]) -> str:
    """The text to print, of the stages or of the report; warnings are printed."""
    is_report = options.overlap == "report"
    work = program.load(options, needs_devices="hlo" in stages and not is_report)
    if is_report:
        lowered = work.lower(options.partitioner, overlap_rounding=options.overlap_rounding)
        return f"{lowered.overlap_report(options.report_for)}\n"
    if stages == ("named",):
        return work.named().rstrip() + "\n"
    if stages == ("graph",) and not options.print_ir_after_all:
        graph = work.trace()
        texts = [str(graph)]
    else:
        overlap = program.overlap_options(options)
        lowered = work.lower(options.partitioner, options.groups, **overlap)
        graph = lowered.graph
        if options.print_ir_after_all:
            _print_passes(lowered)
        texts = [lowered.as_text(stage) for stage in stages]
    if options.warn:
        _print_warnings(graph)
    if len(stages) > 1:
        texts = [f"// ----- stage: {s} -----\n{t}" for s, t in zip(stages, texts, strict=True)]
    return "\n".join(text.rstrip() + "\n" for text in texts)


def _print_warnings(graph: Graph) -> None:
    from shmap_compiler.checks.hangs import warnings

    for problem in warnings(graph):
        print(f"warning: {problem}", file=sys.stderr)


def _print_passes(lowered: Lowered) -> None:
    for name, text in lowered.passes:
        after = "emission" if name == "body" else name
        print(f"// -----// IR Dump After {after} //----- //\n{text}", file=sys.stderr)
