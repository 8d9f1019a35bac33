"""Functions that JAX 0.12 keeps as primitives holding programs until they are lowered."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

from shmap_compiler import shard_map

MESH = jax.make_mesh((8,), ("i",), axis_types=(AxisType.Auto,))
X = jnp.arange(8.0)


def search(x):
    return jnp.searchsorted(jnp.arange(4.0), x) + jnp.interp(
        x, jnp.arange(3.0), 2 * jnp.arange(3.0)
    )


def root(x):
    """The y with y**3 = x + sum of all x, which sends inside of the program held."""

    def newton(f, y):
        return lax.fori_loop(0, 20, lambda _, y: y - f(y) / (3 * y**2), y)

    def solve(g, y):
        return y / g(jnp.ones_like(y))

    return lax.custom_root(lambda y: y**3 - x - lax.psum(x, "i"), x + 1, newton, solve)


def mapped(body, function):
    return function(body, mesh=MESH, in_specs=P("i"), out_specs=P("i"), check_vma=False)


@pytest.mark.parametrize("body", [search, root])
@pytest.mark.parametrize("transform", [jax.jit, lambda f: f], ids=["jit", "eager"])
def test_equals_jax(body, transform):
    expected = jax.jit(mapped(body, jax.shard_map))(X)
    np.testing.assert_allclose(transform(mapped(body, shard_map))(X), expected, rtol=1e-6)


def test_gradient_of_a_root_equals_jax():
    ours, theirs = (
        jax.jit(jax.grad(lambda x, f=f: mapped(root, f)(x).sum()))(X)
        for f in (shard_map, jax.shard_map)
    )
    np.testing.assert_allclose(ours, theirs, rtol=1e-5)
