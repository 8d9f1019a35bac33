"""Sums over axes in another order round differently; no pass exchanges one for the other."""

import jax
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

from shmap_compiler import shard_map

AXES = ("i", "j", "k")
MESH = jax.make_mesh((2, 2, 2), AXES, axis_types=(AxisType.Auto,) * 3)
X = np.array([1e8, 1, -1e8, 1, 3, 1e7, -1e7, 5], np.float32)


def neighbors(x):
    """Two small sums that would be combined."""
    return lax.psum(x, AXES), lax.psum(x, AXES[::-1])


def own_block(x):
    """A sum of which each device uses one block, which would be scattered."""
    total = lax.psum(lax.broadcast(x[0], (8,)), AXES)
    return lax.dynamic_slice_in_dim(total, lax.axis_index(AXES[::-1]), 1)


PROGRAMS = {neighbors: P(), own_block: P(AXES[::-1])}


@pytest.mark.parametrize("fun", PROGRAMS)
def test_sums_add_in_the_order_of_their_axes(fun):
    options = {"mesh": MESH, "in_specs": P(AXES), "out_specs": PROGRAMS[fun]}
    ours = shard_map(fun, **options)
    expected = jax.jit(jax.shard_map(fun, **options))(X)
    for found in (jax.jit(ours)(X), ours(X), ours.lower(X).compile()(X)):
        jax.tree.map(np.testing.assert_array_equal, found, expected)


def test_the_order_matters_here():
    first, second = jax.jit(shard_map(neighbors, mesh=MESH, in_specs=P(AXES), out_specs=P()))(X)
    assert first != second
