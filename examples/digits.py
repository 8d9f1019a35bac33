"""A small neural network that reads handwritten digits, on eight devices.

The network (64 pixels, 128 hidden units, 10 digits) is trained on one device with plain JAX on
scikit-learn's digits, in a second or two. Its forward pass on images that it has not seen is then
partitioned in three ways, all with the result of the unpartitioned network:

- `data_parallel`: every device has all weights and an eighth of the images. No communication.
- `tensor_parallel`: every device has an eighth of the hidden units and all images. One all-reduce.
- `data_and_tensor_parallel`: four groups of images, in each of which two devices share the units.

    python examples/digits.py                    accuracies, and what lies on each device
    shmap run examples/digits.py:data_parallel
    shmap run examples/digits.py:tensor_parallel
    shmap run examples/digits.py:data_and_tensor_parallel
"""

import os
from functools import cache, partial
from typing import NamedTuple

# Eight virtual CPU devices, requested before JAX is imported. JAX_PLATFORMS=tpu overrides this.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

from shmap_compiler import shard_map

try:
    from sklearn.datasets import load_digits
except ModuleNotFoundError:
    raise SystemExit("digits.py needs scikit-learn: pip install scikit-learn") from None

HIDDEN = 128
TEST_IMAGES = 400  # of 1797

mesh = jax.make_mesh((4, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
ALL = ("data", "model")  # both axes as one axis of eight devices


class Weights(NamedTuple):
    """Two dense layers."""

    w1: jax.Array  # [64, hidden]
    b1: jax.Array  # [hidden]
    w2: jax.Array  # [hidden, 10]
    b2: jax.Array  # [10]


def predict(weights, images):
    """The scores of the ten digits, for each image, on one device."""
    hidden = jax.nn.relu(images @ weights.w1 + weights.b1)
    return hidden @ weights.w2 + weights.b2


@partial(shard_map, mesh=mesh, in_specs=(P(), P(ALL)), out_specs=P(ALL))
def data_parallel(weights, images):
    return predict(weights, images)


def predict_with_cut_hidden_units(weights, images, axis_name):
    """As `predict`, where each device along `axis_name` has a part of the hidden units."""
    hidden = jax.nn.relu(images @ weights.w1 + weights.b1)
    return lax.psum(hidden @ weights.w2, axis_name) + weights.b2


def cut_hidden_units(axis_name):
    """The specs of weights whose hidden units are split over `axis_name`."""
    return Weights(w1=P(None, axis_name), b1=P(axis_name), w2=P(axis_name, None), b2=P())


@partial(shard_map, mesh=mesh, in_specs=(cut_hidden_units(ALL), P()), out_specs=P())
def tensor_parallel(weights, images):
    return predict_with_cut_hidden_units(weights, images, ALL)


@partial(shard_map, mesh=mesh, in_specs=(cut_hidden_units("model"), P("data")), out_specs=P("data"))
def data_and_tensor_parallel(weights, images):
    return predict_with_cut_hidden_units(weights, images, "model")


@cache
def digits():
    """Training images, their labels, test images, their labels; pixels from 0 to 1."""
    data = load_digits()
    order = np.random.default_rng(0).permutation(len(data.target))
    images = jnp.asarray(data.data[order] / 16, jnp.float32)
    labels = jnp.asarray(data.target[order], jnp.int32)
    return images[TEST_IMAGES:], labels[TEST_IMAGES:], images[:TEST_IMAGES], labels[:TEST_IMAGES]


@cache
def trained_weights(steps=300, rate=0.2, momentum=0.9):
    """Weights after gradient descent with momentum on all training images."""
    images, labels, _, _ = digits()
    random = np.random.default_rng(1)
    weights = Weights(
        w1=jnp.asarray(random.standard_normal((64, HIDDEN)) * 64**-0.5, jnp.float32),
        b1=jnp.zeros(HIDDEN),
        w2=jnp.asarray(random.standard_normal((HIDDEN, 10)) * HIDDEN**-0.5, jnp.float32),
        b2=jnp.zeros(10),
    )

    def loss(weights):
        log_probabilities = jax.nn.log_softmax(predict(weights, images))
        return -jnp.mean(jnp.take_along_axis(log_probabilities, labels[:, None], axis=1))

    def step(_, state):
        weights, velocity = state
        velocity = jax.tree.map(
            lambda v, g: momentum * v - rate * g, velocity, jax.grad(loss)(weights)
        )
        return jax.tree.map(jnp.add, weights, velocity), velocity

    start = (weights, jax.tree.map(jnp.zeros_like, weights))
    weights, _ = jax.jit(lambda state: lax.fori_loop(0, steps, step, state))(start)
    return weights


def weights_and_images():
    _, _, images, _ = digits()
    return trained_weights(), images


data_parallel_args = tensor_parallel_args = data_and_tensor_parallel_args = weights_and_images
data_parallel_reference = tensor_parallel_reference = data_and_tensor_parallel_reference = predict


def accuracy(scores, labels):
    """The share of images whose highest score is that of the right digit."""
    return float(jnp.mean(jnp.argmax(scores, axis=-1) == labels))


def report(name, forward):
    """Prints how well a partitioned forward pass does, and what each device holds of its result."""
    _, _, images, labels = digits()
    scores = forward(trained_weights(), images)
    expected = predict(trained_weights(), images)
    print(name)
    print(f"  accuracy         {accuracy(scores, labels):.2%}")
    print(f"  difference       {float(jnp.max(jnp.abs(scores - expected))):.1e}")
    print(f"  scores           {scores.shape}, {scores.sharding.spec}")
    print(f"  on each device   {scores.addressable_shards[0].data.shape}")


def main():
    training_images, _, images, labels = digits()
    print(f"Trained on {len(training_images)} digits, tested on {len(images)} others,")
    print(f"on {mesh.size} devices: {dict(mesh.shape)}.\n")
    print("one device")
    print(f"  accuracy         {accuracy(predict(trained_weights(), images), labels):.2%}")
    report("data_parallel", data_parallel)
    report("tensor_parallel", tensor_parallel)
    report("data_and_tensor_parallel", data_and_tensor_parallel)


if __name__ == "__main__":
    main()
