"""`shmap unjit`: what XLA's partitioner made of a jitted program, as source."""

from __future__ import annotations

import argparse
import difflib
from typing import TYPE_CHECKING, Any

from ..usage import Mistake, UsageError
from . import output, shared_options
from .progress import Progress
from .target_devices import TargetWithDevices

if TYPE_CHECKING:
    from shmap_compiler import Unjitted
    from shmap_compiler.base.untyped import PyTree

    from .program_files import UserFunction

NAME = "unjit"
SUMMARY = "show what XLA's partitioner made of a jitted program, as source"
DESCRIPTION = """\
Compiles a function of jax.jit with shardings, and prints what XLA's partitioner made of it: Python
source of a shard_map function with the same collectives. The source is run and compared with the
jitted program before it is printed. The file gives the arguments of NAME in NAME_args. With
--diff OTHER, prints the difference to the source of another program instead, such as the same
function with other shardings.
"""
EPILOG = """\
examples:
  shmap unjit train.py:step
  shmap unjit train.py:step -o by_hand.py
  shmap unjit train.py:step --diff train.py:step_fsdp
  shmap unjit train.py:step --target tpu:v5e:2x4 --prices
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "target",
        metavar="FILE.py:NAME",
        help="a jitted function in a file; package.module:NAME works too",
    )
    shared_options.add_output(parser, "FILE.py", "the source")
    parser.add_argument(
        "--diff", metavar="FILE.py:NAME", help="print the difference to another program's source"
    )
    parser.add_argument(
        "--target",
        dest="partition_for",
        metavar="TARGET",
        action=TargetWithDevices,
        help="show what the partitioner of a target does, e.g. tpu:v5e:2x4, without its devices",
    )
    parser.add_argument(
        "--prices",
        action="store_true",
        help="print what the jitted program and the source cost, side by side, and what our passes "
        "save of the partitioner's communication",
    )
    parser.add_argument(
        "--devices",
        metavar="N",
        type=shared_options.count,
        default=shared_options.DEFAULT_DEVICES,
        help="number of virtual CPU devices that the file sees (default: %(default)s)",
    )
    shared_options.add_verbose(parser)


def execute(options: argparse.Namespace) -> int:
    output.require_writable("-o", options.output)
    with output.printing_beside(options.output or output.STDOUT):
        function, unjitted, text = _source(options)
    output.write("-o", options.output or output.STDOUT, text)
    with output.printing_beside(options.output):
        if options.output not in (None, output.STDOUT):
            print(f"wrote {options.output}")
            print(unjitted.validate())
        if options.prices:
            prices = function.guarded(lambda: _prices(unjitted), f"pricing {function.name}")
            print(f"\n{prices}")
    return 0


def _source(options: argparse.Namespace) -> tuple[UserFunction, Unjitted, str]:
    """The function, what it becomes, and the text to print: the source, or the difference."""
    names = [options.target, *([] if options.diff is None else [options.diff])]
    functions = [_jitted(name) for name in names]
    programs = [_unjitted(*each, options.partition_for) for each in functions]
    first, text = programs[0], programs[0].as_python()
    if options.diff is not None:
        other = programs[1].as_python()
        text = "".join(
            difflib.unified_diff(
                text.splitlines(keepends=True),
                other.splitlines(keepends=True),
                options.target,
                options.diff,
            )
        )
        text = text or f"the source of {options.target} and {options.diff} is the same\n"
    return functions[0][0], first, text


def _jitted(target: str) -> tuple[UserFunction, tuple[PyTree, ...]]:
    """A jitted function, which can be traced, and its arguments."""
    import jax

    from shmap_compiler import ShardMapped, XMapped

    from . import program_files, random_data

    jax.config.update("jax_traceback_filtering", "off")
    function = program_files.load(target, any_function=True)
    if isinstance(function.mapped, (ShardMapped, XMapped)):
        raise UsageError(
            Mistake(
                f"target {target!r}",
                f"{function.name} is {program_files.kind(function.mapped)}: its collectives are "
                "those you wrote",
                "a function of jax.jit with shardings",
                f"name the jitted function, or use `shmap lower {target}`",
            )
        )
    if function.args is None:
        raise UsageError(
            Mistake(
                f"arguments of {function.name}",
                "none in the file",
                f"{function.name}_args, the tuple of its arguments",
                f"set {function.name}_args in the file",
            )
        )
    args: Any = random_data.fill(function.args, 0)
    traced = function.mapped if hasattr(function.mapped, "trace") else jax.jit(function.mapped)
    function.of_user(lambda: traced.trace(*args), f"tracing {function.name}")
    return function, args


def _unjitted(
    function: UserFunction, args: tuple[PyTree, ...], partition_for: str | None
) -> Unjitted:
    from shmap_compiler import unjit

    with Progress(f"unjit {function.name}") as progress:
        return function.guarded(
            lambda: unjit(function.mapped, *args, target=partition_for, progress=progress.phase),
            f"tracing {function.name}",
        )


def _prices(unjitted: Unjitted) -> str:
    from shmap_compiler.explain.comparison import Comparison
    from shmap_compiler.unjit.savings import show_savings

    return f"{Comparison(*unjitted.prices())}\n\n{show_savings(unjitted.savings())}"
