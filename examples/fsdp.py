"""Fully sharded data parallelism: a training loop where no device keeps the whole network.

Eight devices share the batch, and also the parameters and the optimizer's state: each keeps an
eighth of every array. A layer's parameters are gathered right before use and need not be kept after
it: `jax.checkpoint` gathers them again for the backward pass. The transpose of an all-gather is a
reduce-scatter, so `jax.grad` gives each device the gradient of the eighth that it keeps, already
summed over all devices' shares of the batch. The optimizer is optax's, used as on one device: Adam
treats each number separately, so it can work on an eighth of the numbers.

    python examples/fsdp.py                    losses beside those of one device
    shmap run examples/fsdp.py:training_step

Written from the descriptions in "ZeRO: Memory Optimizations Toward Training Trillion Parameter
Models" (Rajbhandari et al., 2019) and "PyTorch FSDP" (Zhao et al., 2023).
"""

import os
from functools import partial
from typing import NamedTuple

# Eight virtual CPU devices, requested before JAX is imported. JAX_PLATFORMS=tpu overrides this.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from shmap_compiler import shard_map

try:
    import optax
except ModuleNotFoundError:
    raise SystemExit("fsdp.py needs optax: pip install optax") from None

BATCH, FEATURES, HIDDEN, STEPS = 32, 8, 16, 30

mesh = Mesh(np.array(jax.devices()[:8]), ("data",))
optimizer = optax.adamw(0.02)


class Layer(NamedTuple):
    weight: jax.Array  # [inputs, outputs]
    bias: jax.Array  # [outputs]


def dense(layer, x):
    return x @ layer.weight + layer.bias


def dense_from_shards(shards, x):
    layer = jax.tree.map(lambda shard: lax.all_gather(shard, "data", axis=0, tiled=True), shards)
    return dense(layer, x)


def loss(layers, inputs, targets, dense):
    """The mean squared error of a network of two layers."""
    first, second = layers
    predictions = dense(second, jnp.tanh(dense(first, inputs)))
    return jnp.mean((predictions - targets) ** 2)


def sharded_loss(shards, inputs, targets):
    """The loss on the whole batch, equal on all devices."""
    return lax.pmean(loss(shards, inputs, targets, jax.checkpoint(dense_from_shards)), "data")


def update(loss_function, state, batch):
    """One step of training: the new state, and the loss before it."""
    parameters, optimizer_state = state
    value, gradients = jax.value_and_grad(loss_function)(parameters, *batch)
    updates, optimizer_state = optimizer.update(gradients, optimizer_state, parameters)
    return (optax.apply_updates(parameters, updates), optimizer_state), value


def initial_state():
    random = np.random.default_rng(0)

    def layer(inputs, outputs):
        weight = random.standard_normal((inputs, outputs)) / inputs**0.5
        return Layer(jnp.asarray(weight, jnp.float32), jnp.zeros(outputs))

    parameters = (layer(FEATURES, HIDDEN), layer(HIDDEN, FEATURES))
    return parameters, optimizer.init(parameters)


def batches(steps):
    """Inputs and targets: the network is to sort its inputs."""
    random = np.random.default_rng(1)
    for _ in range(steps):
        inputs = random.standard_normal((BATCH, FEATURES)).astype(np.float32)
        yield inputs, np.sort(inputs, axis=-1)


# Every array is split along its first dimension, but Adam's count of steps, which has none.
STATE = jax.tree.map(lambda array: P("data") if array.ndim else P(), initial_state())


@partial(shard_map, mesh=mesh, in_specs=(STATE, P("data")), out_specs=(STATE, P()))
def training_step(state, batch):
    return update(sharded_loss, state, batch)


def training_step_reference(state, batch):
    return update(partial(loss, dense=dense), state, batch)


def training_step_args():
    return initial_state(), next(batches(1))


def train(step, state, steps=STEPS):
    """The losses of `steps` steps, and the last state."""
    step = jax.jit(step, donate_argnums=0)
    losses = []
    for batch in batches(steps):
        state, value = step(state, batch)
        losses.append(float(value))
    return losses, state


def sharded_initial_state():
    """The initial state, an eighth of each array on each device."""
    shardings = jax.tree.map(partial(NamedSharding, mesh), STATE)
    return jax.device_put(initial_state(), shardings)


def main():
    losses, (parameters, _) = train(training_step, sharded_initial_state())
    expected, _ = train(training_step_reference, initial_state())
    print("step  eight devices  one device")
    for step in range(0, STEPS, 5):
        print(f"{step:4}  {losses[step]:13.6f}  {expected[step]:10.6f}")
    weight = parameters[0].weight
    print(f"\na weight {weight.shape}, on each device {weight.addressable_shards[0].data.shape}")


if __name__ == "__main__":
    main()
