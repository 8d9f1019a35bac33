"""The command `shmap`: looks at shard_mapped programs and runs them.

Each subcommand is a module with NAME, SUMMARY, DESCRIPTION, EPILOG, `add_arguments(parser)` and
`execute(options)`, which returns the exit status. A module imports JAX inside `execute` only: until
then the number of devices can be chosen, and help is printed at once. Commands of `APART`, which
compile whole programs of the user's, run in a process of their own.
"""

from __future__ import annotations

import argparse
import sys
import traceback
from collections.abc import Sequence
from importlib import import_module
from importlib.metadata import version
from types import ModuleType

from ..standard_streams import INTERRUPTED, drop_output, is_of_output, open_standard_streams
from ..usage import USER_CODE, Mistake, Parser, UsageError
from . import (
    apart,
    compile,
    demo,
    explain,
    lower,
    run,
    shardings,
    shared_options,
    simulate,
    unjit,
    validate,
)

COMMANDS = (lower, run, simulate, validate, compile, explain, unjit, shardings, demo)
APART = (unjit, shardings, compile)

_DESCRIPTION = """\
A compiler for shard_map: per-device JAX functions to XLA's partitioner.

A program is named FILE.py:NAME, where NAME is a function of shard_map, xmap or pmap in that file;
some commands also take functions of jax.jit. The file may also give NAME_args, the tuple of its
arguments (arrays or jax.ShapeDtypeStructs) or a function that returns it, and
NAME_reference, an unsharded function of the same arguments.
"""
_EPILOG = """\
exit status: 0, 1 if the program is wrong or differs from its reference, 2 if the command line or an
environment variable is wrong. See also shmap-opt, which runs passes on MLIR files.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit status."""
    open_standard_streams()
    options = _parser().parse_args(argv)
    shared_options.request_devices(options)
    if options.command not in APART:
        return _run(options)
    try:
        return apart.run(lambda: _run(options))
    except apart.Died as death:
        return _fail(options.command, _message(_death(options, death)), 1)


def _run(options: argparse.Namespace) -> int:
    command = options.command
    try:
        _import_compiler()
        status = command.execute(options)
        sys.stdout.flush()
        return status
    except UsageError as error:
        return _fail(command, str(error), 2)
    except BrokenPipeError:  # the reader, e.g. `head`, has gone
        drop_output()
        return 1
    except KeyboardInterrupt:
        return _fail(command, "interrupted", INTERRUPTED)
    except OSError as error:
        if not is_of_output(error):
            return _failed(options, error)
        drop_output()
        return _fail(command, f"cannot write to standard output: {error.strerror}", 1)
    except Exception as error:
        return _failed(options, error)


def _import_compiler() -> None:
    """Imports the compiler and JAX, which read variables of the environment as they are imported.

    Raises:
      UsageError: the value of one is not valid.
    """
    try:
        import_module("shmap_compiler")
    except Exception as error:
        # Problems are those of a ShmapError, a class that cannot be imported now.
        problems = getattr(error, "problems", ())
        mistakes = [Mistake(p.where, p.found, p.needed, p.fix) for p in problems]
        if isinstance(error, ValueError):
            needed = "an environment that JAX accepts"
            fix = "correct or unset its variables, such as JAX_ENABLE_X64"
            mistakes.append(Mistake("importing JAX", str(error), needed, fix))
        if not mistakes:
            raise
        raise UsageError(*mistakes) from None


def _failed(options: argparse.Namespace, error: Exception) -> int:
    if options.verbose:
        traceback.print_exc()
    return _fail(options.command, _message(error), _status(error))


def _status(error: Exception) -> int:
    """The exit status of an error: 2 if nothing is wrong but what the command line asks for."""
    from shmap_compiler import ShmapError
    from shmap_compiler.base.errors import OptionProblem

    problems = error.problems if isinstance(error, ShmapError) else ()
    return 2 if problems and all(isinstance(p, OptionProblem) for p in problems) else 1


def _death(options: argparse.Namespace, death: apart.Died) -> Exception:
    from shmap_compiler import TargetError
    from shmap_compiler.base.errors import Problem, ProgramName

    problem = Problem(
        "the process that ran it",
        f"ended by {death.name}; what it wrote last is above",
        "a program that XLA compiles and runs",
        "reduce the program until XLA compiles it, to find what it fails on",
    )
    return TargetError(ProgramName(options.target), [problem])


def _message(error: Exception) -> str:
    """The text of an error: with a traceback only if the error is a defect of this project."""
    import jax
    from shmap_passes import PassFailure, reference

    from shmap_compiler import ShmapError

    from .program_files import UserCodeError

    if isinstance(error, ShmapError):
        return str(error)
    if isinstance(error, UserCodeError):
        return f"{error}\n{reference(USER_CODE)}"
    if isinstance(error, PassFailure):
        return f"a pass rejected the module\n{error}"
    if isinstance(error, jax.errors.JaxRuntimeError):
        return f"XLA: {error}"
    return "this is a defect of shmap itself\n" + "".join(traceback.format_exception(error))


def _fail(command: ModuleType, message: str, status: int) -> int:
    print(f"shmap {command.NAME}: error: {message}", file=sys.stderr)
    return status


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        "shmap",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=_version())
    subparsers = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for command in COMMANDS:
        subparser = subparsers.add_parser(
            command.NAME,
            help=command.SUMMARY,
            description=command.DESCRIPTION,
            epilog=command.EPILOG,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        command.add_arguments(subparser)
        subparser.set_defaults(command=command)
    return parser


def _version() -> str:
    packages = ("jax", "jaxlib")
    return f"shmap {version('shmap_compiler')} ({', '.join(f'{p} {version(p)}' for p in packages)})"
