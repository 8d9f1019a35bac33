"""Training a transformer with its heads, its features and its tokens split over devices.

Each device has the weights of some heads and of some hidden features, and between the layers the
activations of some of the tokens. Every attention and every MLP gathers the tokens and scatters the
sums over devices, which is all that is sent; the gradient does the same the other way round.

    python examples/sequence_parallel.py    the losses of 20 steps, and the gradient on one device
    shmap run examples/sequence_parallel.py:loss_and_gradients

The collectives are written plainly, one after the other with the products. For TPUs the compiler
finds which of them to send in rings or chunks while it computes, and which to leave, because other
products of the gradient run beside them; docs/overlap-results.md has the times for layers of real
models.
With and without `--overlap=auto`:

    shmap explain examples/sequence_parallel.py:loss_and_gradients --target tpu:v5e:2x4

Written from the description in "Reducing Activation Recomputation in Large Transformer Models"
(Korthikanti et al., 2022).
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

LAYERS, FEATURES, HIDDEN, HEADS, HEAD = 2, 16, 64, 8, 4
SEQUENCES, TIMES = 8, 6

mesh = Mesh(np.array(jax.devices()[:8]), ("model",))

Layer = dict[str, jax.Array]
WEIGHTS = {
    "qkv": P(None, None, "model"),  # [3, features, heads * head]
    "out": P("model", None),  # [heads * head, features]
    "up": P(None, "model"),  # [features, hidden]
    "down": P("model", None),  # [hidden, features]
}


def normalized(x):
    return x * lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + 1e-6)


def attention(x, layer: Layer):
    """Of all tokens, [sequences * times, features], with the heads whose weights are here."""
    q, k, v = ((x @ w).reshape(-1, TIMES, w.shape[-1] // HEAD, HEAD) for w in layer["qkv"])
    scores = jnp.einsum("bthd,bshd->bhts", q, k) / HEAD**0.5
    mixed = jnp.einsum("bhts,bshd->bthd", jax.nn.softmax(scores), v)
    return mixed.reshape(-1, layer["out"].shape[0]) @ layer["out"]


def mlp(x, layer: Layer):
    return jax.nn.gelu(x @ layer["up"]) @ layer["down"]


def transformer(layers: list[Layer], x, gather, scatter):
    for layer in layers:
        x = x + scatter(attention(gather(normalized(x)), layer))
        x = x + scatter(mlp(gather(normalized(x)), layer))
    return x


def loss(layers: list[Layer], x, targets, gather, scatter):
    """The sum of squares over the tokens that are here."""
    return jnp.sum((transformer(layers, x, gather, scatter) - targets) ** 2)


TOKENS = P("model", None)


@partial(
    shard_map,
    mesh=mesh,
    in_specs=([WEIGHTS] * LAYERS, TOKENS, TOKENS),
    out_specs=(P(), [WEIGHTS] * LAYERS),
)
def loss_and_gradients(layers: list[Layer], x, targets):
    gather = partial(lax.all_gather, axis_name="model", axis=0, tiled=True)
    scatter = partial(lax.psum_scatter, axis_name="model", scatter_dimension=0, tiled=True)

    def mean(layers: list[Layer]):
        total = lax.psum(loss(layers, x, targets, gather, scatter), "model")
        return total / (SEQUENCES * TIMES * FEATURES)

    return jax.value_and_grad(mean)(layers)


def loss_and_gradients_reference(layers: list[Layer], x, targets):
    """On one device nothing is gathered or scattered."""

    def mean(layers: list[Layer]):
        total = loss(layers, x, targets, lambda x: x, lambda x: x)
        return total / (SEQUENCES * TIMES * FEATURES)

    return jax.value_and_grad(mean)(layers)


def loss_and_gradients_args():
    random = np.random.default_rng(0)

    def normal(*shape):
        scale = shape[-2] ** -0.5
        return jnp.asarray(scale * random.standard_normal(shape), jnp.float32)

    layers = [
        {
            "qkv": normal(3, FEATURES, HEADS * HEAD),
            "out": normal(HEADS * HEAD, FEATURES),
            "up": normal(FEATURES, HIDDEN),
            "down": normal(HIDDEN, FEATURES),
        }
        for _ in range(LAYERS)
    ]
    return layers, normal(SEQUENCES * TIMES, FEATURES), normal(SEQUENCES * TIMES, FEATURES)


@jax.jit
def step(layers: list[Layer], x, targets):
    value, gradients = loss_and_gradients(layers, x, targets)
    return value, jax.tree.map(lambda w, g: w - 0.3 * g, layers, gradients)


def main():
    layers, x, targets = loss_and_gradients_args()
    _, gradients = jax.jit(loss_and_gradients)(layers, x, targets)
    _, expected = loss_and_gradients_reference(layers, x, targets)
    differences = jax.tree.map(lambda a, b: jnp.abs(a - b).max(), gradients, expected)
    losses = []
    for _ in range(20):
        value, layers = step(layers, x, targets)
        losses.append(float(value))
    print(f"{SEQUENCES * TIMES} tokens, {LAYERS} layers of {HEADS} heads on {mesh.size} devices")
    print(f"  losses       {losses[0]:.4f} in the first step, {losses[-1]:.4f} in the last")
    print(f"  difference   {max(jax.tree.leaves(differences)):.1e} of the first gradients")


if __name__ == "__main__":
    main()
