"""Time of eager calls on 8 CPU devices, ours against JAX's.

    python benchmarks/eager.py [--calls 20] [--calls-of-jax 2] [--megabytes 128]

Both run the same body, called outside of `jax.jit`, in one process: 32 primitives on a small array,
and one primitive on a large array that is split over the devices. Ours compiles every operation
once, in the first call, and keeps it. Of the later calls the minimum counts, as the rest is noise
of the machine. The last column is the ratio of ours to JAX's: below 1 we are faster.
"""

from __future__ import annotations

import argparse
import os
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
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import shmap_compiler

MESH = jax.sharding.Mesh(np.array(jax.devices()[:8]).reshape(4, 2), ("i", "j"))
OPTIONS = {"mesh": MESH, "in_specs": P("i", "j"), "out_specs": P("i", "j"), "check_vma": False}


def body(x: jax.Array) -> jax.Array:
    """32 primitives, six of them collectives."""
    for _ in range(6):
        x = lax.sin(x)
        x = lax.add(x, x)
        x = lax.mul(x, x)
        x = lax.psum(x, "j")
        x = lax.neg(x)
    return lax.exp(lax.tanh(x))


def seconds(function: Callable[[Any], jax.Array], x: jax.Array, calls: int) -> tuple[float, float]:
    """(the first call, the fastest of the following ones)."""
    times = []
    for _ in range(1 + calls):
        start = time.perf_counter()
        jax.block_until_ready(function(x))
        times.append(time.perf_counter() - start)
    return times[0], min(times[1:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--calls", type=int, default=20)
    parser.add_argument("--calls-of-jax", type=int, default=2)
    parser.add_argument("--megabytes", type=int, default=128)
    options = parser.parse_args()

    x = jnp.arange(64.0).reshape(8, 8) / 64
    primitives = len(jax.make_jaxpr(body, axis_env=[("i", 4), ("j", 2)])(x[:2, :4]).eqns)
    rows = compare(body, x, options.calls, options.calls_of_jax)
    print(f"{primitives} primitives on {MESH.size} CPU devices, called outside of jit")
    show(rows)

    elements = options.megabytes * 2**20 // 4
    large = jax.device_put(jnp.ones((1024, elements // 1024)), NamedSharding(MESH, P("i", "j")))
    rows = compare(lambda x: lax.mul(x, x), large, 3, 3)
    print(f"1 primitive on a split array of {options.megabytes} MB")
    show(rows)


def compare(
    function: Callable[[Any], Any], x: jax.Array, calls: int, calls_of_jax: int
) -> list[tuple[str, float, float]]:
    """(what, our seconds, those of JAX) of the first and of later calls."""
    ours = shmap_compiler.shard_map(function, **OPTIONS)
    theirs = jax.shard_map(function, **OPTIONS)
    shmap_compiler.eager.PROGRAMS.clear()
    first, warm = seconds(ours, x, calls)
    first_of_jax, warm_of_jax = seconds(theirs, x, calls_of_jax)
    np.testing.assert_allclose(ours(x), jax.jit(theirs)(x), rtol=1e-5)
    return [("first call", first, first_of_jax), ("later calls", warm, warm_of_jax)]


def show(rows: list[tuple[str, float, float]]) -> None:
    print(f"{'':16}{'ours':>14}{'jax.shard_map':>16}{'ratio':>10}")
    for what, ours, theirs in rows:
        print(f"{what:16}{1e3 * ours:11.2f} ms{1e3 * theirs:13.2f} ms{ours / theirs:10.3f}")


if __name__ == "__main__":
    main()
