"""Time of an eager call of a 32-primitive body on 8 CPU devices, ours against JAX's.

    python benchmarks/eager.py [--calls 20] [--calls-of-jax 2]

Both run the same body, called outside of `jax.jit`, in one process. The first call of each is not
counted: ours compiles every operation once, and keeps it. The minimum of the calls counts, as the
rest is noise of the machine. It prints a ratio: how many times faster we are.
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
    options = parser.parse_args()

    x = jnp.arange(64.0).reshape(8, 8) / 64
    primitives = len(jax.make_jaxpr(body, axis_env=[("i", 4), ("j", 2)])(x[:2, :4]).eqns)
    ours = shmap_compiler.shard_map(body, **OPTIONS)
    theirs = jax.shard_map(body, **OPTIONS)
    np.testing.assert_allclose(ours(x), jax.jit(theirs)(x), rtol=1e-5)

    shmap_compiler.eager.PROGRAMS.clear()
    first, warm = seconds(ours, x, options.calls)
    first_of_jax, warm_of_jax = seconds(theirs, x, options.calls_of_jax)
    print(f"{primitives} primitives on {MESH.size} CPU devices, called outside of jit")
    print(f"{'':16}{'first call':>14}{'warm call':>14}")
    print(f"{'shmap_compiler':16}{1e3 * first:11.1f} ms{1e3 * warm:11.2f} ms")
    print(f"{'jax.shard_map':16}{1e3 * first_of_jax:11.1f} ms{1e3 * warm_of_jax:11.2f} ms")
    print(f"warm calls are {warm_of_jax / warm:.0f} times faster")


if __name__ == "__main__":
    main()
