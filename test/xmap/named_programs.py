"""The network of the tutorial of named axes, and meshes that tests share."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.nn import one_hot, relu
from jax.scipy.special import logsumexp
from jax.sharding import AxisType, Mesh

from shmap_compiler import named

DEVICES = np.array(jax.devices("cpu")[:8])
LINE = Mesh(DEVICES, ("x",), axis_types=(AxisType.Auto,))
SQUARE = Mesh(DEVICES.reshape(4, 2), ("x", "y"), axis_types=(AxisType.Auto,) * 2)

IN_AXES = [
    ["inputs", "hidden", ...],
    ["hidden", "classes", ...],
    ["batch", "inputs", ...],
    ["batch", ...],
]
ASSIGNMENTS = {
    "none": ({}, None),
    "batch": ({"batch": "x"}, LINE),
    "hidden": ({"hidden": "x"}, LINE),
    "both": ({"batch": "x", "hidden": "y"}, SQUARE),
}


def network(inputs=784, hidden=512, classes=10, batch=128):
    """Random weights, images and labels."""
    rng = np.random.default_rng(0)
    return (
        jnp.asarray(rng.normal(size=(inputs, hidden)) * 0.05, jnp.float32),
        jnp.asarray(rng.normal(size=(hidden, classes)) * 0.1, jnp.float32),
        jnp.asarray(rng.normal(size=(batch, inputs)), jnp.float32),
        jnp.asarray(rng.integers(0, classes, batch), jnp.int32),
    )


def positional_loss(w1, w2, images, labels):
    logits = relu(images @ w1) @ w2
    predictions = logits - logsumexp(logits, axis=1, keepdims=True)
    targets = one_hot(labels, predictions.shape[-1])
    return -jnp.mean(jnp.sum(targets * predictions, axis=1), axis=0)


def named_loss(w1, w2, image, label):
    hidden = relu(named.pdot(image, w1, "inputs"))
    logits = named.pdot(hidden, w2, "hidden")
    predictions = logits - logsumexp(logits, "classes")
    targets = one_hot(label, lax.psum(1, "classes"), axis="classes")
    losses = lax.psum(targets * predictions, "classes")
    return -lax.pmean(losses, "batch")
