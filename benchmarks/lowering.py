"""Time to lower a 4-layer tensor-parallel transformer and its gradient, ours against JAX's.

    python benchmarks/lowering.py [--layers 4] [--repeat 60] [--cold]

Both are timed in turns in one process, from a function never seen before to StableHLO
(`jax.jit(...).lower(...)`), in CPU time of the thread. What counts is the median of the ratios of
neighboring runs, which slow phases of the machine change equally; every other pair begins with
JAX's. Below 1 we are faster. "lower()" is
`shard_map(f).lower(...)` beside `jax.jit(jax.shard_map(f)).lower(...)`. With --cold all caches of
JAX are cleared before each run.

Then a function that calls 32 small programs, or one small program 32 times.

At last, how lowering for an abstract mesh of 65,536 devices compares with lowering for one of 8.
"""

from __future__ import annotations

import argparse
import gc
import os
import statistics
import time
from functools import partial

os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import AbstractMesh, AxisType
from jax.sharding import PartitionSpec as P

import shmap_compiler

WIDTH, HEADS, HIDDEN, BATCH, TIME = 64, 8, 256, 4, 16
SPECS = {
    "qkv": P(None, None, "model"),
    "out": P("model", None),
    "up": P(None, "model"),
    "down": P("model", None),
    "scale": P(None),
}
SHAPES = {
    "qkv": (3, WIDTH, WIDTH),
    "out": (WIDTH, WIDTH),
    "up": (WIDTH, HIDDEN),
    "down": (HIDDEN, WIDTH),
    "scale": (WIDTH,),
}


def make_loss(shard_map, mesh, layers):
    """A new loss function, over new function objects, so that nothing is cached."""

    def norm(x, scale):
        return x * lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6) * scale

    def attention(x, layer):
        q, k, v = ((x @ w).reshape(*x.shape[:2], -1, WIDTH // HEADS) for w in layer["qkv"])
        scores = jnp.einsum("bthd,bshd->bhts", q, k) / (WIDTH // HEADS) ** 0.5
        mixed = jnp.einsum("bhts,bshd->bthd", jax.nn.softmax(scores), v)
        return lax.psum(mixed.reshape(*x.shape[:2], -1) @ layer["out"], "model")

    def mlp(x, layer):
        return lax.psum(jax.nn.gelu(x @ layer["up"]) @ layer["down"], "model")

    def body(params, x):
        for layer in params:
            x = x + attention(norm(x, layer["scale"]), layer)
            x = x + mlp(norm(x, layer["scale"]), layer)
        return lax.pmean(jnp.mean(x * x), "data")

    return shard_map(body, mesh=mesh, in_specs=([SPECS] * layers, P("data")), out_specs=P())


def arguments(layers, batch):
    struct = jax.ShapeDtypeStruct
    layer = {name: struct(shape, jnp.float32) for name, shape in SHAPES.items()}
    return [layer] * layers, struct((batch, TIME, WIDTH), jnp.float32)


def lower(shard_map, mesh, layers, gradient, batch=BATCH):
    loss = make_loss(shard_map, mesh, layers)
    program = jax.jit(jax.value_and_grad(loss) if gradient else loss)
    start = time.thread_time()
    lowered = program.trace(*arguments(layers, batch)).lower(lowering_platforms=("cpu",))
    return time.thread_time() - start, len(lowered.as_text())


def lower_by_itself(shard_map, mesh, layers):
    """With the method that has that name: of what ours returns, and of a jit around JAX's."""
    loss = make_loss(shard_map, mesh, layers)
    program = jax.jit(loss) if shard_map is jax.shard_map else loss
    start = time.thread_time()
    lowered = program.lower(*arguments(layers, BATCH))
    return time.thread_time() - start, len(lowered.as_text())


def lower_many(shard_map, mesh, programs, gradient):
    """32 calls of so many small programs."""

    def made(k):
        def block(x, w):
            return lax.psum(jax.nn.gelu(x @ w) * (k + 1.0), "model")

        specs = {"in_specs": (P("data", "model"), P("model")), "out_specs": P("data")}
        return shard_map(block, mesh=mesh, **specs)

    blocks = [made(k) for k in range(programs)] * (32 // programs)

    def many(x, w):
        for block in blocks:
            x = x + block(x, w)
        return jnp.sum(x)

    program = jax.jit(jax.value_and_grad(many) if gradient else many)
    square = jax.ShapeDtypeStruct((8, 8), jnp.float32)
    start = time.thread_time()
    lowered = program.trace(square, square).lower(lowering_platforms=("cpu",))
    return time.thread_time() - start, len(lowered.as_text())


def lower_product(shard_map, mesh):
    def product(a, b):
        return lax.psum(a @ b, "model")

    specs = {"in_specs": (P("data", "model"), P("model")), "out_specs": P("data")}
    program = jax.jit(shard_map(product, mesh=mesh, **specs))
    square = jax.ShapeDtypeStruct((8192, 8192), jnp.float32)
    start = time.thread_time()
    lowered = program.trace(square, square).lower(lowering_platforms=("cpu",))
    return time.thread_time() - start, len(lowered.as_text())


def in_turns(first, second, repeat, cold=False):
    """The median times of two runs, the median of their ratios, and the sizes of their modules.

    Without garbage collection, as in `timeit`: in turns it may always fall into the same run.
    """
    times, sizes = ([], []), [0, 0]
    gc.collect()
    gc.disable()
    for turn in range(repeat):
        for which in (0, 1) if turn % 2 else (1, 0):
            if cold:
                jax.clear_caches()
            seconds, sizes[which] = (first, second)[which]()
            times[which].append(seconds)
    gc.enable()
    ratio = statistics.median(a / b for a, b in zip(*times, strict=True))
    return *map(statistics.median, times), ratio, *sizes


def compare(name, run, repeat, cold):
    """`run(shard_map)` with JAX's and with ours."""
    ours, theirs, ratio, our_size, their_size = in_turns(
        partial(run, shmap_compiler.shard_map), partial(run, jax.shard_map), repeat, cold
    )
    print(
        f"{name:32} ours {ours * 1e3:6.1f} ms   jax {theirs * 1e3:6.1f} ms   "
        f"ratio {ratio:.3f}   modules {our_size}, {their_size} bytes"
    )


def compare_sizes(who, shard_map, repeat):
    """One layer, and a matrix product, on abstract meshes of 8 devices and of 65,536."""
    few, many = (
        AbstractMesh((data, 8), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
        for data in (1, 8192)
    )
    programs = {
        "1 layer": lambda mesh: lower(shard_map, mesh, 1, False, batch=mesh.shape["data"]),
        "a product": lambda mesh: lower_product(shard_map, mesh),
    }
    for name, run in programs.items():
        most, least, ratio, large, small = in_turns(partial(run, many), partial(run, few), repeat)
        print(
            f"{f'{name}, {who}':32} 8 devices {least * 1e3:6.1f} ms   65536 devices "
            f"{most * 1e3:6.1f} ms   ratio {ratio:.2f}   modules {small}, {large} bytes"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--repeat", type=int, default=60)
    parser.add_argument("--cold", action="store_true")
    options = parser.parse_args()
    mesh = jax.make_mesh((2, 4), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
    layers = options.layers
    for name, run in {
        f"{layers} layers": lambda each: lower(each, mesh, layers, False),
        f"{layers} layers, value and gradient": lambda each: lower(each, mesh, layers, True),
        f"{layers} layers, lower()": lambda each: lower_by_itself(each, mesh, layers),
        "32 programs": lambda each: lower_many(each, mesh, 32, False),
        "32 programs, value and gradient": lambda each: lower_many(each, mesh, 32, True),
        "a program 32 times": lambda each: lower_many(each, mesh, 1, False),
        "the same, value and gradient": lambda each: lower_many(each, mesh, 1, True),
    }.items():
        compare(name, run, options.repeat, options.cold)
    compare_sizes("ours", shmap_compiler.shard_map, options.repeat)
    compare_sizes("jax", jax.shard_map, options.repeat)


if __name__ == "__main__":
    main()
