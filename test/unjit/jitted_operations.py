"""Operations on arrays as jitted programs over a 4x2 mesh, along dimensions that are split."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec as P
from jitted_programs import ROWS, Jitted, floats, integers

X = floats(8, 16)
BLOCKS = P("i", "j")


def laplacian(x):
    up, down = jnp.roll(x, 1, 0), jnp.roll(x, -1, 0)
    return x + 0.1 * (up - 2 * x + down)


def switch(n, x):
    return lax.switch(n, [jnp.sin, jnp.cos, lambda x: x * 2], x)


def newest(x, k):
    return lax.fori_loop(0, k, lambda i, x: x.at[i].set(x[i] * 2 + x[(i + 1) % 8]), x)


def noise(key, x):
    first, second = jax.random.split(key)
    return x + jax.random.uniform(first, x.shape), jax.random.randint(second, (8,), 0, 9)


PROGRAMS = {
    "matmul_blocks": Jitted(lambda a, b: a @ b, (X, floats(16, 8)), (BLOCKS, BLOCKS), BLOCKS),
    "matmul_batched": Jitted(
        lambda a, b: a @ b, (floats(4, 8, 6), floats(4, 6, 8)), (P("i", "j"), ROWS), P("i", "j")
    ),
    "einsum_of_three": Jitted(
        lambda a, b, c: jnp.einsum("ab,bc,cd->ad", a, b, c),
        (X, floats(16, 8), floats(8, 4)),
        (BLOCKS, P("j"), P()),
        ROWS,
    ),
    "argsort": Jitted(
        lambda x: jnp.argsort(x, axis=0, descending=True), (X,), (ROWS,), differentiable=False
    ),
    "top_k_split": Jitted(lambda x: lax.top_k(x, 3), (X,), (P(None, "j"),)),
    "argmin_rows": Jitted(lambda x: jnp.argmin(x, 1), (X,), (BLOCKS,), differentiable=False),
    "fft_two": Jitted(lambda x: jnp.abs(jnp.fft.fft2(x)), (X,), (ROWS,), ROWS),
    "rfft": Jitted(lambda x: jnp.fft.irfft(jnp.fft.rfft(x)), (X,), (ROWS,), ROWS),
    "cumulative": Jitted(
        lambda x: (jnp.cumprod(x, 1), lax.cummax(x, 1)), (X,), (BLOCKS,), differentiable=False
    ),
    "associative_scan": Jitted(
        lambda x: lax.associative_scan(jnp.maximum, x, axis=1), (X,), (ROWS,), ROWS
    ),
    "roll_two": Jitted(lambda x: jnp.roll(x, (1, 5), (0, 1)), (X,), (BLOCKS,), BLOCKS),
    "laplacian": Jitted(laplacian, (X,), (ROWS,), ROWS),
    "differences": Jitted(lambda x: x[1:] - x[:-1], (X,), (ROWS,)),
    "gather_along": Jitted(
        lambda x, k: jnp.take_along_axis(x, k, axis=1), (X, integers(16, 8, 3)), (ROWS, ROWS), ROWS
    ),
    "gather_rows": Jitted(lambda x, k: x[k], (X, integers(8, 4)), (ROWS, P()), ROWS),
    "segment_sum": Jitted(
        lambda x, k: jax.ops.segment_sum(x, k, 5), (X, integers(5, 8)), (ROWS, ROWS), P()
    ),
    "scatter_max": Jitted(
        lambda x, k, u: x.at[k].max(u),
        (X, integers(8, 3), floats(3, 16)),
        (P(None, "j"), P(), P()),
        P(None, "j"),
        differentiable=False,
    ),
    "scatter_set": Jitted(
        lambda x, k: x.at[:, k].set(0.0), (X, integers(16, 3)), (ROWS, P()), ROWS
    ),
    "random_numbers": Jitted(
        noise, (jax.random.key(3), X), (P(), ROWS), (ROWS, P()), differentiable=False
    ),
    "random_choice": Jitted(
        lambda key, x: jax.random.categorical(key, x),
        (jax.random.key(4), X),
        (P(), ROWS),
        differentiable=False,
    ),
    "argmax_all": Jitted(lambda x: jnp.argmax(x), (X,), (BLOCKS,), differentiable=False),
    "slice_at_index": Jitted(
        lambda x, k: lax.dynamic_index_in_dim(x, k, axis=0, keepdims=False),
        (X, jnp.int32(5)),
        (BLOCKS, P()),
    ),
    "updates_in_a_loop": Jitted(
        newest, (X, jnp.int32(4)), (P(None, "j"), P()), P(None, "j"), False
    ),
    "switch": Jitted(switch, (jnp.int32(1), X), (P(), BLOCKS), BLOCKS),
    "uneven_product": Jitted(lambda a, b: a[:7] @ b[:, :3], (X, floats(16, 4)), (BLOCKS, P("j"))),
    "uneven_join": Jitted(lambda x: jnp.concatenate([x, x[:3]]).sum(0), (X,), (ROWS,)),
    "pad": Jitted(lambda x: jnp.pad(x, ((2, 6), (0, 0))), (X,), (ROWS,), ROWS),
    "halves": Jitted(lambda x: (x[:4], x[4:]), (X,), (ROWS,), (ROWS, ROWS)),
    "logsumexp": Jitted(
        jax.nn.logsumexp, (X,), (BLOCKS,), P(), more="our passes make one sum of two in a row"
    ),
    "complex": Jitted(
        lambda x: jnp.real((x + 1j * x[::-1]) * jnp.exp(1j * x)), (X,), (ROWS,), ROWS
    ),
    "bits": Jitted(
        lambda k: ((k << 3) ^ (k >> 1)) & 255, (integers(99, 8, 4),), (ROWS,), ROWS, False
    ),
    "histogram": Jitted(
        lambda k: jnp.bincount(k, length=6), (integers(6, 32),), (P(("i", "j")),), P(), False
    ),
    "covariance": Jitted(lambda x: jnp.cov(x, rowvar=False), (floats(8, 4),), (ROWS,), P()),
    "factor": Jitted(
        lambda x: jnp.linalg.cholesky(x @ x.T + 8 * jnp.eye(8)) / 2, (X,), (P(None, "j"),)
    ),
    "triangle": Jitted(lambda x: jnp.tril(x @ x.T), (X,), (ROWS,), ROWS),
    "flip": Jitted(lambda x: x[::-1], (X,), (ROWS,), ROWS),
    "moved_axes": Jitted(
        lambda x: x.transpose(2, 0, 1).reshape(4, 16),
        (floats(8, 2, 4),),
        (ROWS,),
        ROWS,
    ),
}
"""By what they do."""
