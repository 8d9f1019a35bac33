"""`shmap run`: compiles a program, runs it, compares it with its reference and measures it."""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from . import program, shared_options
from .tables import print_table

if TYPE_CHECKING:
    from jax.sharding import PartitionSpec

    from shmap_compiler import Executable, Lowered
    from shmap_compiler.base.untyped import Aval, Function, PyTree
    from shmap_compiler.simulate.agreement import Agreement

    from .program_files import UserFunction

NAME = "run"
SUMMARY = "compile a program for virtual CPU devices, run it and check it"
DESCRIPTION = """\
Compiles a function for virtual CPU devices and runs it: one that is shard_mapped, or anything that
JAX can trace, on the devices of its arguments. If the file defines
NAME_reference, compares the results with its results, and fails if they differ. Prints:

  arguments, results   full arrays, the block on each device, and their specs
  collectives          those of the optimized program, with the bytes of each device's results
  time                 of lowering (with tracing), of compilation, and the median of several runs
  reference            the largest errors

Types without data (--arg, or jax.ShapeDtypeStructs in NAME_args) are filled with random data.
"""
EPILOG = """\
examples:
  shmap run examples/matmul.py:matmul_basic
  shmap run examples/matmul.py:matmul_basic --mesh i=2,j=4 --partitioner shardy
  shmap run examples/matmul.py:matmul_basic --arg 'bf16[256,512]' --arg 'bf16[512,128]'
"""
_RUNS = 10


def add_arguments(parser: argparse.ArgumentParser) -> None:
    shared_options.add_arguments(parser, any_function=True)
    parser.add_argument(
        "--seed",
        metavar="N",
        type=shared_options.seed,
        default=0,
        help="seed of the data (default: %(default)s)",
    )
    parser.add_argument(
        "--tolerance",
        metavar="X",
        type=shared_options.tolerance,
        help="allow this error, in units of the result's largest magnitude (default: 64 units in "
        "the last place, 2 in types narrower than 32 bits, also if the program only computes in "
        "them, 0 for integers; more if the reference enlarges rounding)",
    )


def execute(options: argparse.Namespace) -> int:
    work = program.load_any(options, needs_devices=True)

    from shmap_compiler.base.text_tables import show_seconds

    from . import random_data

    args = random_data.fill(work.args, options.seed)
    if isinstance(work, program.AnyProgram):
        return _execute_any(options, work, args)
    lowered, lowering_s = _timed(lambda: replace(work, args=args).lower(options.partitioner))
    executable, compiling_s = _timed(lowered.compile)
    results, running_s = _run(executable, _placed(executable, args))
    _print_program(options, lowered, results)
    print_table(
        ("time", ""),
        [
            ("lower", show_seconds(lowering_s)),
            ("compile", show_seconds(compiling_s)),
            ("run", f"{show_seconds(running_s)}, median of {_RUNS}"),
        ],
    )
    return _compare(options, work.function, results, args, lambda: lowered.as_text("body"))


def _execute_any(options: argparse.Namespace, work: program.AnyProgram, args: PyTree) -> int:
    """Runs a function that is not shard_mapped: jitted, on the devices of its arguments."""
    import jax

    from shmap_compiler import Pmapped
    from shmap_compiler.base.descriptions import describe
    from shmap_compiler.base.text_tables import show_seconds
    from shmap_compiler.stages.lower_call import lower_jitted

    from .hlo_collectives import collectives

    fun = work.function.mapped
    jitted: Any = fun if hasattr(fun, "lower") else jax.jit(fun)
    what = f"tracing {describe(fun)}"
    who = f"{'pmap' if isinstance(fun, Pmapped) else 'jit'} of {describe(fun)}"
    lowered, lowering_s = _timed(
        lambda: work.function.traced(
            lambda: lower_jitted(jitted, args, who), lambda: jitted.eval_shape(*args), what
        )
    )
    compiled, compiling_s = _timed(lowered.compile)
    results, running_s = _run(jitted, args, donates=bool(compiled.donate_argnums))
    shardings = [x.sharding for x in jax.tree.leaves(results)]
    shardings += jax.tree.leaves(compiled.input_shardings)  # of a program without results
    count = len(shardings[0].device_set) if shardings else 1
    print(f"{describe(fun)} on {count} devices")
    kinds = collectives(compiled.as_text())
    print_table(
        ("collectives", "count", "bytes on each device"),
        [(c.kind, str(c.count), str(c.bytes)) for c in kinds] or [("none", "", "")],
    )
    print_table(
        ("time", ""),
        [
            ("lower", show_seconds(lowering_s)),
            ("compile", show_seconds(compiling_s)),
            ("run", f"{show_seconds(running_s)}, median of {_RUNS}"),
        ],
    )
    return _compare(options, work.function, results, args, lowered.as_text)


def _compare(
    options: argparse.Namespace,
    function: UserFunction,
    results: PyTree,
    args: PyTree,
    module: Callable[[], str],
) -> int:
    """Compares results with those of the reference, if there is one."""
    import jax
    import numpy as np

    from shmap_compiler.base.random_keys import as_data
    from shmap_compiler.simulate import agreement
    from shmap_compiler.simulate.rounding import allowing_rounding

    def reference(*args: PyTree) -> list[np.ndarray]:
        found = jax.tree.leaves(function.run_reference(args))
        return [np.asarray(as_data(each)) for each in found]

    if function.reference is None:
        print(f"\nreference: none ({function.name}_reference in the file would be compared)")
        return 0
    expected = function.run_reference(args)
    agreements = agreement.compare(results, expected, options.tolerance)
    if options.tolerance is None and not all(each.holds for each in agreements):
        arrays = [np.asarray(as_data(each)) for each in jax.tree.leaves(expected)]
        agreements = allowing_rounding(agreements, module(), reference, args, arrays)
    return _print_agreements(f"{function.name}_reference", agreements)


# ------------------------------------------------------------------------------------- running


def _placed(executable: Executable, args: tuple[PyTree, ...]) -> tuple[PyTree, ...]:
    """Places the arguments where the program needs them, so that runs do not transfer them."""
    import jax

    leaves, tree = jax.tree.flatten(args)
    positions = executable.signature.select(range(len(leaves)))
    for position, sharding in zip(positions, executable.input_shardings, strict=True):
        leaves[position] = jax.device_put(leaves[position], sharding)
    return jax.tree.unflatten(tree, leaves)


def _run(
    executable: Function, args: tuple[PyTree, ...], *, donates: bool = False
) -> tuple[PyTree, float]:
    """The results, and the median time of a run.

    Args:
      donates: each run gets copies of the arguments, as it may delete what it is given.
    """
    import jax

    from shmap_compiler.base.values import copied

    def timed() -> tuple[PyTree, float]:
        given = jax.block_until_ready(jax.tree.map(copied, args)) if donates else args
        return _timed(lambda: jax.block_until_ready(executable(*given)))

    results, _ = timed()
    return results, statistics.median(timed()[1] for _ in range(_RUNS))


def _timed(run: Callable[[], PyTree]) -> tuple[PyTree, float]:
    start = time.perf_counter()
    return run(), time.perf_counter() - start


# ------------------------------------------------------------------------------------- printing


def _print_program(options: argparse.Namespace, lowered: Lowered, results: PyTree) -> None:
    import jax

    from shmap_compiler.base import specs
    from shmap_compiler.base.descriptions import describe

    from .hlo_collectives import collectives

    graph, call = lowered.graph, lowered.call
    print(
        f"{describe(call.fun)} on {specs.show_mesh(graph.mesh)}, partitioner {lowered.partitioner}"
    )

    def rows(
        paths: Sequence[str],
        full_types: Sequence[Aval],
        block_types: Sequence[Aval],
        all_specs: Sequence[PartitionSpec],
    ) -> Iterator[tuple[str, str, str, str]]:
        for path, full, block, spec in zip(paths, full_types, block_types, all_specs, strict=True):
            yield path, specs.show_type(full), specs.show_type(block), specs.show(spec)

    header = ("full array", "on each device", "spec")
    closed_over = [f"closed over [{i}]" for i in range(len(call.constants))]
    in_paths = [*closed_over, *call.in_paths]
    arguments = rows(in_paths, graph.in_types, graph.body_in_types, graph.in_specs)
    print_table(("arguments", *header), arguments)
    out_paths = [
        f"result{jax.tree_util.keystr(path)}"
        for path, _ in jax.tree_util.tree_leaves_with_path(results)
    ]
    outcomes = rows(out_paths, graph.out_types, graph.body_out_types, graph.out_specs)
    print_table(("results", *header), outcomes)
    kinds = collectives(lowered.as_text("hlo"))
    print_table(
        ("collectives", "count", "bytes on each device"),
        [(c.kind, str(c.count), str(c.bytes)) for c in kinds] or [("none", "", "")],
    )


def _print_agreements(name: str, agreements: Sequence[Agreement]) -> int:
    print_table(
        (f"{name}", "max abs error", "max rel error", "tolerance", ""),
        [
            (a.path, f"{a.absolute:.2g}", f"{a.relative:.2g}", f"{a.tolerance:.2g}", _verdict(a))
            for a in agreements
        ],
    )
    holds = all(a.holds for a in agreements)
    print(f"\n{'PASS: equals' if holds else 'FAIL: does not equal'} {name}")
    return 0 if holds else 1


def _verdict(agreement: Agreement) -> str:
    return "ok" if agreement.holds else f"differs: {agreement.problem}".removesuffix(": ")
