"""`shmap explain`: what a program costs on a target, which need not be here."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..usage import Mistake, UsageError, read_all
from . import module_files, output, program, shared_options
from .progress import Progress

if TYPE_CHECKING:
    from shmap_compiler import ImportedModule, OverlapReport, Target
    from shmap_compiler.explain import Explanation, SideBySide
    from shmap_compiler.explain.conditions import Condition

    _Work = program.Program | program.AnyProgram | ImportedModule

NAME = "explain"
SUMMARY = "show what a program costs on a target: wire, compute, memory"
DESCRIPTION = """\
Compiles a function for a target, attached or not, and analyzes the optimized, scheduled program.
The function is shard_mapped, or anything that JAX can trace, such as a jitted training step or
jax.grad(f), with arguments that have shardings. Prints each collective with its source line, mesh
axes, bytes, modelled time and how much of it overlaps with computation, then compute by line,
totals, what bounds the run time, and memory. Targets are those of `shmap compile`. The formulas are
in docs/explain.md.

A file FILE.mlir holds a module instead, of any producer: in body form, with Shardy's manual
computations, or with GSPMD's custom calls. It is compiled for CPU devices if no target is given;
--mesh names and sizes the axes of its mesh, if it does not. Collectives that could deadlock are
listed at the end, also those of a module to compare with; exits with status 1 then.
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
  shmap explain module.mlir --mesh data=2,model=4 --target tpu:v5e:2x4
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    shared_options.add_arguments(parser, any_function=True, modules=True)
    parser.add_argument(
        "--target",
        dest="explain_for",
        metavar="TARGET",
        help="what to compile for; modules in files are compiled for CPU devices by default",
    )
    shared_options.add_compiler_options(parser)
    shared_options.add_overlap(parser)
    parser.add_argument(
        "--json", action="store_true", help="print all figures as JSON instead of tables"
    )
    parser.add_argument(
        "--html",
        metavar="FILE",
        help="write a page with the mesh, the blocks and a timeline; '-' is standard output",
    )
    parser.add_argument(
        "--trace",
        metavar="FILE",
        help="write the modelled run for Perfetto (ui.perfetto.dev); '-' is standard output",
    )
    parser.add_argument(
        "--against",
        metavar="OTHER",
        help="compare with another program, FILE.py:NAME or FILE.mlir, or with the same one on "
        "another target",
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
    conditions = read_all(
        *[lambda text=text: _condition(text) for text in options.conditions or ()]
    )
    files = {"--html": options.html, "--trace": options.trace}
    for option, path in files.items():
        output.require_writable(option, path)
    output.require_one_text({"--json": output.STDOUT if options.json else None, **files})
    with output.printing_beside(*files.values(), output.STDOUT if options.json else None):
        explanation, shown, hangs = _print(options)
    if options.json:
        print(shown.to_json())
    if options.html is not None:
        output.write("--html", options.html, shown.to_html())
    if options.trace is not None:
        output.write("--trace", options.trace, explanation.to_trace())
    status = _judge(explanation, conditions)
    return 1 if hangs else status


def _print(options: argparse.Namespace) -> tuple[Explanation, Explanation | SideBySide, bool]:
    """Prints the explanation, but for --json.

    Returns it, what --html and --json show, and whether a program hangs.
    """
    from shmap_compiler import Target

    work = _load(options)
    target = Target.parse(_target_text(options, work))
    other = _other(options, target)
    other_work = work if other is None or other[0] is options else _load(other[0])
    explanation = _explained(options, work, target)
    shown: Explanation | SideBySide = explanation
    if other is not None:
        shown = explanation.against(_explained(other[0], other_work, other[1]))
    if not options.json:
        print(explanation)
        report = _overlap_report(options, work, target)
        if report is not None:
            print(f"\n{report}")
        if other is not None:
            print(f"\n{shown}")
            if other_work is not work and (hangs := _hangs(other_work)):
                print("", *[f"note: could deadlock: {each}" for each in hangs], sep="\n")
    return explanation, shown, bool(_hangs(work) or _hangs(other_work))


def _hangs(work: _Work) -> tuple[str, ...]:
    """What could deadlock; functions are refused then, before they can be explained."""
    return () if isinstance(work, program.Program | program.AnyProgram) else work.hangs


def _load(options: argparse.Namespace) -> _Work:
    if module_files.names_module(options.target):
        return module_files.load(options)
    return program.load_any(options)


def _target_text(options: argparse.Namespace, work: _Work) -> str:
    if options.explain_for is not None:
        return options.explain_for
    if isinstance(work, program.Program | program.AnyProgram):
        fix = "write e.g. --target tpu:v5e:2x4"
        raise UsageError(Mistake("--target", "none", "what to compile for", fix))
    return f"cpu:{work.signature.mesh.size}"


def _other(options: argparse.Namespace, target: Target) -> tuple[argparse.Namespace, Target] | None:
    """The options and the target of what --against names: a program, or a target."""
    from shmap_compiler import Target

    text = options.against
    if text is None:
        return None
    kind, colon, _ = text.partition(":")
    is_program = colon and kind not in {known.kind for known in Target.__subclasses__()}
    if is_program or module_files.names_module(text):
        return argparse.Namespace(**{**vars(options), "target": text}), target
    return options, Target.parse(text)


def _explained(options: argparse.Namespace, work: _Work, target: Target) -> Explanation:
    given = shared_options.compiler_options(options)
    overlap = program.overlap_options(options)
    if not isinstance(work, program.Program | program.AnyProgram):
        with Progress(f"compiling for {target}") as progress:
            return work.explain(
                target,
                progress.phase,
                compiler_options=given,
                **overlap,
            )
    lowered = program.lower_for(work, options.partitioner, target, **overlap)
    with Progress(f"compiling for {target}") as progress:
        return lowered.compile(target, progress.phase, compiler_options=given).explain()


def _overlap_report(
    options: argparse.Namespace, work: _Work, target: Target
) -> OverlapReport | None:
    """What was chosen at each site; None if nothing was to be chosen."""
    from shmap_compiler.lowering.overlap import read_setting

    mode = read_setting(options.overlap, options.overlap_rounding).mode
    if mode == "off":
        return None
    overlap = program.overlap_options(options)
    if isinstance(work, program.AnyProgram):
        report = work.lower(target, **overlap).overlap_report(target)
        return report if report.choices else None
    if isinstance(work, program.Program):
        return work.lower(options.partitioner, **overlap).overlap_report(target)
    return work.overlap_report(target, **overlap)


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
