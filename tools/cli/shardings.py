"""`shmap shardings`: how to split the arguments of a function for a target."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from ..usage import Mistake, UsageError
from . import output, shared_options
from .progress import Progress
from .target_devices import TargetWithDevices

if TYPE_CHECKING:
    from .program_files import UserFunction

NAME = "shardings"
SUMMARY = "find how to split the arguments of a function for a target"
DESCRIPTION = """\
Compiles a function for a target with its arguments split in different ways, ranks these by modelled
time and memory, and prints a table and the best one as source with shard_map. The target's devices
are not needed. The file gives the arguments of NAME in NAME_args; shardings that they have are
ignored, as are in_shardings of a jitted function, but not its out_shardings. Static arguments have
to be bound first. Without --mesh, all meshes of one or two axes are tried. If there are more
choices than --limit, the search begins with every array split as far as it can be, changes one
array at a time, the largest first, and keeps what is faster.
"""
EPILOG = """\
examples:
  shmap shardings train.py:step --target tpu:v5e:4x4
  shmap shardings train.py:step --target tpu:v5e:4x4 --mesh data=4,model=4 --limit 100 -o best.py
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "target",
        metavar="FILE.py:NAME",
        help="a function in a file, jitted or not; package.module:NAME works too",
    )
    parser.add_argument(
        "--target",
        dest="compile_for",
        metavar="TARGET",
        required=True,
        action=TargetWithDevices,
        help="what to compile for, e.g. tpu:v5e:4x4",
    )
    parser.add_argument("--mesh", metavar="AXIS=SIZE,...", help="the mesh, e.g. data=4,model=4")
    parser.add_argument(
        "--limit",
        metavar="N",
        type=shared_options.count,
        default=48,
        help="compile at most N choices (default: %(default)s)",
    )
    shared_options.add_output(parser, "FILE.py", "the source")
    parser.add_argument(
        "--devices",
        metavar="N",
        type=shared_options.count,
        default=shared_options.DEFAULT_DEVICES,
        help="number of virtual CPU devices, on which the source is compared with the function "
        "(default: those of the target)",
    )
    shared_options.add_verbose(parser)


def execute(options: argparse.Namespace) -> int:
    output.require_writable("-o", options.output)
    with output.printing_beside(options.output):
        text = _source(options)
    if options.output is None:
        print("\nThe first one as source:\n")
    output.write("-o", options.output or output.STDOUT, text)
    if options.output not in (None, output.STDOUT):
        print(f"wrote {options.output}")
    return 0


def _source(options: argparse.Namespace) -> str:
    """Prints the table. Returns the best choice as source."""
    import jax

    from shmap_compiler import Target, search_shardings

    from . import mesh_text, program_files, random_data

    jax.config.update("jax_traceback_filtering", "off")
    target = Target.parse(options.compile_for)
    mesh = None if options.mesh is None else mesh_text.parse(options.mesh)
    function = program_files.load(options.target, any_function=True)
    mapped = function.mapped
    if isinstance(mapped, program_files.MAPPED) or function.args is None:
        raise UsageError(_mistake(function, options.target, function.args is None))
    args: Any = function.args
    random_data.require_numbers(args)
    traced = mapped if hasattr(mapped, "trace") else jax.jit(mapped)
    what = f"tracing {function.name}"
    function.of_user(lambda: traced.trace(*args), what)
    with Progress(f"shardings of {function.name}") as progress:
        search = function.guarded(
            lambda: search_shardings(
                mapped,
                *args,
                target=target,
                mesh=mesh,
                limit=options.limit,
                progress=progress.phase,
            ),
            what,
        )
    print(search)
    with Progress(f"unjit {function.name}") as progress:
        return search.unjit(progress=progress.phase).as_python()


def _mistake(function: UserFunction, target: str, lacks_args: bool) -> Mistake:
    from .program_files import kind

    if lacks_args:
        return Mistake(
            f"arguments of {function.name}",
            "none in the file",
            f"{function.name}_args, the tuple of its arguments",
            f"set {function.name}_args in the file",
        )
    return Mistake(
        f"target {target!r}",
        f"{function.name} is {kind(function.mapped)}: how it splits arrays is what you wrote",
        "a function of whole arrays",
        "name such a function of the file",
    )
