"""Layers as those of Llama 3 8B, with all collectives by hand, for `overlap_examples.py`.

Tokens are split over the devices between the layers, and heads and hidden features inside. Queries
share keys and values: of 32 heads and 8, a group of eight devices has four and one each.
"""

from functools import partial

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import AbstractMesh
from jax.sharding import PartitionSpec as P

from shmap_compiler import shard_map

LAYERS, FEATURES, HIDDEN, HEADS, SHARED, HEAD = 2, 4096, 14336, 32, 8, 128
SEQUENCES, TIMES, DEVICES = 4, 4096, 8
AXIS = "tp"
WEIGHTS = {
    "before": ((FEATURES,), P()),
    "query": ((FEATURES, HEADS, HEAD), P(None, AXIS)),
    "key": ((FEATURES, SHARED, HEAD), P(None, AXIS)),
    "value": ((FEATURES, SHARED, HEAD), P(None, AXIS)),
    "out": ((HEADS, HEAD, FEATURES), P(AXIS)),
    "between": ((FEATURES,), P()),
    "gate": ((FEATURES, HIDDEN), P(None, AXIS)),
    "up": ((FEATURES, HIDDEN), P(None, AXIS)),
    "down": ((HIDDEN, FEATURES), P(AXIS)),
}


def normalized(x, scale):
    wide = x.astype(jnp.float32)
    norm = lax.rsqrt(jnp.mean(wide * wide, -1, keepdims=True) + 1e-5)
    return (wide * norm).astype(x.dtype) * scale


def rotated(x):
    """[sequences, times, heads, head], by the angles of its times."""
    half = x.shape[-1] // 2
    angles = jnp.arange(x.shape[1])[:, None] * 5e5 ** (-jnp.arange(half) / half)
    cos, sin = jnp.cos(angles)[:, None], jnp.sin(angles)[:, None]
    a, b = jnp.split(x.astype(jnp.float32), 2, -1)
    return jnp.concatenate([a * cos - b * sin, a * sin + b * cos], -1).astype(x.dtype)


def attention(x, w):
    q, k, v = (jnp.einsum("btf,fhd->bthd", x, w[name]) for name in ("query", "key", "value"))
    q, k = rotated(q), rotated(k)
    q = q.reshape(*k.shape[:3], -1, HEAD)
    scores = jnp.einsum("btgqd,bsgd->bgqts", q, k).astype(jnp.float32) / HEAD**0.5
    is_before = jnp.tril(jnp.ones(scores.shape[-2:], bool))
    shares = jax.nn.softmax(jnp.where(is_before, scores, -1e30)).astype(x.dtype)
    mixed = jnp.einsum("bgqts,bsgd->btgqd", shares, v)
    return jnp.einsum("bthd,hdf->btf", mixed.reshape(*x.shape[:2], -1, HEAD), w["out"])


def mlp(x, w):
    gate, up = (jnp.einsum("btf,fh->bth", x, w[name]) for name in ("gate", "up"))
    return jnp.einsum("bth,hf->btf", jax.nn.silu(gate) * up, w["down"])


def layer(x, w):
    gather = partial(lax.all_gather, axis_name=AXIS, axis=1, tiled=True)
    scatter = partial(lax.psum_scatter, axis_name=AXIS, scatter_dimension=1, tiled=True)
    x = x + scatter(attention(gather(normalized(x, w["before"])), w))
    return x + scatter(mlp(gather(normalized(x, w["between"])), w))


def forward(layers, x, layer=layer):
    for w in layers:
        x = layer(x, w)
    return x


def loss(layers, x, layer=layer):
    x = forward(layers, x, layer)
    return lax.psum(jnp.sum(x.astype(jnp.float32) ** 2), AXIS)


def gradients_of(loss, weights, count, mesh, spec, shape):
    """The gradient of layers by their weights, and the types of its arguments.

    Args:
      loss: of the weights of all layers, and of rows.
      weights: the shapes and specs of a layer.
      count: of layers.
      spec, shape: of the rows.
    """
    specs, layers = layers_of(weights, count)
    mapped = shard_map(
        # Another function each time, as what is traced is cached.
        jax.grad(lambda layers, x: loss(layers, x)),
        mesh=mesh,
        in_specs=(specs, spec),
        out_specs=specs,
    )
    return mapped, (layers, jax.ShapeDtypeStruct(shape, jnp.bfloat16))


def layers_of(weights, count):
    """The specs and the types of the weights of layers."""
    types = {
        name: jax.ShapeDtypeStruct(shape, jnp.bfloat16) for name, (shape, _) in weights.items()
    }
    return [{name: spec for name, (_, spec) in weights.items()}] * count, [types] * count


MESH, ROWS, SHAPE = AbstractMesh((DEVICES,), (AXIS,)), P(None, AXIS), (SEQUENCES, TIMES, FEATURES)


def gradients():
    return gradients_of(loss, WEIGHTS, LAYERS, MESH, ROWS, SHAPE)


def recomputed_gradients():
    """Those of layers that the gradient computes again."""
    recomputed = partial(loss, layer=jax.checkpoint(layer))
    return gradients_of(recomputed, WEIGHTS, LAYERS, MESH, ROWS, SHAPE)


def forward_pass():
    """What a server computes of a prompt, without its cache."""
    specs, layers = layers_of(WEIGHTS, LAYERS)
    mapped = shard_map(
        lambda layers, x: forward(layers, x), mesh=MESH, in_specs=(specs, ROWS), out_specs=ROWS
    )
    return mapped, (layers, jax.ShapeDtypeStruct(SHAPE, jnp.bfloat16))
