"""A program in which some devices wait for others that do not come. It has to be killed."""

import os

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=4"
os.environ["JAX_PLATFORMS"] = "cpu"

import jax
import numpy as np
from jax import lax
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from shmap_compiler import shard_map

MESH = Mesh(np.array(jax.devices()).reshape(2, 2), ("i", "j"))


def step(x):
    x = lax.psum(x, "i")
    x = lax.fori_loop(0, 3, lambda _, x: lax.ppermute(x, "j", [(0, 1), (1, 0)]), x)
    return lax.cond(lax.axis_index("i") == 0, lambda x: lax.pmax(x, "i"), lambda x: x, x)


if __name__ == "__main__":
    function = shard_map(
        step, mesh=MESH, in_specs=P("i", "j"), out_specs=P("i", "j"), check_hangs=False
    )
    print(np.asarray(jax.jit(function)(np.ones((4, 4), np.float32))))
