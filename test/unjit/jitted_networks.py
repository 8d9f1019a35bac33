"""Networks, layers and training steps as jitted programs over a 4x2 mesh."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax import lax
from jax.sharding import PartitionSpec as P
from jitted_programs import ROWS, Jitted, attention, convolution, floats, integers, layer_norm

COLUMNS = P(None, "j")
SCATTERED = "our passes make one reduce-scatter of a sum of which each device keeps a part"


def gated_mlp(x, w_gate, w_up, w_down):
    gate = jax.nn.silu(x @ w_gate)
    hidden = gate * (x @ w_up)
    return hidden @ w_down


def rms_norm(x, scale):
    squares = jnp.mean(jnp.square(x), axis=-1, keepdims=True)
    return x * lax.rsqrt(squares + 1e-6) * scale


def transformer_layer(params, x):
    normed = layer_norm(x, params["norm1"])
    x = x + attention(normed, params["wq"], params["wk"], params["wv"], params["wo"])
    normed = layer_norm(x, params["norm2"])
    hidden = jax.nn.gelu(normed @ params["w1"])
    return x + hidden @ params["w2"]


def transformer_loss(params, x, y):
    return jnp.mean((transformer_layer(params, x) - y) ** 2)


ADAM = optax.adam(1e-2)


def transformer_step(params, state, x, y):
    value, grads = jax.value_and_grad(transformer_loss)(params, x, y)
    updates, state = ADAM.update(grads, state)
    return optax.apply_updates(params, updates), state, value


def experts(x, router, w1, w2):
    scores = jax.nn.softmax(x @ router)
    chosen = jax.nn.one_hot(jnp.argmax(scores, axis=-1), router.shape[1])
    gates = chosen * scores
    inputs = jnp.einsum("te,td->etd", chosen, x)
    hidden = jax.nn.relu(jnp.einsum("etd,edh->eth", inputs, w1))
    outputs = jnp.einsum("eth,ehd->etd", hidden, w2)
    return jnp.einsum("te,etd->td", gates, outputs)


def network_of_convolutions(params, x, labels):
    h = convolution(x, params["conv"])
    h = lax.reduce_window(h, 0.0, lax.add, (1, 2, 2, 1), (1, 2, 2, 1), "VALID") / 4
    h = h.reshape(h.shape[0], -1)
    logits = h @ params["dense"]
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
    return jnp.mean(losses)


def classifier_step(params, x, labels):
    grads = jax.grad(network_of_convolutions)(params, x, labels)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads)


def language_loss(table, ids, labels):
    hidden = jnp.take(table, ids, axis=0).mean(1)
    logs = jax.nn.log_softmax(hidden @ table.T)
    return -jnp.mean(jnp.take_along_axis(logs, labels[:, None], axis=1))


def language_step(table, ids, labels):
    value, grad = jax.value_and_grad(language_loss)(table, ids, labels)
    return value, table - 0.1 * grad


def recurrent(x, w, u):
    def step(h, x_t):
        h = jnp.tanh(x_t @ w + h @ u)
        return h, h

    first = jnp.zeros((x.shape[1], u.shape[0]))
    last, states = lax.scan(step, first, x)
    return last, states


def deep(x, weights):
    def layer(h, w):
        return jax.nn.relu(h @ w), None

    y, _ = lax.scan(jax.checkpoint(layer), x, weights)
    return jnp.sum(y**2)


def deep_step(x, weights):
    grad = jax.grad(deep, argnums=1)(x, weights)
    return weights - 0.1 * grad


def rotary(x):
    half = x.shape[-1] // 2
    angles = jnp.arange(x.shape[1])[:, None] / 10.0 ** jnp.arange(half)
    left, right = x[..., :half], x[..., half:]
    sin, cos = jnp.sin(angles), jnp.cos(angles)
    return jnp.concatenate([left * cos - right * sin, left * sin + right * cos], axis=-1)


def decode(cache, key, query, position):
    cache = lax.dynamic_update_slice_in_dim(cache, key[:, None], position, axis=1)
    scores = jnp.einsum("bd,btd->bt", query, cache)
    mask = jnp.arange(cache.shape[1]) <= position
    weights = jax.nn.softmax(jnp.where(mask, scores, -jnp.inf))
    return cache, jnp.einsum("bt,btd->bd", weights, cache)


def batch_norm(x, scale, bias):
    mean = jnp.mean(x, axis=0)
    var = jnp.var(x, axis=0)
    return (x - mean) / jnp.sqrt(var + 1e-5) * scale + bias


def contrastive(images, texts):
    images = images / jnp.linalg.norm(images, axis=-1, keepdims=True)
    texts = texts / jnp.linalg.norm(texts, axis=-1, keepdims=True)
    logits = images @ texts.T
    return -jnp.mean(jnp.diag(jax.nn.log_softmax(logits)))


def mixed_precision(x, w):
    y = jnp.dot(x.astype(jnp.bfloat16), w.astype(jnp.bfloat16), preferred_element_type=jnp.float32)
    return jax.nn.sigmoid(y)


def accumulate(w, xs):
    def add(k, total):
        return total + jax.grad(lambda w: jnp.mean((xs[k] @ w) ** 2))(w)

    return lax.fori_loop(0, xs.shape[0], add, jnp.zeros_like(w))


LAYER: dict[str, Any] = {
    "norm1": floats(16),
    "norm2": floats(16),
    **{name: floats(16, 2, 4) / 4 for name in ("wq", "wk", "wv")},
    "wo": floats(2, 4, 16) / 4,
    "w1": floats(16, 32) / 4,
    "w2": floats(32, 16) / 4,
}
LAYER_SPECS: dict[str, Any] = {
    "norm1": P(),
    "norm2": P(),
    **dict.fromkeys(("wq", "wk", "wv"), COLUMNS),
    "wo": P("j"),
    "w1": COLUMNS,
    "w2": P("j"),
}
STATE = ADAM.init(LAYER)
STATE_SPECS = optax.tree.map_params(
    ADAM, lambda _, spec: spec, STATE, LAYER_SPECS, transform_non_params=lambda _: P()
)
TOKENS = (floats(8, 4, 16), floats(8, 4, 16))
IMAGES = (floats(8, 6, 6, 4), integers(10, 8))
CLASSIFIER = {"conv": floats(3, 3, 4, 8) / 4, "dense": floats(72, 10) / 4}
CLASSIFIER_SPECS = {"conv": P(None, None, None, "j"), "dense": P()}
ATTENTION = (floats(8, 4, 16), *(floats(16, 2, 4) for _ in range(3)), floats(2, 4, 16))

PROGRAMS = {
    "gated_mlp": Jitted(
        gated_mlp,
        (floats(8, 16), floats(16, 32), floats(16, 32), floats(32, 16)),
        (ROWS, COLUMNS, COLUMNS, P("j")),
        ROWS,
    ),
    "mlp_reduce_scattered": Jitted(
        lambda x, w1, w2: jnp.tanh(x @ w1) @ w2,
        (floats(8, 16), floats(16, 32), floats(32, 16)),
        (ROWS, COLUMNS, P("j")),
        P("i", "j"),
        more=SCATTERED,
    ),
    "rms_norm": Jitted(rms_norm, (floats(8, 16), floats(16)), (P("i", "j"), P("j")), P("i", "j")),
    "batch_norm": Jitted(batch_norm, (floats(8, 4), floats(4), floats(4)), (ROWS, P(), P()), ROWS),
    "attention_features": Jitted(
        attention,
        ATTENTION,
        (P("i", None, "j"), P("j"), P("j"), P("j"), P(None, None, "j")),
        P("i", None, "j"),
        is_long=True,
    ),
    "transformer_layer": Jitted(
        transformer_layer, (LAYER, TOKENS[0]), (LAYER_SPECS, ROWS), ROWS, is_long=True
    ),
    "transformer_step": Jitted(
        transformer_step,
        (LAYER, STATE, *TOKENS),
        (LAYER_SPECS, STATE_SPECS, ROWS, ROWS),
        (LAYER_SPECS, STATE_SPECS, P()),
        differentiable=False,
    ),
    "experts": Jitted(
        experts,
        (floats(8, 8), floats(8, 4), floats(4, 8, 16), floats(4, 16, 8)),
        (ROWS, P(), P("j"), P("j")),
        ROWS,
    ),
    "convolutions": Jitted(
        network_of_convolutions,
        (CLASSIFIER, *IMAGES),
        (CLASSIFIER_SPECS, ROWS, ROWS),
        P(),
        is_long=True,
    ),
    "classifier_step": Jitted(
        classifier_step,
        (CLASSIFIER, *IMAGES),
        (CLASSIFIER_SPECS, ROWS, ROWS),
        CLASSIFIER_SPECS,
        differentiable=False,
    ),
    "language_step": Jitted(
        language_step,
        (floats(32, 8), integers(32, 8, 3), integers(32, 8)),
        (P("j"), ROWS, ROWS),
        (P(), P("j")),
        is_long=True,
    ),
    "recurrent": Jitted(
        recurrent,
        (floats(5, 8, 4), floats(4, 8), floats(8, 8)),
        (P(None, "i"), COLUMNS, COLUMNS),
        is_long=True,
    ),
    "deep_step": Jitted(
        deep_step,
        (floats(8, 8), floats(3, 8, 8)),
        (ROWS, P(None, "j")),
        P(None, "j"),
        more=SCATTERED,
    ),
    "rotary": Jitted(rotary, (floats(8, 4, 8),), (P("i", "j"),), P("i", "j")),
    "decode": Jitted(
        decode,
        (floats(8, 4, 8), floats(8, 8), floats(8, 8), jnp.int32(2)),
        (P("i", "j"), ROWS, ROWS, P()),
        (P("i", "j"), ROWS),
    ),
    "contrastive": Jitted(contrastive, (floats(8, 4), floats(8, 4)), (ROWS, ROWS), P()),
    "mixed_precision": Jitted(
        mixed_precision,
        (floats(8, 16), floats(16, 8)),
        (P("i", "j"), P("j")),
        ROWS,
        tolerance=2e-2,
    ),
    "accumulate": Jitted(accumulate, (floats(8, 4), floats(3, 8, 8)), (P(), P(None, "i")), P()),
    "vmapped": Jitted(
        jax.vmap(lambda x, w: jnp.tanh(w @ x), (0, None)),
        (floats(8, 16), floats(4, 16)),
        (P("i", "j"), COLUMNS),
        ROWS,
    ),
    "constrained": Jitted(
        lambda x, w: jnp.sin(x.T @ w),
        (floats(8, 16), floats(8, 4)),
        (P("i", "j"), ROWS),
        P(("j", "i")),
        more=SCATTERED,
    ),
}
"""By what they are."""
