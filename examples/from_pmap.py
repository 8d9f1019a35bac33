"""A training step that was written for pmap: as it was, with replicated weights, and as shard_map.

    python examples/from_pmap.py    trains with each, and shows what the weights take
    shmap run examples/from_pmap.py:shard_mapped_step
    shmap lower examples/from_pmap.py:stacked_step --stage body --arg 'f32[8,4,2]' \\
        --arg 'f32[8,8,4]' --arg 'f32[8,8,2]'

- `stacked_step` is the old habit: weights with a row for each device, which are equal, and are
  known to nobody to be so.
- `step` passes and returns them with `in_axes=None` and `out_axes=None`: one array, which all
  devices have, and an error if they would differ.
- `shard_mapped_step` takes the whole batch, in the shape in which it comes. Its gradient is that of
  the mean loss of all devices, so no `pmean` is applied to gradients.
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
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

from shmap_compiler import ReplicationError, pmap, shard_map

RATE, STEPS = 0.1, 20

mesh = jax.make_mesh((8,), ("batch",), axis_types=(AxisType.Auto,))


def loss(w, x, y):
    return jnp.mean((x @ w - y) ** 2)


def row_step(w, x, y):
    """Of the examples of one device, with the gradients of all."""
    return w - RATE * lax.pmean(jax.grad(loss)(w, x, y), "batch")


stacked_step = pmap(row_step, "batch")
step = pmap(row_step, "batch", in_axes=(None, 0, 0), out_axes=None)


@partial(shard_map, mesh=mesh, in_specs=(P(), P("batch"), P("batch")), out_specs=P())
def shard_mapped_step(w, x, y):
    def mean_loss(w):
        return lax.pmean(loss(w, x, y), "batch")

    return w - RATE * jax.grad(mean_loss)(w)


def shard_mapped_step_reference(w, x, y):
    return w - RATE * jax.grad(loss)(w, x, y)


def shard_mapped_step_args():
    random = np.random.default_rng(0)
    x, w = random.normal(size=(64, 4)), random.normal(size=(4, 2))
    return tuple(jnp.asarray(a, jnp.float32) for a in (np.zeros((4, 2)), x, x @ w))


def rows(array):
    """From [64, ...] to [8, 8, ...], a row for each device."""
    return array.reshape(8, 8, *array.shape[1:])


def forgetful_step(w, x, y):
    return w - RATE * jax.grad(loss)(w, x, y)


def main():
    w, x, y = shard_mapped_step_args()
    ways = {
        "stacked_step": (stacked_step, jnp.stack([w] * 8), rows(x), rows(y)),
        "step": (step, w, rows(x), rows(y)),
        "shard_mapped_step": (jax.jit(shard_mapped_step), w, x, y),
    }
    for name, (train, weights, *data) in ways.items():
        for _ in range(STEPS):
            weights = jax.block_until_ready(train(weights, *data))
        after = loss(weights[0] if name == "stacked_step" else weights, x, y)
        print(f"{name:18} loss {after:.6f}   weights {weights.shape}, {weights.sharding.spec}")
    try:
        pmap(forgetful_step, "batch", in_axes=(None, 0, 0), out_axes=None)(w, rows(x), rows(y))
    except ReplicationError as error:
        print(f"\nwithout the pmean:\n{error}")


if __name__ == "__main__":
    main()
