"""Programs whose transfers run beside products, and the same programs as they are.

    python benchmarks/overlap.py
    python benchmarks/overlap.py --programs a c --targets tpu:v6e:2x4 --mode auto
    python benchmarks/overlap.py --random 50 --targets tpu:v5e --record v5e.jsonl
    python benchmarks/overlap.py --random 50 --blocks --targets tpu:v5e

Compiles each program twice for each target, without its devices, and prints what `explain` models:
milliseconds of computing, of the wire, and of the run. "to limit" is the run relative to the longer
of computing and the wire, by the form that has less of each. Needs the extra `tpu` or `gpu`; a
program takes from ten seconds to some minutes for each target. With --random, draws programs, or
blocks of models, and fails if one is slower than the same program as it is.
"""

import argparse
import contextlib
import functools
import gc
import itertools
import os
import statistics
import time
import types

import jax
import jax.numpy as jnp
import overlap_blocks
import overlap_random
from compile_here import compile_in_this_process
from jax import lax
from jax.sharding import AbstractMesh
from jax.sharding import PartitionSpec as P

from shmap_compiler import Target, shard_map

I = P("i")  # noqa: E741


def a(x, w):
    """A gathered operand."""
    return lax.all_gather(x, "i", axis=0, tiled=True) @ w


def b(x, w):
    """Gathered weights."""
    return x @ lax.all_gather(w, "i", axis=0, tiled=True)


def c(x, w):
    """A product that is summed and scattered."""
    return lax.psum_scatter(x @ w, "i", scatter_dimension=0, tiled=True)


def d(x, w):
    """A product that is summed."""
    return lax.psum(x @ w, "i")


def e(x, w1, w2):
    """An MLP block."""
    h = jax.nn.gelu(lax.all_gather(x, "i", axis=0, tiled=True) @ w1)
    return lax.psum_scatter(h @ w2, "i", scatter_dimension=0, tiled=True)


def f(x, w1, w2):
    """Experts."""
    y = lax.all_to_all(x, "i", split_axis=0, concat_axis=1, tiled=True)
    h = jax.nn.gelu(jnp.einsum("ecd,edh->ech", y, w1))
    z = jnp.einsum("ech,ehd->ecd", h, w2)
    return lax.all_to_all(z, "i", split_axis=1, concat_axis=0, tiled=True)


def g(x, ws):
    """A scan that gathers the weights of each layer."""

    def layer(x, w):
        w = lax.all_gather(w, "i", axis=0, tiled=True)
        return jnp.tanh(x @ w), None

    return lax.scan(layer, x, ws)[0]


def _gradient(fun, *argnums):
    def gradient(*args):
        def loss(*args):
            return (fun(*args).astype(jnp.float32) ** 2).sum()

        return jax.grad(loss, argnums)(*args)

    return gradient


ROWS, COLUMNS, STACK = P("i", None), P(None, "i"), P(None, "i", None)
MLP = ((ROWS, COLUMNS, ROWS), ((16384, 4096), (4096, 16384), (16384, 4096)))
SCAN = ((ROWS, STACK), ((32768, 4096), (8, 4096, 4096)))
EXPERTS = ((8, 8192, 4096), (8, 4096, 2048), (8, 2048, 4096))
# Body, specs of the arguments and of the results, and global shapes. There are as many experts as
# devices.
PROGRAMS = {
    "a": (a, (ROWS, P()), P(), ((16384, 8192), (8192, 2048))),
    "b": (b, (ROWS, ROWS), ROWS, ((32768, 8192), (8192, 8192))),
    "c": (c, (COLUMNS, ROWS), ROWS, ((16384, 16384), (16384, 8192))),
    "d": (d, (COLUMNS, ROWS), P(), ((8192, 16384), (16384, 8192))),
    "e": (e, MLP[0], ROWS, MLP[1]),
    "f": (f, (STACK, I, I), STACK, EXPERTS),
    "g": (g, SCAN[0], ROWS, SCAN[1]),
    "e'": (_gradient(e, 0, 1, 2), MLP[0], MLP[0], MLP[1]),
    "g'": (_gradient(g, 0, 1), SCAN[0], SCAN[0], SCAN[1]),
}
# A seed draws the same programs as long as these remain.
DRAWN = tuple(PROGRAMS)
for _name in "abcdf":
    _body, _specs, _, _shapes = PROGRAMS[_name]
    _arguments = range(len(_specs))
    PROGRAMS[f"{_name}'"] = (_gradient(_body, *_arguments), _specs, _specs, _shapes)
# Other shapes of the programs.
SIZES = {
    "larger": {
        "a": ((65536, 8192), (8192, 2048)),
        "b": ((32768, 16384), (16384, 8192)),
        "c": ((65536, 16384), (16384, 8192)),
        "d": ((16384, 16384), (16384, 8192)),
        "e": ((65536, 4096), (4096, 16384), (16384, 4096)),
        "f": ((8, 32768, 4096), (8, 4096, 2048), (8, 2048, 4096)),
        "g": ((65536, 4096), (8, 4096, 4096)),
    },
    "other": {
        "a": ((16384, 8192), (8192, 4096)),
        "b": ((16384, 8192), (8192, 8192)),
        "c": ((16384, 32768), (32768, 8192)),
        "d": ((8192, 32768), (32768, 8192)),
        "e": ((32768, 8192), (8192, 28672), (28672, 8192)),
        "f": ((8, 16384, 2048), (8, 2048, 4096), (8, 4096, 2048)),
        "g": ((32768, 2048), (16, 2048, 2048)),
    },
    "wider": {
        "f": ((8, 8192, 2048), (8, 2048, 8192), (8, 8192, 2048)),
    },
    "smaller": {
        "a": ((8192, 4096), (4096, 1024)),
        "b": ((8192, 4096), (4096, 4096)),
        "c": ((8192, 8192), (8192, 4096)),
        "d": ((4096, 8192), (8192, 4096)),
        "e": ((8192, 2048), (2048, 8192), (8192, 2048)),
        "f": ((8, 4096, 2048), (8, 2048, 1024), (8, 1024, 2048)),
        "g": ((16384, 2048), (8, 2048, 2048)),
    },
}
TARGETS = ("tpu:v5e:2x4", "tpu:v6e:2x4", "tpu:v5p:2x2x2")
HEAD = (
    "| program | target | forms | plain: compute, wire, run | overlapped | gain | to limit | "
    "temporaries, MiB | compile, s of CPU time |\n|---|---|---|---|---|---|---|---|---|"
)


def program(name, size="usual", count=8, others=1):
    """A program, and the types of its arguments.

    It is for groups of `count` devices, on a mesh with another axis of size `others`.
    """
    body, in_specs, out_specs, shapes = PROGRAMS[name]
    # Another function each time, as what is traced is cached.
    body = types.FunctionType(body.__code__, body.__globals__, closure=body.__closure__)
    shapes = shapes if size == "usual" else SIZES[size][name.removesuffix("'")]
    if name == "f":
        shapes = tuple((count, *shape[1:]) for shape in shapes)
    mesh = (
        AbstractMesh((others, count), ("o", "i")) if others > 1 else AbstractMesh((count,), ("i",))
    )
    mapped = shard_map(body, mesh=mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False)
    return mapped, [jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in shapes]


def layers(name, count):
    """A program of several layers, one after the other, with weights of their own."""
    body, (rows, *weights), _, (shape, *shapes) = PROGRAMS[name.removesuffix("'")]

    def stack(x, ws):
        for w in ws:
            x = x + body(x, *w)
        return x

    specs = rows, [tuple(weights)] * count
    is_gradient = name.endswith("'")
    mapped = shard_map(
        _gradient(stack, 0, 1) if is_gradient else stack,
        mesh=AbstractMesh((8,), ("i",)),
        in_specs=specs,
        out_specs=specs if is_gradient else rows,
        check_vma=False,
    )
    x, *ws = (jax.ShapeDtypeStruct(each, jnp.bfloat16) for each in (shape, *shapes))
    return mapped, (x, [tuple(ws)] * count)


def lowered(mapped, arguments, mode):
    return mapped.lower(*arguments, overlap=mode, overlap_rounding=True)


def measured(lowered, target):
    """(the totals, MiB of temporaries, seconds of compiling) of a lowered program."""
    start = cpu_seconds()
    explanation = lowered.compile(target).explain()
    took = cpu_seconds() - start
    return explanation.totals, explanation.memory.temporaries >> 20, took


def cpu_seconds():
    """CPU time of this process and of those that it started, which depends less on others."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def modelled(lowered, target):
    """(seconds of a lowered program by explain's model, MiB of temporaries, MiB in all)."""
    explanation = lowered.compile(target).explain()
    memory = explanation.memory
    return total(explanation.totals), memory.temporaries / 2**20, memory.total / 2**20


def row(name, target, mode, size="usual", others=1):
    count = Target.parse(target).device_count // others
    made = program(name, size, count, others)
    plain, overlapped = (lowered(*made, each) for each in ("off", mode))
    title = name if size == "usual" else f"{name}, {size}"
    groups = "" if others == 1 else f", {others} groups"
    return compared(title, plain, overlapped, target, groups)


def compared(title, as_it_is, overlapped, target, groups=""):
    """A row of the table for a program as it is, and in a mode."""
    forms = [choice.form or "-" for choice in overlapped.overlap_report(target).choices]
    plain, plain_memory, plain_took = measured(as_it_is, target)
    other, memory, took = measured(overlapped, target)
    limit = max(
        min(plain.compute_seconds, other.compute_seconds),
        min(plain.wire_seconds, other.wire_seconds),
    )
    ratios = [total(each) / limit for each in (plain, other)]
    cells = (
        title,
        f"{target}{groups}",
        " ".join(forms) or "none",
        figures(plain),
        figures(other),
        f"{100 * (1 - total(other) / total(plain)):+.0f}%",
        f"{ratios[0]:.2f} -> {ratios[1]:.2f}",
        f"{plain_memory} -> {memory}",
        f"{plain_took:.0f} -> {took:.0f}",
    )
    return f"| {' | '.join(cells)} |"


class Lowered(Exception):
    """The compiler would begin."""


def lowering(make, target, mode, repeats=15):
    """Milliseconds of CPU time of tracing and lowering a program for a target, the fewest.

    All caches of JAX are cleared before each time.

    Args:
      make: returns the program, which was never traced, and the types of its arguments.

    Returns:
      Those of the program as it is and in a mode, taken in turns, and the median of their ratios.
    """
    pairs = [
        [_lowering_seconds(make, target, each) for each in ("off", mode)]
        for _ in range(repeats + 1)
    ][1:]
    plain, other = (1e3 * min(times) for times in zip(*pairs, strict=True))
    return plain, other, statistics.median(b / a for a, b in pairs)


def _lowering_seconds(make, target, mode):
    def stop(phase):
        if phase == "lowering":
            raise Lowered

    made = make()
    jax.clear_caches()
    gc.collect()
    start = time.process_time()
    found = lowered(*made, mode)
    with contextlib.suppress(Lowered):
        found.compile(target, stop)
    return time.process_time() - start


def print_lowering(programs, targets, mode):
    """A table; `programs` are the arguments `make` of `lowering` by name."""
    print("| program | target | lowering, ms | overlapped | ratio |\n|---|---|---|---|---|")
    for target, (name, make) in itertools.product(targets, programs.items()):
        plain, other, ratio = lowering(make, target, mode)
        print(f"| {name} | {target} | {plain:.1f} | {other:.1f} | {ratio:.2f} |", flush=True)


def total(totals):
    """Of the run, with memory traffic for which the compiler has no estimate."""
    return totals.step_seconds + totals.unestimated_seconds


def figures(totals):
    times = (totals.compute_seconds, totals.wire_seconds, total(totals))
    return ", ".join(f"{1e3 * seconds:.2f}" for seconds in times)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--programs", nargs="+", choices=PROGRAMS)
    parser.add_argument("--targets", nargs="+", default=TARGETS)
    parser.add_argument("--mode", default="auto", choices=("auto", "measure", "force"))
    parser.add_argument("--sizes", nargs="+", default=["usual"], choices=("usual", *SIZES))
    parser.add_argument("--groups", type=int, default=1, help="cut a target into so many groups")
    parser.add_argument("--lowering", action="store_true", help="time lowering, compile nothing")
    parser.add_argument("--layers", type=int, help="of so many; with --lowering, and b, e and f")
    parser.add_argument("--random", type=int, metavar="N", help="draw so many programs")
    parser.add_argument("--blocks", action="store_true", help="draw blocks of models")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--record", metavar="FILE", help="to continue --random where it ended")
    options = parser.parse_args()
    compile_in_this_process()
    if options.random is not None:
        bodies = overlap_blocks.BLOCKS
        if not options.blocks:
            drawn = {name: PROGRAMS[name][:3] for name in options.programs or DRAWN}
            bodies = overlap_random.with_shapes({**drawn, "none": overlap_random.NOTHING})
        arguments = (options.random, options.seed, options.targets[0], options.mode)
        raise SystemExit(bool(overlap_random.run(bodies, *arguments, modelled, options.record)))
    programs = options.programs or PROGRAMS
    if options.lowering:
        made = {name: functools.partial(program, name) for name in programs}
        if options.layers:
            names = options.programs or ("b", "e", "f", "b'", "e'", "f'")
            made = {name: functools.partial(layers, name, options.layers) for name in names}
        print_lowering(made, options.targets, options.mode)
        return
    print(HEAD)
    for target, name, size in itertools.product(options.targets, programs, options.sizes):
        if size == "usual" or name.removesuffix("'") in SIZES[size]:
            print(row(name, target, options.mode, size, options.groups), flush=True)


if __name__ == "__main__":
    main()
