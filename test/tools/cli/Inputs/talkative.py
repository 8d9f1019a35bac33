"""Reads arguments and prints when it is imported, and prints when it is traced."""

import argparse

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from shmap_compiler import shard_map

parser = argparse.ArgumentParser()
parser.add_argument("--rows", type=int, default=8)
rows = parser.parse_args().rows
print("loading data")
mesh = jax.make_mesh((8,), ("i",), axis_types=(AxisType.Auto,))


def body(x):
    print("tracing")
    return lax.psum(x, "i")


total = shard_map(body, mesh=mesh, in_specs=P("i"), out_specs=P())
step = jax.jit(lambda x: jnp.tanh(x).sum(), in_shardings=NamedSharding(mesh, P("i")))
total_args = step_args = (jnp.arange(float(rows)),)
