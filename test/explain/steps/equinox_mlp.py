"""A training step of an Equinox model with optax, its batch split over eight devices."""

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from shmap_compiler import shard_map

mesh = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Auto,))
optimizer = optax.sgd(1e-2)
model = eqx.filter_eval_shape(eqx.nn.MLP, 16, 16, 32, 2, key=jax.random.key(0))
weights, rest = eqx.partition(model, lambda leaf: isinstance(leaf, jax.ShapeDtypeStruct))


@shard_map(mesh=mesh, in_specs=(P(), P("data")), out_specs=P())
def loss(weights, x):
    error = jax.vmap(eqx.combine(weights, rest))(x) - x
    return jax.lax.pmean((error**2).mean(), "data")


@jax.jit
def step(weights, state, x):
    updates, state = optimizer.update(jax.grad(loss)(weights, x), state)
    return eqx.apply_updates(weights, updates), state


def typed(type_, *spec):
    sharding = NamedSharding(mesh, P(*spec))
    return jax.ShapeDtypeStruct(type_.shape, type_.dtype, sharding=sharding)


x = jax.ShapeDtypeStruct((64, 16), jnp.float32)
types = jax.tree.map(typed, weights)
step_args = (types, jax.tree.map(typed, jax.eval_shape(optimizer.init, types)), typed(x, "data"))
