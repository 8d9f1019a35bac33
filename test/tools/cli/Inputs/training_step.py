"""A training step: a shard_mapped block, split batches around it, and plain gradient descent."""

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from shmap_compiler import shard_map

mesh = jax.make_mesh((4, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2)


@shard_map(mesh=mesh, in_specs=(P("data"), P(None, "model"), P("model")), out_specs=P("data"))
def block(x, first, second):
    return lax.psum(jnp.tanh(x @ first) @ second, "model")


def loss(params, x):
    return (block(x, *params) ** 2).mean()


@jax.jit
def step(params, x):
    grads = jax.grad(loss)(params, x)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads)


def typed(shape, *spec):
    return jax.ShapeDtypeStruct(shape, jnp.float32, sharding=NamedSharding(mesh, P(*spec)))


step_args = ((typed((16, 32), None, "model"), typed((32, 16), "model")), typed((32, 16), "data"))
