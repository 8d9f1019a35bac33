"""A jitted function at which the process dies, as XLA does on some programs."""

import os

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

mesh = jax.make_mesh((8,), ("i",), axis_types=(AxisType.Auto,))


def dies(x):
    os.abort()
    return x


step = jax.jit(dies, in_shardings=NamedSharding(mesh, P("i")))
step_args = (jax.ShapeDtypeStruct((8,), jnp.float32),)
