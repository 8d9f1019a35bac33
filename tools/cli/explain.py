"""`shmap explain`: what a program costs on a target, which need not be here."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..usage import Mistake, UsageError, read_all
from . import output, program, shared_options
from .progress import Progress

if TYPE_CHECKING:
    from shmap_compiler import Target
    from shmap_compiler.explain import Explanation, SideBySide
    from shmap_compiler.explain.conditions import Condition

NAME = "explain"
SUMMARY = "show what a program costs on a target: wire, compute, memory"
DESCRIPTION = """\
Compiles a function for a target, attached or not, and analyzes the optimized, scheduled program.
The function is shard_mapped, or anything that JAX can trace, such as a jitted training step or
jax.grad(f), with arguments that have shardings. Prints each collective with its source line, mesh
axes, bytes, modelled time and how much of it overlaps with computation, then compute by line,
totals, what bounds the run time, and memory. Targets are those of `shmap compile`. The formulas are
in docs/explain.md.
"""
EPILOG = """\
examples:
  shmap explain examples/collective_matmul.py:two_way --target tpu:v5e:2x4 \\
      --arg 'bf16[16384,8192]' --arg 'bf16[8192,2048]'
  shmap explain examples/transformer_2d.py:transformer_layer --target tpu:v5p:2x2x2 --html page.html
  shmap explain examples/collective_matmul.py:plain --target tpu:v5e:4x2 \\
      --against examples/collective_matmul.py:two_way --html page.html
  shmap explain examples/matmul.py:matmul_basic --target tpu:v5e:2x4 --against tpu:v6e:2x4 \\
      --trace trace.json --fail-if 'exposed > 1ms'
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    shared_options.add_arguments(parser)
    parser.add_argument(
        "--target", dest="explain_for", metavar="TARGET", required=True, help="what to compile for"
    )
    shared_options.add_compiler_options(parser)
    shared_options.add_overlap(parser)
    parser.add_argument(
        "--json", action="store_true", help="print all figures as JSON instead of tables"
    )
    parser.add_argument(
        "--html",
        metavar="FILE",
        help="write a page with the mesh, the blocks and a timeline",
    )
    parser.add_argument(
        "--trace", metavar="FILE", help="write the modelled run for Perfetto (ui.perfetto.dev)"
    )
    parser.add_argument(
        "--against",
        metavar="OTHER",
        help="compare with another program, FILE.py:NAME, or with the same one on another target",
    )
    parser.add_argument(
        "--fail-if",
        metavar="CONDITION",
        action="append",
        dest="conditions",
        help="end with status 1 if a condition holds, e.g. 'exposed > 1ms' or 'memory > 12GiB'; "
        "can be given several times",
    )


def execute(options: argparse.Namespace) -> int:
    from shmap_compiler import Target

    conditions = read_all(
        *[lambda text=text: _condition(text) for text in options.conditions or ()]
    )
    output.require_writable("--html", options.html)
    output.require_writable("--trace", options.trace)
    target = Target.parse(options.explain_for)
    other = _other(options, target)
    work = program.load_any(options)
    other_work = work if other is None or other[0] is options else program.load_any(other[0])
    explanation = _explained(options, work, target)
    shown: Explanation | SideBySide = explanation
    if other is not None:
        shown = explanation.against(_explained(other[0], other_work, other[1]))
    if options.json:
        print(shown.to_json())
    else:
        print(explanation)
        if isinstance(work, program.Program):
            lowered = work.lower(options.partitioner, **program.overlap_options(options, work))
            if lowered.overlap.mode != "off":
                print(f"\n{lowered.overlap_report(target)}")
        if other is not None:
            print(f"\n{shown}")
    if options.html is not None:
        output.write("--html", options.html, shown.to_html())
    if options.trace is not None:
        output.write("--trace", options.trace, explanation.to_trace())
    return _judge(explanation, conditions)


def _other(options: argparse.Namespace, target: Target) -> tuple[argparse.Namespace, Target] | None:
    """The options and the target of what --against names: a program, or a target."""
    from shmap_compiler import Target

    text = options.against
    if text is None:
        return None
    kind, colon, _ = text.partition(":")
    if colon and kind not in {known.kind for known in Target.__subclasses__()}:
        return argparse.Namespace(**{**vars(options), "target": text}), target
    return options, Target.parse(text)


def _explained(
    options: argparse.Namespace, work: program.Program | program.AnyProgram, target: Target
) -> Explanation:
    overlap = program.overlap_options(options, work)
    lowered = program.lower_for(work, options.partitioner, target, **overlap)
    given = shared_options.compiler_options(options)
    with Progress(f"compiling for {target}") as progress:
        return lowered.compile(target, progress.phase, compiler_options=given).explain()


def _condition(text: str) -> Condition:
    from shmap_compiler.explain.conditions import parse_condition

    try:
        return parse_condition(text)
    except ValueError as error:
        fix = "write e.g. --fail-if 'exposed > 1ms'"
        raise UsageError(Mistake("--fail-if", repr(text), str(error), fix)) from None


def _judge(explanation: Explanation, conditions: Sequence[Condition]) -> int:
    """The exit status: 1 if a condition holds."""
    status = 0
    for condition in conditions:
        try:
            found = condition.holds(explanation)
        except ValueError as error:
            fix = "use a target with published figures, e.g. tpu:v5e:2x4"
            needed = "a figure of this target"
            raise UsageError(Mistake("--fail-if", str(error), needed, fix)) from None
        if found is not None:
            print(f"shmap explain: {found}", file=sys.stderr)
            status = 1
    return status
