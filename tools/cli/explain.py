"""`shmap explain`: what a program costs on a target, which need not be here."""

from __future__ import annotations

import argparse

from . import output, program
from .progress import Progress

NAME = "explain"
SUMMARY = "show what a program costs on a target: wire, compute, memory"
DESCRIPTION = """\
Compiles a shard_mapped function for a target, attached or not, and analyzes the optimized,
scheduled program. Prints each collective with its source line, mesh axes, bytes, modelled time and
how much of it overlaps with computation, then totals, what bounds the run time, and memory. Targets
are those of `shmap compile`. The formulas are in docs/explain.md.
"""
EPILOG = """\
examples:
  shmap explain examples/collective_matmul.py:two_way --target tpu:v5e:2x4 \\
      --arg 'bf16[16384,8192]' --arg 'bf16[8192,2048]'
  shmap explain examples/transformer_2d.py:transformer_layer --target tpu:v5p:2x2x2 --html page.html
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    program.add_arguments(parser)
    parser.add_argument(
        "--target", dest="explain_for", metavar="TARGET", required=True, help="what to compile for"
    )
    parser.add_argument(
        "--json", action="store_true", help="print all figures as JSON instead of tables"
    )
    parser.add_argument(
        "--html",
        metavar="FILE",
        help="write a page with the mesh, the blocks and a timeline",
    )


def execute(options: argparse.Namespace) -> int:
    from shmap_compiler import Target

    output.require_writable("--html", options.html)
    target = Target.parse(options.explain_for)
    lowered = program.load(options, needs_devices=False).lower(options.partitioner)
    with Progress(f"compiling for {target}") as progress:
        compiled = lowered.compile(target, progress.phase)
    explanation = compiled.explain()
    print(explanation.to_json() if options.json else explanation)
    if options.html is not None:
        output.write("--html", options.html, explanation.to_html())
    return 0
