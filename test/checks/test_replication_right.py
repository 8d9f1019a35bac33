"""Right programs that `jax.shard_map` refuses, and ours accepts without an annotation (R17)."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import jax.scipy.linalg
import jax.scipy.special
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

from shmap_compiler import shard_map

AUTO = AxisType.Auto
MESH = jax.make_mesh((4, 2), ("i", "j"), axis_types=(AUTO, AUTO))
ONE_BY_TWO = jax.make_mesh((1, 2), ("i", "j"), axis_types=(AUTO, AUTO), devices=jax.devices()[:2])
X = np.arange(16 * 8, dtype=np.float32).reshape(16, 8) / 64
N = X[:4]
SIZE = 4
RING = [(k, (k + 1) % SIZE) for k in range(SIZE)]


@dataclass(frozen=True)
class Right:
    """A program on x, split over i, and n, equal on all devices; `out` is its out_specs."""

    fun: Any
    out: P
    mesh: Any = MESH


RIGHT: dict[str, Right] = {}


def right(out, mesh=MESH):
    def register(fun):
        RIGHT[fun.__name__] = Right(fun, out, mesh)
        return fun

    return register


# What every device has gathered is equal on all of them.


@right(P())
def all_gather(x, n):
    return lax.all_gather(x, "i", tiled=True)


@right(P())
def all_gather_in_a_new_dimension(x, n):
    return lax.all_gather(x, "i")


@right(P())
def all_gather_before_a_product(x, n):
    return lax.all_gather(x, "i", tiled=True) @ n.T


@right(P())
def all_gather_of_one_axis_psum_of_the_other(x, n):
    return lax.psum(lax.all_gather(x * lax.axis_index("j"), "i"), "j")


@right(P("j"))
def all_gather_with_the_other_axis_left(x, n):
    return lax.all_gather(x, "i") * lax.axis_index("j")


@right(P())
def all_gather_of_positions(x, n):
    return lax.all_gather(lax.axis_index("i"), "i")


@right(P())
def all_gather_in_jit(x, n):
    return jax.jit(lambda y: lax.all_gather(y, "i"))(x)


@right(P())
def all_gather_in_checkpoint(x, n):
    return jax.checkpoint(lambda y: jnp.sin(lax.all_gather(y, "i")))(x)


@right(P())
def all_reduce_by_hand(x, n):
    return lax.all_gather(lax.psum_scatter(x, "i", tiled=True), "i", tiled=True)


@right(P())
def argmax_over_all_devices(x, n):
    best = lax.all_gather(jnp.max(x), "i")
    return jnp.argmax(best)


@right(P())
def own_block_of_what_was_gathered_dropped(x, n):
    gathered = lax.all_gather(x, "i")
    return gathered[0] - gathered[3]


@right(P())
def softmax_statistics_by_gathering(x, n):
    largest = jnp.max(lax.all_gather(jnp.max(x), "i"))
    return largest + jnp.log(lax.psum(jnp.sum(jnp.exp(x - largest)), "i"))


# Sending around what is equal everywhere changes nothing.


@right(P())
def ring_of_a_replicated_value(x, n):
    return lax.ppermute(n, "i", RING)


@right(P())
def shuffle_of_a_replicated_value(x, n):
    return lax.pshuffle(n, "i", [3, 2, 1, 0])


@right(P())
def gather_in_one_group_of_all(x, n):
    return lax.all_gather(x, "i", axis_index_groups=[[0, 1, 2, 3]])


# Loops whose carry starts equal and becomes varying: no pvary or pcast is asked for.


@right(P("i"))
def sum_in_fori_loop(x, n):
    return lax.fori_loop(0, 3, lambda k, c: c + k * x, jnp.zeros((4, 8)))


@right(P("i"))
def sum_in_scan(x, n):
    return lax.scan(lambda c, row: (c + row, None), jnp.zeros(8), x)[0]


@right(P("i"))
def recurrent_network(x, n):
    def step(h, row):
        h = jnp.tanh(h @ n.T @ n + row)
        return h, h

    return lax.scan(step, jnp.zeros(8), x)[1]


@right(P("i"))
def newton_in_while_loop(x, n):
    def step(state):
        k, root = state
        return k + 1, root - (root * root - x - 1) / (2 * root)

    return lax.while_loop(lambda state: state[0] < 5, step, (0, jnp.ones((4, 8))))[1]


@right(P("i"))
def ring_all_reduce(x, n):
    def step(_, carry):
        total, block = carry
        return total + block, lax.ppermute(block, "i", RING)

    return lax.fori_loop(0, SIZE, step, (jnp.zeros((4, 8)), x))[0]


@right(P("i"))
def online_softmax(x, n):
    """The running maximum and sum of a flash attention, over rows of keys."""

    def step(state, row):
        largest, total = state
        now = jnp.maximum(largest, row)
        return (now, total * jnp.exp(largest - now) + jnp.exp(row - now)), None

    start = (jnp.full(8, -jnp.inf), jnp.zeros(8))
    return lax.scan(step, start, x)[0][1]


@right(P("i"))
def gradient_descent_with_momentum(x, n):
    def step(_, state):
        weights, momentum = state
        momentum = 0.9 * momentum + (weights - x)
        return weights - 0.1 * momentum, momentum

    return lax.fori_loop(0, 4, step, (n, jnp.zeros_like(n)))[0]


@right(P("i"))
def histogram_in_a_loop(x, n):
    def step(k, counts):
        return counts.at[(x[k] * 8).astype(int)].add(1)

    return lax.fori_loop(0, 4, step, jnp.zeros(16, int))


@right(P())
def gathered_in_every_step(x, n):
    """As sharded weights are gathered layer by layer."""
    return lax.scan(lambda h, row: (h + lax.all_gather(row, "i").sum(0), None), n[0], x)[0]


@right(P())
def gathered_in_a_branch(x, n):
    return lax.cond(jnp.sum(n) > 0, lambda: lax.all_gather(x, "i")[0], lambda: n)


@right(P("i"))
def fixed_point_of_several_arrays(x, n):
    def step(state):
        k, (a, b) = state
        return k + 1, (b, (a + x) / 2)

    return lax.while_loop(lambda state: state[0] < 3, step, (0, (n, n)))[1][1]


# Branches of different sets.


@right(P("i"))
def cond_between_varying_and_constant(x, n):
    return lax.cond(jnp.sum(n) > 0, lambda: x, lambda: jnp.ones((4, 8)))


@right(P("i"))
def cond_on_the_position(x, n):
    return lax.cond(lax.axis_index("i") == 0, lambda: n, lambda: x)


@right(P("i"))
def switch_on_the_position(x, n):
    return lax.switch(lax.axis_index("i"), [lambda: n, lambda: x, lambda: x + n, lambda: n * 2])


# Libraries that know nothing of meshes.


@right(P("i"))
def random_poisson_with_own_key(x, n):
    key = jax.random.fold_in(jax.random.key(0), lax.axis_index("i"))
    return jax.random.poisson(key, 5.0, (4, 8))


@right(P("i"))
def random_binomial_with_own_key(x, n):
    key = jax.random.fold_in(jax.random.key(0), lax.axis_index("i"))
    return jax.random.binomial(key, 10, 0.3, (4, 8))


@right(P("i"))
def conjugate_gradients(x, n):
    matrix = x[:, :4] @ x[:, :4].T + 9 * jnp.eye(4)
    return jax.scipy.sparse.linalg.cg(lambda v: matrix @ v, jnp.ones(4), maxiter=4)[0]


# Axes that are there in name only.


@right(P(), ONE_BY_TWO)
def mesh_axis_of_size_one(x, n):
    return x * 2


@right(P(), ONE_BY_TWO)
def position_along_an_axis_of_size_one(x, n):
    return n + lax.axis_index("i")


@right(P())
def empty_result(x, n):
    return x[:0]


def specs(program):
    return {"mesh": program.mesh, "in_specs": (P("i"), P()), "out_specs": program.out}


@pytest.mark.parametrize("name", RIGHT)
def test_R17_a_right_program_needs_no_annotation(name):
    """All devices that hold the same part of the result hold the same bits."""
    program = RIGHT[name]
    result = jax.block_until_ready(shard_map(program.fun, **specs(program))(X, N))
    parts: dict[Any, bytes] = {}
    for shard in result.addressable_shards:
        data = np.asarray(shard.data).tobytes()
        assert parts.setdefault(str(shard.index), data) == data


@pytest.mark.parametrize("name", RIGHT)
def test_jax_refuses_it(name):
    """Otherwise it would not show what inference is for."""
    program = RIGHT[name]
    refusal = "out_specs which require replication|must have equal.*types|ust have equal types"
    with pytest.raises((ValueError, TypeError), match=refusal):
        jax.jit(jax.shard_map(program.fun, **specs(program))).trace(X, N)


def test_there_are_thirty_of_them():
    assert len(RIGHT) >= 30
