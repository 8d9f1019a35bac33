"""shmap-opt: reads a module in MLIR text, runs passes on it, prints it.

    shmap-opt FILE --shmap-verify --shmap-wrap-manual=partitioner=shardy --canonicalize
    shmap-opt FILE --pass-pipeline='builtin.module(shmap-verify,canonicalize)'

The mlir-opt of this project. Passes of this project, of MLIR, StableHLO and Shardy mix freely.
It does not import JAX, so that it starts at once.
"""

from __future__ import annotations

import argparse
import difflib
import os
import shlex
import sys
import tempfile
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import shmap_passes
from jaxlib.mlir import ir
from shmap_passes import (
    PASSES,
    Diagnostic,
    Pass,
    PassFailure,
    PipelineError,
    reference,
    replace_file,
)

from ..usage import USAGE, Parser
from .expected_diagnostics import mismatches
from .load_passes import LoadError, load_passes
from .pass_list import pass_list
from .split_input import SEPARATOR, split_input

_OPTIONS = (
    "--pass-pipeline",
    "--split-input-file",
    "--verify-diagnostics",
    "--mlir-print-ir-after-all",
    "--list-passes",
    "--load-pass",
)

EPILOG = """\
Each pass is also a flag, with its options: --shmap-wrap-manual=partitioner=shardy, --canonicalize.
The order of the flags is the order of the passes. --list-passes lists those of this project.

Exit status: 0 if all went well, 1 if the module was refused, 2 if the command line is wrong."""


class UsageError(Exception):
    """The command line is wrong."""


@dataclass(frozen=True)
class Request:
    """What the command line asks for."""

    options: argparse.Namespace
    passes: tuple[Pass | str, ...]
    known: tuple[type[Pass], ...]
    argv: tuple[str, ...]


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the tool on `argv` and returns its exit status."""
    argv = tuple(sys.argv[1:] if argv is None else argv)
    try:
        request = _parse(argv)
        if request.options.list_passes:
            text, ok = pass_list(request.known), True
        else:
            text, ok = _process(request)
        if ok or request.options.output == "-":  # a refused module leaves the file as it was
            _write(text, request.options.output)
    except (UsageError, PipelineError, LoadError) as error:
        print(f"shmap-opt: error: {error} {reference(USAGE)}", file=sys.stderr)
        return 2
    except BrokenPipeError:
        # The reader of our output is gone. Keep Python from complaining again while it exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return 0 if ok else 1


# ---- the command line --------------------------------------------------------------------------


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="shmap-opt",
        description="Reads a module in MLIR text, runs passes on it, prints it.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--version", action="version", version=_version())
    add("input", nargs="?", default="-", metavar="FILE", help="the module; '-' is standard input")
    add("-o", dest="output", default="-", metavar="FILE", help="where to write the result")
    add("--pass-pipeline", metavar="TEXT", help="passes to run, as in 'builtin.module(cse,...)'")
    add("--split-input-file", action="store_true", help=f"the input is cut at '{SEPARATOR}' lines")
    add(
        "--verify-diagnostics",
        action="store_true",
        help="check diagnostics against 'expected-error @+1 {{text}}' comments in the input",
    )
    add(
        "--mlir-print-ir-after-all",
        action="store_true",
        help="print the module to standard error after each pass",
    )
    add("--list-passes", action="store_true", help="list this project's passes and their options")
    add(
        "--load-pass",
        action="append",
        default=[],
        metavar="FILE.py",
        help="also know every subclass of shmap_passes.Pass that FILE.py defines",
    )
    return parser


def _version() -> str:
    return f"shmap-opt {version('shmap_compiler')} (jaxlib {version('jaxlib')})"


def _parse(argv: tuple[str, ...]) -> Request:
    options, rest = _parser().parse_known_args(argv)
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
    pipeline = options.pass_pipeline
    if pipeline is None:
        pipeline = f"builtin.module({','.join(_as_element(flag) for flag in rest)})"
    return Request(options, shmap_passes.parse_pipeline(pipeline, known), known, argv)


def _as_element(flag: str) -> str:
    """`--name=options` as an element of a textual pipeline: `name{options}`."""
    name, equals, options = flag.removeprefix("--").partition("=")
    close = difflib.get_close_matches(f"--{name}", _OPTIONS, n=1, cutoff=0.8)
    if close:
        raise UsageError(f"there is no option --{name}; did you mean {close[0]}?")
    return f"{name}{{{options}}}" if equals else name


# ---- one run -----------------------------------------------------------------------------------


def _process(request: Request) -> tuple[str, bool]:
    """The text to print and whether all went well. Complaints go to standard error."""
    text = _read(request.options.input)
    name = "<stdin>" if request.options.input == "-" else request.options.input
    chunks = split_input(text) if request.options.split_input_file else [text]
    printed, ok = [], True
    for chunk in chunks:
        result, diagnostics = _run(chunk, request)
        if result is not None:
            printed.append(result)
        if request.options.verify_diagnostics:
            complaints = mismatches(chunk, diagnostics)
            ok = ok and not complaints
            _report(complaints, name, chunk)
        elif diagnostics:
            ok = False
            _report(diagnostics, name, chunk)
    if not ok:
        print(f"to reproduce: {_reproducer(request, text)}", file=sys.stderr)
    return f"{SEPARATOR}\n".join(printed), ok


def _run(text: str, request: Request) -> tuple[str | None, tuple[Diagnostic, ...]]:
    """The module `text` after the passes, or the diagnostics of what went wrong."""
    with shmap_passes.make_context() as context:
        try:
            module = ir.Module.parse(text, context)
            shmap_passes.run(
                module,
                request.passes,
                print_ir_after_all=request.options.mlir_print_ir_after_all,
            )
        except ir.MLIRError as error:
            return None, shmap_passes.diagnostics_of(error)
        except PassFailure as failure:
            return None, failure.diagnostics
        except PipelineError:
            raise
        except Exception as error:
            # Not for the user of a pass but for its author, who needs the traceback.
            traceback.print_exc()
            text = f"a pass raised {type(error).__name__}, which is a mistake in that pass"
            return None, (Diagnostic("<unknown>", "error", text),)
        return f"{module}", ()


def _read(path: str) -> str:
    try:
        return sys.stdin.read() if path == "-" else Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read {path}: {_reason(error)}") from None


def _write(text: str, path: str) -> None:
    if path == "-":
        sys.stdout.write(text)
        sys.stdout.flush()
        return
    try:
        replace_file(path, text)
    except OSError as error:
        raise UsageError(f"cannot write {path}: {_reason(error)}") from None


def _reason(error: Exception) -> str:
    return error.strerror if isinstance(error, OSError) and error.strerror else str(error)


# ---- what went wrong ---------------------------------------------------------------------------


def _report(diagnostics: Sequence[Diagnostic], name: str, source: str) -> None:
    """Prints diagnostics, each with the line of `source` that it is about."""
    lines = source.splitlines()
    for diagnostic in diagnostics:
        for part in (diagnostic, *diagnostic.notes):
            print(_line(part, name), file=sys.stderr)
            where = part.place.rsplit(":", 2)
            if where[0] == "-" and 1 <= int(where[1]) <= len(lines):
                print(lines[int(where[1]) - 1], file=sys.stderr)
                print(" " * (int(where[2]) - 1) + "^", file=sys.stderr)


def _line(diagnostic: Diagnostic, name: str) -> str:
    """MLIR calls a module that was parsed from text "-"."""
    place = f"{name}{diagnostic.place[1:]}" if diagnostic.place[:2] == "-:" else diagnostic.place
    return f"{place}: {diagnostic.severity}: {diagnostic.message}"


def _reproducer(request: Request, text: str) -> str:
    """The command that does the same again; standard input is kept in a file for it."""
    words = list(request.argv)
    if request.options.input == "-":
        with tempfile.NamedTemporaryFile(
            "w", prefix="shmap-opt-", suffix=".mlir", delete=False, encoding="utf-8"
        ) as kept:
            kept.write(text)
        words = [word for word in words if word != "-"]
        words.append(kept.name)
    return shlex.join(["shmap-opt", *words])


if __name__ == "__main__":
    sys.exit(main())
