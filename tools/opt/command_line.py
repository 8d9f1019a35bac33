"""The command line of shmap-opt: options, and passes as flags."""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version

import shmap_passes
from shmap_passes import PASSES, Pass, PassPrinting, TextFormat
from shmap_passes.ir.printing import names_in

from ..usage import Parser
from .load_passes import load_passes
from .split_input import SEPARATOR

DEFAULT_PIPELINE = "shmap-pipeline"

_EPILOG = f"""\
Each pass is also a flag, with its options: --shmap-wrap-manual=partitioner=shardy, --canonicalize.
The order of the flags is the order of the passes. --{DEFAULT_PIPELINE} stands for the passes that
lower shard_map, as in --{DEFAULT_PIPELINE}='partitioner=shardy groups=ids'. --list-passes lists the
passes of this project.

exit status: 0 on success, 1 if a module is rejected, 2 if the command line is wrong."""


class UsageError(Exception):
    """The command line is wrong."""


@dataclass(frozen=True)
class Request:
    """What the command line asks for.

    Attributes:
      options: of the command line, other than passes.
      passes: what to run.
      known: the pass classes that can be named.
      argv: the command line.
    """

    options: argparse.Namespace
    passes: tuple[Pass | str, ...]
    known: tuple[type[Pass], ...]
    argv: tuple[str, ...]

    @property
    def text_format(self) -> TextFormat:
        """How modules are printed."""
        options = self.options
        return TextFormat(options.mlir_print_op_generic, options.mlir_print_debuginfo)

    @property
    def printing(self) -> PassPrinting:
        """Between which passes modules are printed."""
        options = self.options
        return PassPrinting(
            before=_names(options.mlir_print_ir_before),
            after=_names(options.mlir_print_ir_after),
            before_all=options.mlir_print_ir_before_all,
            after_all=options.mlir_print_ir_after_all,
            after_change=options.mlir_print_ir_after_change,
            after_failure=options.mlir_print_ir_after_failure,
            format=self.text_format,
        )


def parse(argv: Sequence[str]) -> Request:
    """Reads the command line.

    Raises:
      UsageError, PipelineError, LoadError: it is wrong.
      SystemExit: argparse rejects it, or it asks for help or the version.
    """
    parser = _parser()
    options, rest = parser.parse_known_args(argv)
    known = PASSES
    for path in options.load_pass:
        known += load_passes(path, known)
    strays = [word for word in rest if not word.startswith("--") or word == "--"]
    if strays:
        raise UsageError(f"unexpected argument {strays[0]!r}; one input FILE is taken")
    if rest and options.pass_pipeline is not None:
        raise UsageError(
            f"{rest[0]} and --pass-pipeline exclude each other; name all passes in one"
        )
    if options.emit_bytecode and options.split_input_file:
        raise UsageError(
            "--emit-bytecode and --split-input-file exclude each other; bytecode holds one module"
        )
    own = [flag for action in parser._actions for flag in action.option_strings]
    pipeline = options.pass_pipeline
    if pipeline is None:
        pipeline = f"builtin.module({','.join(_as_element(flag, own) for flag in rest)})"
    aliases = {DEFAULT_PIPELINE: shmap_passes.pipeline}
    passes = shmap_passes.parse_pipeline(pipeline, known, aliases)
    request = Request(options, passes, known, tuple(argv))
    _require_in_pipeline("--mlir-print-ir-before", request.printing.before, passes)
    _require_in_pipeline("--mlir-print-ir-after", request.printing.after, passes)
    return request


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="shmap-opt",
        description="Reads a module in MLIR text or bytecode, runs passes on it and prints it.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--version", action="version", version=_version())
    add("input", nargs="?", default="-", metavar="FILE", help="the module; '-' is standard input")
    add("-o", dest="output", default="-", metavar="FILE", help="where to write the result")
    add("--emit-bytecode", action="store_true", help="write MLIR bytecode instead of text")
    add("--split-input-file", action="store_true", help=f"split the input at '{SEPARATOR}' lines")
    add(
        "--verify-diagnostics",
        action="store_true",
        help="check diagnostics against 'expected-error @+1 {{text}}' comments in the input",
    )

    add(
        "--allow-unregistered-dialect",
        action="store_true",
        help="take ops and attributes of dialects that shmap-opt does not know",
    )

    group = parser.add_argument_group("passes")
    add = group.add_argument
    add("--pass-pipeline", metavar="TEXT", help="passes to run, as in 'builtin.module(cse,...)'")
    add("--list-passes", action="store_true", help="list this project's passes and their options")
    add(
        "--load-pass",
        action="append",
        default=[],
        metavar="FILE.py",
        help="also know every subclass of shmap_passes.Pass that FILE.py defines",
    )

    group = parser.add_argument_group("printing", "IR dumps and times go to standard error.")
    add = group.add_argument
    for when in ("before", "after"):
        add(
            f"--mlir-print-ir-{when}",
            action="append",
            default=[],
            metavar="PASS,...",
            help=f"print the module {when} these passes",
        )
        add(
            f"--mlir-print-ir-{when}-all",
            action="store_true",
            help=f"print the module {when} each pass",
        )
    add(
        "--mlir-print-ir-after-change",
        action="store_true",
        help="print the module after each pass that changed it",
    )
    add(
        "--mlir-print-ir-after-failure",
        action="store_true",
        help="print the module after a pass that failed",
    )
    add("--mlir-print-op-generic", action="store_true", help="print modules in the generic form")
    add("--mlir-print-debuginfo", action="store_true", help="print locations in modules")
    add("--mlir-timing", action="store_true", help="print how long each pass took")
    return parser


def _version() -> str:
    return f"shmap-opt {version('shmap_compiler')} (jaxlib {version('jaxlib')})"


def _as_element(flag: str, own: Sequence[str]) -> str:
    """`--name=options` as an element of a textual pipeline: `name{options}`."""
    name, equals, options = flag.removeprefix("--").partition("=")
    close = difflib.get_close_matches(f"--{name}", own, n=1, cutoff=0.8)
    if close:
        raise UsageError(f"there is no option --{name}; did you mean {close[0]}?")
    return f"{name}{{{options}}}" if equals else name


def _names(values: Sequence[str]) -> tuple[str, ...]:
    return tuple(name.strip() for value in values for name in value.split(",") if name.strip())


def _require_in_pipeline(option: str, names: Sequence[str], passes: Sequence[Pass | str]) -> None:
    known = {name for each in passes for name in names_in(str(each))}
    for name in names:
        if name not in known:
            listed = ", ".join(str(each).partition("{")[0] for each in passes) or "none"
            raise UsageError(f"{option}={name}: no such pass in this run; its passes: {listed}")
