"""Layers as those of DeepSeek-V2-Lite, with all collectives by hand, for `overlap_examples.py`.

Sequences and experts are split over the same devices: eight of 64 experts on each of eight. Each
token goes to six experts, of which each takes a limited number of tokens from each device.
Gradients compute layers again.
"""

from functools import partial

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import AbstractMesh
from jax.sharding import PartitionSpec as P
from llama import gradients_of, normalized

LAYERS, FEATURES, HIDDEN, HEADS, HEAD = 2, 2048, 1408, 16, 128
EXPERTS, EACH, SURPLUS = 64, 6, 1.25
SEQUENCES, TIMES, DEVICES = 4, 2048, 8
AXIS = "ep"
WEIGHTS = {
    "before": ((FEATURES,), P()),
    "query": ((FEATURES, HEADS, HEAD), P()),
    "key": ((FEATURES, HEADS, HEAD), P()),
    "value": ((FEATURES, HEADS, HEAD), P()),
    "out": ((HEADS, HEAD, FEATURES), P()),
    "between": ((FEATURES,), P()),
    "router": ((FEATURES, EXPERTS), P()),
    "gate": ((EXPERTS, FEATURES, HIDDEN), P(AXIS)),
    "up": ((EXPERTS, FEATURES, HIDDEN), P(AXIS)),
    "down": ((EXPERTS, HIDDEN, FEATURES), P(AXIS)),
}


def attention(x, w):
    q, k, v = (jnp.einsum("btf,fhd->bthd", x, w[name]) for name in ("query", "key", "value"))
    scores = jnp.einsum("bthd,bshd->bhts", q, k).astype(jnp.float32) / HEAD**0.5
    is_before = jnp.tril(jnp.ones(scores.shape[-2:], bool))
    shares = jax.nn.softmax(jnp.where(is_before, scores, -1e30)).astype(x.dtype)
    return jnp.einsum("bthd,hdf->btf", jnp.einsum("bhts,bshd->bthd", shares, v), w["out"])


def places(experts, capacity):
    """The places of choices among those of all experts; the number of places if there is none."""
    flat = experts.reshape(-1)
    before = jnp.cumsum(jax.nn.one_hot(flat, EXPERTS, dtype=jnp.int32), 0) - 1
    number = jnp.take_along_axis(before, flat[:, None], 1)[:, 0]
    return jnp.where(number < capacity, flat * capacity + number, EXPERTS * capacity)


def mixture(x, w):
    """[tokens, features]"""
    tokens = x.shape[0]
    capacity = int(tokens * EACH * SURPLUS / EXPERTS)
    shares = jax.nn.softmax((x @ w["router"]).astype(jnp.float32))
    shares, experts = lax.top_k(shares, EACH)
    place = places(experts, capacity)
    token = (
        jnp.full(EXPERTS * capacity, tokens)
        .at[place]
        .set(jnp.arange(tokens * EACH) // EACH, mode="drop")
    )
    taken = partial(jnp.take, axis=0, mode="fill", fill_value=0)
    sent = taken(x, token).reshape(EXPERTS, capacity, FEATURES)
    rows = lax.all_to_all(sent, AXIS, 0, 1, tiled=True)
    gate, up = (jnp.einsum("ecf,efh->ech", rows, w[name]) for name in ("gate", "up"))
    rows = jnp.einsum("ech,ehf->ecf", jax.nn.silu(gate) * up, w["down"])
    back = lax.all_to_all(rows, AXIS, 1, 0, tiled=True)
    chosen = taken(back.reshape(-1, FEATURES), place).reshape(tokens, EACH, FEATURES)
    return jnp.einsum("tkf,tk->tf", chosen, shares.astype(x.dtype))


def layer(x, w):
    x = x + attention(normalized(x, w["before"]), w)
    return x + mixture(normalized(x, w["between"]).reshape(-1, FEATURES), w).reshape(x.shape)


def loss(layers, x):
    again = jax.checkpoint(lambda x, w: layer(x, w))
    for w in layers:
        x = again(x, w)
    return lax.psum(jnp.sum(x.astype(jnp.float32) ** 2), AXIS)


def gradients():
    mesh, shape = AbstractMesh((DEVICES,), (AXIS,)), (DEVICES * SEQUENCES, TIMES, FEATURES)
    return gradients_of(loss, WEIGHTS, LAYERS, mesh, P(AXIS), shape)
