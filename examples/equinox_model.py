"""A model of the Equinox library inside: a transformer block, its batch split over eight devices.

An Equinox model is a pytree with leaves that are not arrays, such as activation functions.
`eqx.partition` takes them out: the arrays are an argument of the shard_mapped function, the rest is
closed over. Dropout needs random keys, one for each sequence, split like the batch.

    python examples/equinox_model.py    a loss and its gradients beside those of one device
    shmap run examples/equinox_model.py:predict
    shmap run examples/equinox_model.py:loss_and_gradients

In `loss_and_gradients` the derivative is taken inside the function. The loss is a mean over all
devices and the weights are equal on them, so the gradients are already summed over the devices.

The block is that of "On Layer Normalization in the Transformer Architecture" (Xiong et al., 2020),
with the normalization before each part.
"""

import os
from functools import partial

# Eight virtual CPU devices, requested before JAX is imported. JAX_PLATFORMS=tpu overrides this.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from shmap_compiler import shard_map

try:
    import equinox as eqx
except ModuleNotFoundError:
    raise SystemExit("equinox_model.py needs equinox: pip install equinox") from None

BATCH, LENGTH, FEATURES, HEADS = 16, 6, 8, 2

mesh = Mesh(np.array(jax.devices()[:8]), ("data",))
WEIGHTS, DATA = P(), P("data")


class Block(eqx.Module):
    """One transformer block, for one sequence [position, feature]."""

    norms: tuple[eqx.nn.LayerNorm, eqx.nn.LayerNorm]
    attention: eqx.nn.MultiheadAttention
    mlp: eqx.nn.MLP
    dropout: eqx.nn.Dropout

    def __init__(self, key):
        attention_key, mlp_key = jax.random.split(key)
        self.norms = (eqx.nn.LayerNorm(FEATURES), eqx.nn.LayerNorm(FEATURES))
        self.attention = eqx.nn.MultiheadAttention(HEADS, FEATURES, key=attention_key)
        self.mlp = eqx.nn.MLP(FEATURES, FEATURES, 4 * FEATURES, 1, jax.nn.gelu, key=mlp_key)
        self.dropout = eqx.nn.Dropout(0.1)

    def __call__(self, sequence, key):
        normal = jax.vmap(self.norms[0])(sequence)
        sequence = sequence + self.attention(normal, normal, normal)
        normal = jax.vmap(self.norms[1])(sequence)
        return sequence + self.dropout(jax.vmap(self.mlp)(normal), key=key)


weights, not_arrays = eqx.partition(Block(jax.random.key(0)), eqx.is_array)


def predict_reference(weights, sequences, keys):
    return jax.vmap(eqx.combine(weights, not_arrays))(sequences, keys)


def mean_squared_error(weights, sequences, targets, keys):
    return jnp.mean((predict_reference(weights, sequences, keys) - targets) ** 2)


def loss_and_gradients_reference(*args):
    return jax.value_and_grad(mean_squared_error)(*args)


@partial(shard_map, mesh=mesh, in_specs=(WEIGHTS, DATA, DATA), out_specs=DATA)
def predict(weights, sequences, keys):
    return predict_reference(weights, sequences, keys)


@partial(shard_map, mesh=mesh, in_specs=(WEIGHTS, DATA, DATA, DATA), out_specs=(P(), WEIGHTS))
def loss_and_gradients(*args):
    def loss(*args):
        return lax.pmean(mean_squared_error(*args), "data")

    return jax.value_and_grad(loss)(*args)


random = np.random.default_rng(0)
sequences, targets = (
    jnp.asarray(random.standard_normal((BATCH, LENGTH, FEATURES)), jnp.float32) for _ in range(2)
)
keys = jax.random.split(jax.random.key(1), BATCH)

predict_args = (weights, sequences, keys)
loss_and_gradients_args = (weights, sequences, targets, keys)


def main():
    loss, gradients = jax.jit(loss_and_gradients)(*loss_and_gradients_args)
    expected_loss, expected = loss_and_gradients_reference(*loss_and_gradients_args)
    errors = jax.tree.map(lambda g, e: jnp.abs(g - e).max(), gradients, expected)
    count = len(jax.tree.leaves(weights))
    print(f"{BATCH} sequences on {mesh.size} devices, {count} arrays of weights")
    print(f"  loss         {loss:.6f} (one device: {expected_loss:.6f})")
    print(f"  gradients    largest difference {max(jax.tree.leaves(errors)):.1e}")


if __name__ == "__main__":
    main()
