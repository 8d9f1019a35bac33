"""Jitted programs that XLA's partitioner divides over a 4x2 mesh."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

_rng = np.random.default_rng(0)


def mesh():
    return jax.make_mesh((4, 2), ("i", "j"), axis_types=(AxisType.Auto,) * 2)


def floats(*shape):
    return _rng.standard_normal(shape).astype(np.float32)


def integers(high, *shape):
    return _rng.integers(0, high, shape).astype(np.int32)


@dataclass(frozen=True)
class Jitted:
    """A program.

    Attributes:
      fun: the function.
      args: its arguments.
      ins: specs of these: pytrees of `P`.
      outs: specs of the results; None leaves them to the partitioner.
      differentiable: whether reverse mode goes through it.
      more: why passes of ours leave other collectives than the jitted program has; "" if they do
        not.
      tolerance: by how much the gradients may differ, in units of the largest number.
      is_long: whether it is tested outside of `make test` only.
    """

    fun: Callable[..., Any]
    args: tuple[Any, ...]
    ins: tuple[Any, ...]
    outs: Any = None
    differentiable: bool = True
    more: str = ""
    tolerance: float = 2e-5
    is_long: bool = False

    def jitted(self):
        devices = mesh()

        def place(specs):
            is_spec = lambda s: isinstance(s, P)  # noqa: E731
            return jax.tree.map(lambda s: NamedSharding(devices, s), specs, is_leaf=is_spec)

        options = {} if self.outs is None else {"out_shardings": place(self.outs)}
        return jax.jit(self.fun, in_shardings=place(self.ins), **options)


def matmul(a, b):
    return a @ b


def mlp(params, x):
    h = jnp.tanh(x @ params["w1"])  # the hidden layer
    y = h @ params["w2"]
    return jax.nn.softmax(y)


def loss(weights, x, y):
    w1, w2 = weights
    hidden = jnp.tanh(x @ w1)
    prediction = hidden @ w2
    return jnp.mean((prediction - y) ** 2)


def train_step(w1, w2, x, y):
    value, grads = jax.value_and_grad(loss)((w1, w2), x, y)
    return value, w1 - 0.1 * grads[0], w2 - 0.1 * grads[1]


def attention(x, wq, wk, wv, wo):
    q = jnp.einsum("bsd,dhk->bhsk", x, wq)
    k = jnp.einsum("bsd,dhk->bhsk", x, wk)
    v = jnp.einsum("bsd,dhk->bhsk", x, wv)
    scores = jnp.einsum("bhqk,bhtk->bhqt", q, k) / np.sqrt(q.shape[-1])
    mask = jnp.tril(jnp.ones((x.shape[1],) * 2, bool))
    p = jax.nn.softmax(jnp.where(mask, scores, -1e9), axis=-1)
    o = jnp.einsum("bhqt,bhtk->bhqk", p, v)
    return jnp.einsum("bhqk,hkd->bqd", o, wo)


def scan_over_layers(x, weights):
    def step(h, w):
        total = jnp.sum(h)
        h = jnp.tanh(h @ w[0]) @ w[1]
        return h, total

    return lax.scan(step, x, weights)


def embedding(table, ids):
    return jnp.take(table, ids, axis=0).sum(1)


def cross_entropy(table, hidden, labels):
    logits = hidden @ table.T
    logs = jax.nn.log_softmax(logits)
    return -jnp.mean(jnp.take_along_axis(logs, labels[:, None], axis=1))


def convolution(x, w):
    dims = ("NHWC", "HWIO", "NHWC")
    y = lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=dims)
    return jax.nn.relu(y)


def newton(x):
    return lax.while_loop(lambda c: jnp.sum(c) < 1000.0, lambda c: c * 1.5 + 1.0, x)


def branch(x, n):
    return lax.cond(n > 2, jnp.sin, lambda x: x * jnp.sum(x), x)


def layer_norm(x, scale):
    mean = x.mean(-1, keepdims=True)
    var = x.var(-1, keepdims=True)
    return (x - mean) * lax.rsqrt(var + 1e-6) * scale


class Momentum(NamedTuple):
    count: jax.Array
    mean: jax.Array


def momentum_step(w, state, x):
    grad = jax.grad(lambda w: jnp.mean((x @ w) ** 2))(w)
    mean = 0.9 * state.mean + 0.1 * grad
    return w - 0.1 * mean, Momentum(state.count + 1, mean)


def dropout(x, key):
    keep = jax.random.bernoulli(key, 0.5, x.shape)
    return jnp.where(keep, x, 0.0)


def cholesky(x):
    return jnp.linalg.cholesky(x @ x.transpose(0, 2, 1) + 4 * jnp.eye(4))


WEIGHTS = (floats(16, 32), floats(32, 16), floats(8, 16), floats(8, 16))
ATTENTION = (floats(8, 16, 32), *(floats(32, 4, 8) for _ in range(3)), floats(4, 8, 32))
HEADS = (P(None, "j"), P(None, "j"), P(None, "j"), P("j"))
ROWS = P("i")

PROGRAMS = {
    "matmul": Jitted(matmul, (floats(8, 16), floats(16, 32)), (P("i", "j"), P("j")), ROWS),
    "mlp": Jitted(
        mlp,
        ({"w1": floats(16, 32), "w2": floats(32, 16)}, floats(8, 16)),
        ({"w1": P(None, "j"), "w2": P("j")}, ROWS),
        ROWS,
    ),
    "train_step": Jitted(
        train_step,
        WEIGHTS,
        (P(None, "j"), P("j"), ROWS, ROWS),
        (P(), P(None, "j"), P("j")),
    ),
    "fsdp": Jitted(
        train_step,
        WEIGHTS,
        (P("i", "j"), P("j", "i"), ROWS, ROWS),
        (P(), P("i", "j"), P("j", "i")),
        more="our passes gather w2 once",
    ),
    "attention_heads": Jitted(attention, ATTENTION, (ROWS, *HEADS), ROWS),
    "attention_sequence": Jitted(
        attention, ATTENTION, (P(None, "i"), *HEADS), P(None, "i"), differentiable=True
    ),
    "scan_over_layers": Jitted(
        scan_over_layers,
        (floats(8, 16), (floats(3, 16, 32), floats(3, 32, 16))),
        (ROWS, (P(None, None, "j"), P(None, "j"))),
        (ROWS, P()),
    ),
    "embedding": Jitted(embedding, (floats(64, 16), integers(64, 8, 5)), (P("j"), ROWS), ROWS),
    "cross_entropy": Jitted(
        cross_entropy,
        (floats(64, 16), floats(8, 16), integers(64, 8)),
        (P("j"), ROWS, ROWS),
        P(),
    ),
    "convolution": Jitted(
        convolution,
        (floats(8, 6, 6, 4), floats(3, 3, 4, 8)),
        (ROWS, P(None, None, None, "j")),
        ROWS,
    ),
    "layer_norm": Jitted(
        layer_norm, (floats(8, 16), floats(16)), (P("i", "j"), P("j")), P("i", "j")
    ),
    "sort": Jitted(lambda x: jnp.sort(x, axis=0), (floats(8, 16),), (ROWS,)),
    "top_k": Jitted(lambda x: lax.top_k(x, 3), (floats(8, 16),), (ROWS,)),
    "argmax": Jitted(lambda x: jnp.argmax(x, 0), (floats(8, 16),), (ROWS,), differentiable=False),
    "cumsum": Jitted(lambda x: jnp.cumsum(x, 0), (floats(8, 16),), (ROWS,), ROWS),
    "roll": Jitted(lambda x: jnp.roll(x, 3, 0), (floats(8, 16),), (ROWS,), ROWS),
    "transpose": Jitted(lambda x: x.T, (floats(8, 16),), (ROWS,), ROWS),
    "fft": Jitted(lambda x: jnp.abs(jnp.fft.fft(x)), (floats(8, 16),), (ROWS,), ROWS),
    "reshard": Jitted(lambda x: x * 2, (floats(8, 16),), (P(("i", "j")),), P(("j", "i"))),
    "while": Jitted(newton, (floats(8, 16),), (ROWS,), ROWS, differentiable=False),
    "branch": Jitted(branch, (floats(8, 16), jnp.int32(3)), (ROWS, P()), ROWS),
    "dynamic_slice": Jitted(
        lambda x, n: lax.dynamic_slice(x, (n, 0), (4, 16)),
        (floats(8, 16), jnp.int32(3)),
        (ROWS, P()),
    ),
    "dynamic_update": Jitted(
        lambda x, n: lax.dynamic_update_slice(x, jnp.ones((2, 3)), (n, 1)),
        (floats(8, 16), jnp.int32(3)),
        (ROWS, P()),
        ROWS,
    ),
    "uneven": Jitted(
        lambda x: jnp.sin(x[:7]) @ jnp.ones((16, 3)), (floats(8, 16),), (P("i", "j"),)
    ),
    "scatter": Jitted(
        lambda x, k: x.at[k].add(1.0), (floats(8, 16), jnp.array([1, 5, 7])), (ROWS, P()), ROWS
    ),
    "state": Jitted(
        momentum_step,
        (floats(16, 8), Momentum(jnp.int32(0), floats(16, 8)), floats(8, 16)),
        (P("j"), Momentum(P(), P("j")), ROWS),
        (P("j"), Momentum(P(), P("j"))),
    ),
    "dropout": Jitted(dropout, (floats(8, 16), jax.random.key(0)), (ROWS, P()), ROWS),
    "random_normal": Jitted(
        lambda x: x + jax.random.normal(jax.random.key(0), x.shape), (floats(8, 16),), (ROWS,), ROWS
    ),
    "max_pool": Jitted(
        lambda x: lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID"),
        (floats(8, 6, 6, 4),),
        (ROWS,),
        ROWS,
    ),
    "gelu": Jitted(
        lambda x, w: jax.nn.gelu(x @ w), (floats(8, 16), floats(16, 8)), (P("i", "j"), P("j")), ROWS
    ),
    "sort_pairs": Jitted(
        lambda x, k: lax.sort((k, x), num_keys=1),
        (floats(8, 16), integers(9, 8, 16)),
        (ROWS, ROWS),
    ),
    "unused_argument": Jitted(lambda x, y: x * 2, (floats(8, 16), floats(3)), (ROWS, P()), ROWS),
    "results_in_containers": Jitted(
        lambda x: {"double": x * 2, "both": [x.sum(), x.max()]}, (floats(8, 16),), (ROWS,)
    ),
    "cholesky": Jitted(cholesky, (floats(8, 4, 4),), (ROWS,), ROWS),
}

EMBEDDED: set[str] = set()
"""Programs with operations that have no name."""
