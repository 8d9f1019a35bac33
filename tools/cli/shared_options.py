"""The options that several commands share. Nothing here imports JAX."""

from __future__ import annotations

import argparse
import math

from ..usage import Mistake, UsageError, read_all
from . import virtual_devices
from .virtual_devices import DEFAULT_COUNT as DEFAULT_DEVICES


def add_arguments(
    parser: argparse.ArgumentParser, *, any_function: bool = False, modules: bool = False
) -> None:
    """The arguments that all commands on programs share.

    Args:
      any_function: the command takes functions that are not mapped, too.
      modules: it takes modules in files, too.
    """
    what = "a shard_mapped, xmapped or pmapped function"
    parser.add_argument(
        "target",
        metavar="FILE.py:NAME",
        help=f"{what}{', or any that JAX can trace,' if any_function else ''} in a file; "
        f"package.module:NAME works too{', and a module, FILE.mlir' if modules else ''}",
    )
    parser.add_argument(
        "--mesh",
        metavar="AXIS=SIZE,...",
        help="run on a mesh of this shape, e.g. i=4,j=2, instead of the file's own",
    )
    parser.add_argument(
        "--arg",
        metavar="TYPE",
        action="append",
        dest="args",
        help="type of an argument, e.g. 'f32[8,16]' or 'i32[]'; once for each argument, "
        "instead of the file's NAME_args",
    )
    add_partitioner(parser)
    parser.add_argument(
        "--devices",
        metavar="N",
        type=count,
        default=DEFAULT_DEVICES,
        help="number of virtual CPU devices that the file sees (default: %(default)s)",
    )
    add_verbose(parser)


def add_partitioner(parser: argparse.ArgumentParser) -> None:
    """The argument that chooses the form of the module that XLA receives."""
    parser.add_argument(
        "--partitioner",
        choices=("gspmd", "shardy"),
        help="the form that XLA gets: full-to-shard custom calls (gspmd) or a manual computation "
        "(shardy); default: gspmd, or shardy where an axis of the mesh is automatic",
    )


def add_compiler_options(parser: argparse.ArgumentParser) -> None:
    """The argument that passes options to the compiler."""
    parser.add_argument(
        "--option",
        metavar="NAME=VALUE",
        action="append",
        dest="compiler_options",
        help="an option of XLA or of the target's compiler, e.g. "
        "xla_tpu_enable_async_all_to_all=true; can be given several times",
    )


def add_output(parser: argparse.ArgumentParser, metavar: str, text: str) -> None:
    """The argument that names a file of text to write; None is the default, standard output.

    Args:
      text: what is written there, for the help.
    """
    parser.add_argument(
        "-o",
        dest="output",
        metavar=metavar,
        help=f"write {text} to {metavar}; '-' is standard output, the default",
    )


def add_overlap(parser: argparse.ArgumentParser, *more: str) -> None:
    """The arguments that choose whether transfers are made to run beside products.

    Args:
      more: choices besides the modes.
    """
    parser.add_argument(
        "--overlap",
        choices=("off", "auto", "measure", "force", *more),
        help="run transfers beside products: where a model expects a gain (auto), where the "
        "compiled program is then faster by the model (measure), or wherever possible (force); "
        "default: SHMAP_OVERLAP in the environment, or off",
    )
    parser.add_argument(
        "--overlap-rounding",
        action="store_true",
        default=None,
        help="sums may be rounded on their way between devices, which changes results of types "
        "narrower than f32",
    )


def compiler_options(options: argparse.Namespace) -> dict[str, str]:
    """The options of the compiler that a command line gives.

    Raises:
      UsageError: one is not NAME=VALUE.
    """
    texts = options.compiler_options or ()
    return dict(read_all(*[lambda text=text: _compiler_option(text) for text in texts]))


def _compiler_option(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if name and equals:
        return name, value
    fix = "write e.g. --option xla_tpu_enable_async_all_to_all=true"
    raise UsageError(Mistake("--option", repr(text), "NAME=VALUE", fix))


def add_verbose(parser: argparse.ArgumentParser) -> None:
    """The argument that enables logs and whole tracebacks."""
    parser.add_argument(
        "--verbose",
        action="store_true",
        help="enable the logs of XLA, and print whole tracebacks",
    )


def request_devices(options: argparse.Namespace) -> None:
    """Requests virtual devices; must be called before JAX is imported."""
    virtual_devices.request(options.devices, quiet=not options.verbose)


def count(text: str) -> int:
    """The type of an argument that is a whole number of at least 1."""
    return _number(text, 1)


def seed(text: str) -> int:
    """The type of an argument that is a whole number of at least 0."""
    return _number(text, 0)


def _number(text: str, least: int) -> int:
    is_number = text.isascii() and text.isdecimal() and len(text) <= 9
    if not is_number or int(text) < least:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least {least}")
    return int(text)


def tolerance(text: str) -> float:
    """The type of an argument that is a number of at least 0."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of at least 0")
    return value
