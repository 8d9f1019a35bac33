"""Time to lower and to call `xmap`, against the `shard_map` that one writes by hand.

    python benchmarks/xmap.py [--rounds 30] [--calls 200]

The program is the network of docs/named-axes.md: the batch on one mesh axis, the hidden layer on
the other one. Lowering is measured in CPU time of the thread, from newly defined functions, so
that nothing is cached, in turns; the minimum of the rounds counts. The call is compared with that
of `jax.jit(jax.shard_map(...))`; there the median over the rounds counts, of the ratio of the two
times in one round.

At last, how lowering for an abstract mesh of 65,536 devices compares with lowering for one of 8.
"""

from __future__ import annotations

import argparse
import gc
import os
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

os.environ["XLA_FLAGS"] = (
    os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=8"
)
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.nn import one_hot, relu
from jax.scipy.special import logsumexp
from jax.sharding import AbstractMesh, AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import shmap_compiler
from shmap_compiler import named, xmap

INPUTS, HIDDEN, CLASSES = 784, 512, 10
IN_AXES = [
    ["inputs", "hidden", ...],
    ["hidden", "classes", ...],
    ["batch", "inputs", ...],
    ["batch", ...],
]
IN_SPECS = (P(None, "y"), P("y"), P("x"), P("x"))


def by_name(mesh: Any) -> Callable[..., Any]:
    def loss(w1, w2, image, label):
        hidden = relu(named.pdot(image, w1, "inputs"))
        logits = named.pdot(hidden, w2, "hidden")
        predictions = logits - logsumexp(logits, "classes")
        targets = one_hot(label, lax.psum(1, "classes"), axis="classes")
        return -lax.pmean(lax.psum(targets * predictions, "classes"), "batch")

    resources = {"batch": "x", "hidden": "y"}
    return xmap(loss, IN_AXES, [...], axis_resources=resources, mesh=mesh)


def by_hand(shard_map: Any, mesh: Any) -> Callable[..., Any]:
    def loss(w1, w2, images, labels):
        logits = lax.psum(relu(images @ w1) @ w2, "y")
        predictions = logits - logsumexp(logits, axis=1, keepdims=True)
        targets = one_hot(labels, predictions.shape[-1])
        return lax.pmean(-jnp.mean(jnp.sum(targets * predictions, axis=1)), "x")

    return shard_map(loss, mesh=mesh, in_specs=IN_SPECS, out_specs=P())


WAYS = {
    "xmap": by_name,
    "shard_map": partial(by_hand, shmap_compiler.shard_map),
    "jax.shard_map": partial(by_hand, jax.shard_map),
}


def arguments(batch: int = 128, hidden: int = HIDDEN) -> tuple[Any, ...]:
    struct = jax.ShapeDtypeStruct
    return (
        struct((INPUTS, hidden), jnp.float32),
        struct((hidden, CLASSES), jnp.float32),
        struct((batch, INPUTS), jnp.float32),
        struct((batch,), jnp.int32),
    )


def lower(make: Callable[..., Any], mesh: Any, gradient: bool, args: Any) -> tuple[float, int]:
    loss = make(mesh)
    program = jax.jit(jax.value_and_grad(loss, (0, 1)) if gradient else loss)
    start = time.thread_time()
    lowered = program.trace(*args).lower(lowering_platforms=("cpu",))
    return time.thread_time() - start, len(lowered.as_text())


def fastest(runs: dict[str, Callable[[], Any]], rounds: int) -> dict[str, tuple[float, int]]:
    """For each run the least time and the size of its module."""
    best = {name: (float("inf"), 0) for name in runs}
    gc.collect()
    gc.disable()
    for _ in range(rounds):
        for name, run in runs.items():
            best[name] = min(best[name], run())
    gc.enable()
    return best


def compare_lowering(mesh: Any, rounds: int) -> None:
    for gradient in (False, True):
        best = fastest(
            {w: partial(lower, make, mesh, gradient, arguments()) for w, make in WAYS.items()},
            rounds,
        )
        ours = best["xmap"][0]
        times = "   ".join(f"{way} {seconds * 1e3:6.1f} ms" for way, (seconds, _) in best.items())
        what = "lower the gradient" if gradient else "lower"
        print(f"{what:20} {times}   ratio to shard_map {ours / best['shard_map'][0]:.2f}")


def compare_calls(mesh: Any, rounds: int, calls: int) -> None:
    """A small network, so that the call is what takes the time."""
    sizes = jax.tree.map(lambda t: np.zeros(t.shape, t.dtype), arguments(8, 16))
    args = jax.device_put(sizes, tuple(NamedSharding(mesh, spec) for spec in IN_SPECS))
    both = by_name(mesh), jax.jit(WAYS["jax.shard_map"](mesh))
    for function in both:
        jax.block_until_ready(function(*args))

    def seconds(function: Callable[..., Any]) -> float:
        start = time.perf_counter()
        for _ in range(calls):
            jax.block_until_ready(function(*args))
        return (time.perf_counter() - start) / calls

    times = []
    for number in range(rounds):
        order = both if number % 2 else both[::-1]
        measured = {function: seconds(function) for function in order}
        times.append([measured[function] for function in both])
    best = [min(each) * 1e6 for each in zip(*times, strict=True)]
    ratio = statistics.median(a / b for a, b in times)
    name = f"call, devices: {mesh.size}"
    print(f"{name:20} xmap {best[0]:.1f} us   jit(jax.shard_map) {best[1]:.1f} us   {ratio:.3f}")


def compare_sizes(rounds: int) -> None:
    """Equal blocks on each device, whose number grows along the batch."""
    runs = {}
    for devices in (8, 65536):
        mesh = AbstractMesh((devices // 2, 2), ("x", "y"), axis_types=(AxisType.Auto,) * 2)
        args = arguments(batch=32 * devices)
        for way in ("xmap", "shard_map"):
            runs[way, devices] = partial(lower, WAYS[way], mesh, True, args)
    best = fastest(runs, rounds)
    for way in ("xmap", "shard_map"):
        (least, small), (most, large) = best[way, 8], best[way, 65536]
        print(
            f"{f'gradient, {way}':20} 8 devices {least * 1e3:6.1f} ms   65536 devices "
            f"{most * 1e3:6.1f} ms   ratio {most / least:.2f}   modules {small}, {large} bytes"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--calls", type=int, default=200)
    options = parser.parse_args()
    mesh = jax.make_mesh((4, 2), ("x", "y"), axis_types=(AxisType.Auto,) * 2)
    compare_lowering(mesh, options.rounds)
    one = jax.make_mesh(
        (1, 1), ("x", "y"), devices=jax.devices()[:1], axis_types=(AxisType.Auto,) * 2
    )
    compare_calls(one, options.rounds, options.calls)
    compare_calls(mesh, options.rounds, options.calls // 4)
    compare_sizes(options.rounds)


if __name__ == "__main__":
    main()
