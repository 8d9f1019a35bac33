"""Gradients of loops save what their steps read, and no more than those of jax.shard_map."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

from shmap_compiler import shard_map

STEPS, SIZE = 8, 64
RING = [(k, (k + 1) % 4) for k in range(4)]


def with_counter(w, x):
    """The counter is known, and the step reads it before and after it is moved on."""

    def step(carry, _):
        k, y = carry
        y = jnp.sin(y * w + k) * (k + 1)
        return (k + 1.0, y), y[0]

    (_, y), first = lax.scan(step, (0.0, x), length=STEPS)
    return y * first.sum()


def with_values_that_move_on(w, x):
    """Known blocks travel; only the sum depends on the weights."""

    def step(carry, _):
        total, block = carry
        return (total + jnp.tanh(block * w), lax.ppermute(block, "t", RING)), None

    return lax.scan(step, (jnp.zeros_like(x), x), length=STEPS)[0][0]


def with_known_carry_that_nothing_reads(w, x):
    def step(carry, row):
        block, y = carry
        return (jnp.cos(block) + row, jnp.sin(y * w)), block.sum()

    (block, y), sums = lax.scan(step, (x, x), jnp.arange(STEPS, dtype=x.dtype))
    return y + lax.stop_gradient(block * sums.max())


def nested(w, x):
    def inner(carry, _):
        block, y = carry
        return (jnp.cos(block), y + jnp.sin(block * w)), None

    def outer(carry, _):
        block, y = carry
        (block, y), _ = lax.scan(inner, (block, y), length=2)
        return (lax.ppermute(block, "t", RING), y * w), y

    (_, y), rows = lax.scan(outer, (x, x), length=STEPS // 2, reverse=True)
    return y + rows.sum(0)


def with_branches(w, x):
    def step(carry, _):
        block, y = carry
        branches = (lambda y: y + jnp.sin(block * w)), (lambda y: y - jnp.cos(block * w))
        y = lax.cond(block[0] > 0, *branches, y)
        return (jnp.cos(block), y), None

    return lax.scan(step, (x, x), length=STEPS)[0][1]


def in_one_branch(w, x):
    def with_loop(y):
        return lax.fori_loop(0, STEPS, lambda k, y: jnp.sin(y * w + k), y)

    return jax.checkpoint(lambda y: lax.cond(w > 0, with_loop, lambda y: y * w, y))(x)


def with_keys(w, x):
    def step(carry, _):
        key, y = carry
        key, own = jax.random.split(key)
        return (key, y + jnp.sin(w * jax.random.normal(own, y.shape))), None

    return lax.scan(step, (jax.random.key(0), x), length=STEPS)[0][1]


def with_weights_that_change(w, x):
    """All of the carry is unknown, but for the first step."""

    def step(carry, _):
        w, y, unused = carry
        return (w * 1.5, jnp.sin(y * w), unused), None

    w, y, unused = lax.scan(step, (w, x, x), length=STEPS)[0]
    return y * w + unused


BODIES = [
    with_counter,
    with_values_that_move_on,
    with_known_carry_that_nothing_reads,
    nested,
    with_branches,
    in_one_branch,
    with_keys,
    with_weights_that_change,
]


def gradient(shard_map, body):
    mesh = jax.make_mesh((4,), ("t",), axis_types=(jax.sharding.AxisType.Auto,))
    fun = shard_map(body, mesh=mesh, in_specs=(P(), P("t")), out_specs=P("t"))
    w, x = np.float32(0.5), np.linspace(0.1, 1, 4 * SIZE, dtype=np.float32)
    compiled = jax.jit(jax.grad(lambda w, x: fun(w, x).sum())).lower(w, x).compile()
    return compiled(w, x), compiled.memory_analysis().temp_size_in_bytes


@pytest.mark.parametrize("body", BODIES)
def test_a_loop_saves_no_more_than_with_jax(body):
    ours, temporaries = gradient(shard_map, body)
    jaxs, allowed = gradient(jax.shard_map, body)
    np.testing.assert_allclose(ours, jaxs, rtol=1e-5)
    assert temporaries <= 1.1 * allowed
