"""shmap-opt: reads a module in MLIR text or bytecode, runs passes on it, prints it.

    shmap-opt FILE --shmap-verify --shmap-wrap-manual=partitioner=shardy --canonicalize
    shmap-opt FILE --pass-pipeline='builtin.module(shmap-verify,canonicalize)'
    shmap-opt FILE --shmap-pipeline=partitioner=shardy --mlir-print-ir-after-change

The mlir-opt of this project. Passes of this project, of MLIR, StableHLO and Shardy can be mixed.
It does not import JAX, so it starts quickly.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Sequence
from pathlib import Path

import shmap_passes
from jaxlib.mlir import ir
from shmap_passes import Diagnostic, PassFailure, PipelineError, bytecode, reference, replace_file
from shmap_passes.files.parse import BYTECODE, UnreadableArtifact

from ..standard_streams import INTERRUPTED, drop_output, is_of_output, open_standard_streams
from ..usage import USAGE
from .command_line import Request, UsageError, parse
from .expected_diagnostics import mismatches
from .load_passes import LoadError
from .pass_list import pass_list
from .report import report, reproducer
from .split_input import SEPARATOR, split_input


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the tool on `argv` and returns its exit status."""
    open_standard_streams()
    argv = tuple(sys.argv[1:] if argv is None else argv)
    try:
        request = parse(argv)
        if request.options.list_passes:
            output, ok = pass_list(request.known).encode(), True
        else:
            output, ok = _process(request)
        if ok or request.options.output == "-":  # a refused module leaves the file as it was
            _write(output, request.options.output)
    except (UsageError, PipelineError, LoadError) as error:
        print(f"shmap-opt: error: {error} {reference(USAGE)}", file=sys.stderr)
        return 2
    except BrokenPipeError:  # the reader of our output is gone
        drop_output()
        return 1
    except KeyboardInterrupt:
        print("shmap-opt: error: interrupted", file=sys.stderr)
        return INTERRUPTED
    except OSError as error:
        if not is_of_output(error):
            raise
        drop_output()
        print(
            f"shmap-opt: error: cannot write to standard output: {error.strerror}", file=sys.stderr
        )
        return 1
    return 0 if ok else 1


def _process(request: Request) -> tuple[bytes, bool]:
    """Returns what to write and whether all went well. Diagnostics go to standard error."""
    options = request.options
    source = _read(options.input)
    name = "<stdin>" if options.input == "-" else options.input
    chunks = _chunks(source, options.input, options.split_input_file)
    printed, ok = [], True
    for chunk in chunks:
        result, diagnostics = _run(chunk, request)
        if result is not None:
            printed.append(result)
        shown = chunk if isinstance(chunk, str) else ""
        if options.verify_diagnostics:
            complaints = mismatches(shown, diagnostics)
            ok = ok and not complaints
            report(complaints, name, shown)
        elif diagnostics:
            ok = False
            report(diagnostics, name, shown)
    if not ok:
        command = reproducer(request.argv, options.input, source)
        print(f"to reproduce: {command}", file=sys.stderr)
    return f"{SEPARATOR}\n".encode().join(printed), ok


def _chunks(source: bytes, path: str, split: bool) -> Sequence[str | bytes]:
    """The modules of the input: one of bytecode, or one or several of text."""
    if source.startswith(BYTECODE):
        if split:
            raise UsageError("--split-input-file takes text; this input is bytecode")
        return [source]
    try:
        text = source.decode()
    except UnicodeDecodeError as error:
        raise UsageError(f"cannot read {path}: {error}") from None
    return split_input(text) if split else [text]


def _run(source: str | bytes, request: Request) -> tuple[bytes | None, tuple[Diagnostic, ...]]:
    """The module `source` after the passes, or the diagnostics of what went wrong."""
    with shmap_passes.make_context() as context:
        context.allow_unregistered_dialects = request.options.allow_unregistered_dialect
        try:
            module = shmap_passes.parse(source, context)
            shmap_passes.run(
                module,
                request.passes,
                printing=request.printing,
                timing=request.options.mlir_timing,
            )
        except ir.MLIRError as error:
            return None, shmap_passes.diagnostics_of(error)
        except PassFailure as failure:
            return None, failure.diagnostics
        except PipelineError:
            raise
        except UnreadableArtifact as error:
            return None, (Diagnostic("<unknown>", "error", str(error)),)
        except Exception as error:
            # Not for the user of a pass but for its author, who needs the traceback.
            traceback.print_exc()
            text = f"a pass raised {type(error).__name__}, which is a mistake in that pass"
            return None, (Diagnostic("<unknown>", "error", text),)
        if request.options.emit_bytecode:
            return bytecode(module.operation), ()
        return request.text_format.text(module.operation).encode(), ()


def _read(path: str) -> bytes:
    try:
        return _standard_input() if path == "-" else Path(path).read_bytes()
    except OSError as error:
        raise UsageError(f"cannot read {path}: {_reason(error)}") from None


def _standard_input() -> bytes:
    buffer = getattr(sys.stdin, "buffer", None)  # None if Python code has put text in its place
    return sys.stdin.read().encode() if buffer is None else buffer.read()


def _write(output: bytes, path: str) -> None:
    if path == "-":
        sys.stdout.flush()
        sys.stdout.buffer.write(output)
        sys.stdout.flush()
        return
    try:
        replace_file(path, output)
    except OSError as error:
        raise UsageError(f"cannot write {path}: {_reason(error)}") from None


def _reason(error: OSError) -> str:
    return error.strerror or str(error)


if __name__ == "__main__":
    sys.exit(main())
