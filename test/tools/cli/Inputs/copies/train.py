"""A program of which two copies are compared, each beside other modules of the same names."""

import jax
import jax.numpy as jnp
from activation import activation
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from shmap_compiler import shard_map

mesh = jax.make_mesh((8,), ("i",), axis_types=(AxisType.Auto,))


def layer(x):
    from layers.scale import scale

    return scale(activation(x))


step = jax.jit(layer, in_shardings=NamedSharding(mesh, P("i")))
mapped = shard_map(lambda x: jax.lax.psum(layer(x), "i"), mesh=mesh, in_specs=P("i"), out_specs=P())
step_args = mapped_args = (jnp.arange(64.0),)
