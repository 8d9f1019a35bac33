"""Derivatives of pmax and pmin, which JAX lacks: compared with those of the full function.

Blocks are of few different numbers, so that many are equal: then each of the largest has its share.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.scipy.special import logsumexp
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P
from jax.test_util import check_grads

from shmap_compiler import shard_map

MESH = jax.make_mesh((4, 2), ("i", "j"), axis_types=(AxisType.Auto,) * 2)
RNG = np.random.default_rng(3)
TIES = RNG.integers(0, 3, (8, 6)).astype(np.float32)
W = RNG.normal(size=(2, 6)).astype(np.float32)

EXTREMA = pytest.mark.parametrize(
    ("lax_extremum", "extremum"), [(lax.pmax, jnp.max), (lax.pmin, jnp.min)], ids=["pmax", "pmin"]
)


def mapped_body(extremum):
    return lambda x: jnp.sin(extremum(x, "i") * 0.5)


def mapped(extremum):
    return shard_map(mapped_body(extremum), mesh=MESH, in_specs=P("i"), out_specs=P())


def full(extremum):
    return lambda x: jnp.sin(extremum(x.reshape(4, 2, 6), 0) * 0.5)


def weighted(f):
    return lambda x: jnp.vdot(W, f(x))


TRANSFORMED = {
    "grad": lambda f: jax.grad(weighted(f)),
    "jvp": lambda f: lambda x: jax.jvp(f, (x,), (x * x + 1,))[1],
    "grad of grad": lambda f: jax.grad(lambda x: jnp.vdot(x, jax.grad(weighted(f))(x) ** 2)),
    "vmap of grad": lambda f: lambda x: jax.vmap(jax.grad(weighted(f)))(jnp.stack([x, -x])),
    "grad of vmap": lambda f: jax.grad(lambda x: jax.vmap(weighted(f))(jnp.stack([x, -x])).sum()),
    "checkpoint": lambda f: jax.grad(weighted(jax.checkpoint(f))),
}


@EXTREMA
@pytest.mark.parametrize("transformed", TRANSFORMED.values(), ids=TRANSFORMED)
def test_derivative_is_that_of_the_extremum_of_a_dimension(lax_extremum, extremum, transformed):
    got, want = (jax.jit(transformed(f))(TIES) for f in (mapped(lax_extremum), full(extremum)))
    np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-6)


def test_eager_call():
    got, want = (jax.grad(weighted(f))(TIES) for f in (mapped(lax.pmax), full(jnp.max)))
    np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-6)


@EXTREMA
def test_finite_differences(lax_extremum, extremum):
    apart = RNG.permutation(48).astype(np.float32).reshape(8, 6)  # no ties: it is differentiable
    f = jax.jit(mapped(lax_extremum))
    check_grads(f, (apart,), order=1, modes=["fwd", "rev"], eps=1e-2, rtol=1e-2, atol=1e-2)


@EXTREMA
def test_groups_and_several_axes(lax_extremum, extremum):
    def body(x):
        return lax_extremum(x, ("i", "j")), lax_extremum(x, "i", axis_index_groups=[[0, 3], [1, 2]])

    def full(x):
        rows = x.reshape(4, 2, 6)
        pairs = jnp.stack(
            [extremum(rows[jnp.array([0, 3])], 0), extremum(rows[jnp.array([1, 2])], 0)]
        )
        return extremum(x, 0)[None], pairs[np.array([0, 1, 1, 0])].reshape(8, 6)

    f = shard_map(body, mesh=MESH, in_specs=P(("i", "j")), out_specs=(P(), P(("i", "j"))))
    weights = (W[:1], RNG.normal(size=(8, 6)).astype(np.float32))
    _, pull = jax.vjp(full, TIES)
    _, pulled = jax.vjp(jax.jit(f), TIES)
    np.testing.assert_allclose(pulled(weights)[0], pull(weights)[0], rtol=1e-6)


@EXTREMA
def test_bodies_that_differentiate(lax_extremum, extremum):
    def body(x):
        return jax.grad(lambda x: jnp.vdot(W, mapped_body(lax_extremum)(x)))(x)

    f = shard_map(body, mesh=MESH, in_specs=P("i"), out_specs=P("i"))
    want = jax.grad(weighted(full(extremum)))(TIES)
    np.testing.assert_allclose(jax.jit(f)(TIES), want, rtol=1e-6)


@EXTREMA
def test_dimensions_and_names_together(lax_extremum, extremum):
    f = shard_map(lambda x: lax_extremum(x, (0, "i")), mesh=MESH, in_specs=P("i"), out_specs=P())
    want = jax.grad(lambda x: jnp.vdot(W[0], extremum(x, 0)))(TIES)
    got = jax.grad(lambda x: jnp.vdot(W[0], jax.jit(f)(x)))(TIES)
    # The largest of each device, then of all: both share.
    assert got.shape == want.shape
    np.testing.assert_allclose(got.sum(0), want.sum(0), rtol=1e-6)
    assert ((got != 0) == (want != 0)).all()


def test_softmax_over_a_split_axis_trains():
    def body(x, labels):  # rows whole, classes split
        top = lax.pmax(jnp.max(x, 1), "i")[:, None]  # no stop_gradient
        total = lax.psum(jnp.sum(jnp.exp(x - top), 1), "i")
        mine = lax.psum(jnp.sum(labels * x, 1), "i")
        return jnp.mean(jnp.log(total) + top[:, 0] - mine)

    x = RNG.normal(size=(3, 8)).astype(np.float32)
    labels = jax.nn.one_hot(np.array([1, 7, 4]), 8)
    classes = P(None, "i")
    loss = shard_map(body, mesh=MESH, in_specs=(classes, classes), out_specs=P())
    want = jax.grad(lambda x: jnp.mean(logsumexp(x, 1) - jnp.sum(labels * x, 1)))(x)
    np.testing.assert_allclose(jax.grad(loss)(x, labels), want, atol=1e-6)


def test_outside_of_bodies_jax_has_no_derivative_still():
    def summed(x):
        return jax.vmap(lambda x: lax.pmax(x, "b"), axis_name="b")(x).sum()

    with pytest.raises(NotImplementedError, match="Differentiation rule for 'pmax'"):
        jax.grad(summed)(TIES)
