"""Ops that update an array leave their operand as it is, for those that read it later."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

from shmap_compiler import shard_map

MESH = jax.make_mesh((4,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
X = np.arange(16, dtype=np.float32).reshape(4, 4)


def scattered(x):
    y = x * 2
    return y.at[:, jnp.array([2, 0])].set(99.0), y


def scattered_in_a_loop(x):
    def swap(k, carry):
        y, total = carry
        put = y.at[:, 3 - k].set(y[:, k])
        return put.at[:, k].set(y[:, 3 - k]), total + y

    return lax.fori_loop(0, 2, swap, (x, jnp.zeros_like(x)))


def two_operands(x):
    y, z = x + 1, x + 2
    indices = jnp.array([[1]])
    numbers = lax.ScatterDimensionNumbers((0,), (1,), (1,))
    put = lax.scatter_add(y, indices, z[:, :1].T[0][:, None], numbers)
    return put, y, z


def updated(x):
    y = x * 3
    return lax.dynamic_update_slice(y, x[:, :2], (0, 1)), y


@pytest.mark.parametrize("body", [scattered, scattered_in_a_loop, two_operands, updated])
def test_an_operand_that_is_read_later(body):
    mapped = shard_map(body, mesh=MESH, in_specs=P("i"), out_specs=P("i"))
    simulated = mapped.lower(X).simulate(X).results
    jax.tree.map(np.testing.assert_array_equal, simulated, jax.jit(mapped)(X))
