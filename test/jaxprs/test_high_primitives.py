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


def mapped(body, function, check_vma=False):
    return function(body, mesh=MESH, in_specs=P("i"), out_specs=P("i"), check_vma=check_vma)


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


def root_of_a_gradient(x):
    """A derivative taken inside, which needs JAX's types, before a function that keeps them."""
    slope = jax.grad(lambda v: jnp.sum(jnp.sin(v) * v))(x)
    return root(slope**2 + 1)


def scalar(function):
    return lambda x: (function(x) ** 2).sum()


TRANSFORMATIONS = {
    "value": lambda f: f,
    "jvp": lambda f: lambda x: jax.jvp(f, (x,), (jnp.cos(x),)),
    "grad": lambda f: jax.grad(scalar(f)),
    "hvp": lambda f: lambda x: jax.jvp(jax.grad(scalar(f)), (x,), (jnp.cos(x),)),
    "checkpoint": lambda f: jax.grad(scalar(jax.checkpoint(f))),
    "vmap": lambda f: lambda x: jax.vmap(jax.grad(scalar(f)))(jnp.stack([x, 2 * x])),
}


@pytest.mark.parametrize("name", TRANSFORMATIONS)
@pytest.mark.parametrize("inside", [lambda f: f, jax.checkpoint], ids=["plain", "checkpoint"])
def test_root_after_a_derivative_inside_equals_jax(name, inside):
    ours, theirs = (
        jax.jit(TRANSFORMATIONS[name](mapped(inside(root_of_a_gradient), f, check_vma=True)))(X)
        for f in (shard_map, jax.shard_map)
    )
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-4, atol=1e-5), ours, theirs)


LEAVES = {
    "ldexp": lambda x: jnp.ldexp(x, 2),
    "frexp": lambda x: jnp.frexp(x)[0],
    "einsum": lambda x: jnp.einsum("i,i->i", x, x),
}


@pytest.mark.parametrize("transform", ["grad", "checkpoint"])
@pytest.mark.parametrize("name", LEAVES)
def test_function_with_a_transpose_of_its_own_after_a_derivative_inside_equals_jax(name, transform):
    def body(x):
        return LEAVES[name](jax.grad(lambda v: jnp.sum(jnp.sin(v) * v))(x))

    ours, theirs = (
        jax.jit(TRANSFORMATIONS[transform](mapped(body, f, check_vma=True)))(X + 0.5)
        for f in (shard_map, jax.shard_map)
    )
    np.testing.assert_allclose(ours, theirs, rtol=1e-5)
