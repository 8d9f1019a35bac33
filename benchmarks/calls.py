"""Time of one call of a compiled function, dispatch included, ours against JAX's.

    python benchmarks/calls.py [--rounds 60] [--calls 200]

Both programs are called many times in each round; a call ends when its result is there. The median
over the rounds counts, of the ratio of the two times in one round: what else the machine does then
hits both. "jit" is `jax.jit(shard_map(f))`: at a ratio of 1 our calls go through JAX's dispatch in
C++, as JAX's own do. "compiled" calls what `lower(x).compile()` gives, ours and JAX's.
"""

from __future__ import annotations

import argparse
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

DEVICES = np.array(jax.devices()[:8])


def local(x):
    return x * 2


def reduce(x):
    return lax.psum(x, "i") * x


def seconds(function: Callable[[Any], jax.Array], x: jax.Array, calls: int) -> float:
    start = time.perf_counter()
    for _ in range(calls):
        function(x).block_until_ready()
    return (time.perf_counter() - start) / calls


def compare(name: str, ours: Any, theirs: Any, x: jax.Array, rounds: int, calls: int) -> None:
    np.testing.assert_array_equal(ours(x), theirs(x))
    times = []
    for number in range(rounds):
        order = (ours, theirs) if number % 2 else (theirs, ours)
        measured = {function: seconds(function, x, calls) for function in order}
        times.append((measured[ours], measured[theirs]))
    ratio = statistics.median(a / b for a, b in times)
    best = [min(each) * 1e6 for each in zip(*times, strict=True)]
    print(f"{name:28} ours {best[0]:6.1f} us   jax {best[1]:6.1f} us   ratio {ratio:.3f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--calls", type=int, default=200)
    options = parser.parse_args()
    for count, body in ((1, local), (8, local), (8, reduce)):
        mesh = Mesh(DEVICES[:count], "i")
        arguments = {"mesh": mesh, "in_specs": P("i"), "out_specs": P("i")}
        x = jax.device_put(jnp.arange(64.0), NamedSharding(mesh, P("i")))
        ours = shmap_compiler.shard_map(body, **arguments)
        theirs = jax.jit(jax.shard_map(body, **arguments))
        name, repetitions = f"{body.__name__}, devices: {count}", (options.rounds, options.calls)
        compare(f"{name}, jit", jax.jit(ours), theirs, x, *repetitions)
        compiled = ours.lower(x).compile(), theirs.lower(x).compile()
        compare(f"{name}, compiled", *compiled, x, *repetitions)


if __name__ == "__main__":
    main()
