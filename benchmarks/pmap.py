"""Time of calls and of lowering, `shmap_compiler.pmap` against `jax.pmap`.

    python benchmarks/pmap.py [--rounds 40] [--calls 200]

Both functions are called many times in each round; a call ends when its result is there. The median
over the rounds counts, of the ratio of the two times in one round: what else the machine does then
hits both. On one device the time of a call is all dispatch. Lowering is measured in CPU time of the
thread, from a newly defined function, so that nothing is cached; there the minimum counts.
"""

from __future__ import annotations

import argparse
import gc
import os
import statistics
import time
from collections.abc import Callable
from typing import Any

os.environ["XLA_FLAGS"] = (
    os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=8"
)
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import shmap_compiler

LAYERS, WIDTH = 4, 32


def double(tree: Any) -> Any:
    return jax.tree.map(lambda x: x * 2, tree)


def total(x: jax.Array) -> jax.Array:
    return lax.psum(x, "i") * x


def train(layers: list[dict[str, jax.Array]], x: jax.Array) -> list[dict[str, jax.Array]]:
    """A step of training a small transformer, the gradients averaged over devices."""

    def loss(layers: list[dict[str, jax.Array]]) -> jax.Array:
        h = x
        for layer in layers:
            q, k, v = (h @ w for w in layer["qkv"])
            scores = jax.nn.softmax(q @ k.T / WIDTH**0.5)
            h = h + (scores @ v) @ layer["out"]
            h = h + jax.nn.gelu(h @ layer["up"]) @ layer["down"]
        return jnp.mean(h**2)

    grads = lax.pmean(jax.grad(loss)(layers), "i")
    return jax.tree.map(lambda w, g: w - 0.1 * g, layers, grads)


def transformer() -> tuple[Any, ...]:
    """The arguments of `train`, one row for each of eight devices."""
    shapes = {
        "qkv": (3, WIDTH, WIDTH),
        "out": (WIDTH, WIDTH),
        "up": (WIDTH, 4 * WIDTH),
        "down": (4 * WIDTH, WIDTH),
    }
    layer = {name: ones(8, *shape) for name, shape in shapes.items()}
    return [layer] * LAYERS, ones(8, 16, WIDTH)


def placed(tree: Any, count: int) -> Any:
    sharding = NamedSharding(Mesh(np.array(jax.devices()[:count]), "i"), P("i"))
    return jax.device_put(tree, sharding)


def ones(count: int, *shape: int) -> np.ndarray:
    return np.ones((count, *shape), np.float32)


def call_seconds(function: Callable[..., Any], args: tuple[Any, ...], calls: int) -> float:
    start = time.perf_counter()
    for _ in range(calls):
        jax.block_until_ready(function(*args))
    return (time.perf_counter() - start) / calls


def lower_seconds(pmap: Callable[..., Any], args: tuple[Any, ...]) -> float:
    mapped = pmap(lambda *args: train(*args), "i")
    gc.collect()
    start = time.thread_time()
    mapped.lower(*args)
    return time.thread_time() - start


def report(name: str, measure: Callable[[Any], float], rounds: int, of_best: bool = False) -> None:
    times = []
    for number in range(rounds):
        order = (shmap_compiler.pmap, jax.pmap)
        measured = {pmap: measure(pmap) for pmap in (order if number % 2 else order[::-1])}
        times.append(tuple(measured[pmap] for pmap in order))
    best = [min(each) * 1e6 for each in zip(*times, strict=True)]
    ratio = best[0] / best[1] if of_best else statistics.median(a / b for a, b in times)
    print(f"{name:34} ours {best[0]:8.1f} us   jax {best[1]:8.1f} us   ratio {ratio:.3f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--calls", type=int, default=200)
    options = parser.parse_args()
    for count in (1, 8):
        cases = [
            ("one array", double, (ones(count, 4),)),
            ("a dict of 100", double, ({f"w{k}": ones(count, 4) for k in range(100)},)),
        ]
        for name, body, args in [*cases, ("psum", total, (ones(count, 4),))]:
            args = placed(args, count)
            both = {pmap: pmap(body, "i") for pmap in (shmap_compiler.pmap, jax.pmap)}
            for mapped in both.values():
                jax.block_until_ready(mapped(*args))
            many = len(jax.tree.leaves(args)) > 1
            calls = options.calls // (4 if many or count > 1 else 1)

            def call(pmap: Any, both: Any = both, args: Any = args, calls: int = calls) -> float:
                return call_seconds(both[pmap], args, calls)

            report(f"call, {name}, devices: {count}", call, options.rounds)
    args = transformer()
    report(
        "lower a training step",
        lambda pmap: lower_seconds(pmap, args),
        max(options.rounds, 40),
        True,
    )


if __name__ == "__main__":
    main()
