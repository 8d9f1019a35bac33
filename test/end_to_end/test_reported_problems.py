"""Programs that `jax.shard_map` gets wrong or rejects, listed in docs/comparison.md."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.core import ShapedArray
from jax.experimental import checkify
from jax.extend.core import Primitive
from jax.interpreters import ad, mlir
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from shmap_compiler import ReplicationError, shard_map

MESH = jax.make_mesh((4, 2), ("i", "j"), axis_types=(AxisType.Auto,) * 2)
X = np.arange(8, dtype=np.float32)
mapped = functools.partial(shard_map, mesh=MESH, in_specs=P("i"), out_specs=P("i"))

both_calls = pytest.mark.parametrize("jit", [lambda f: f, jax.jit], ids=["eager", "jit"])

doubled_p = Primitive("doubled")
"""A primitive of the user's, whose rules know nothing of mesh axes."""
doubled_p.def_impl(lambda x: x * 2)
doubled_p.def_abstract_eval(lambda x: ShapedArray(x.shape, x.dtype))
mlir.register_lowering(doubled_p, mlir.lower_fun(lambda x: x * 2, multiple_results=False))
ad.deflinear2(doubled_p, lambda ct, _: [doubled_p.bind(ct)])


def by_callback(x):
    return jax.pure_callback(lambda v: np.asarray(v) * 2, jax.ShapeDtypeStruct(x.shape, x.dtype), x)


DOUBLED = {"primitive": doubled_p.bind, "callback": by_callback}
for_both = pytest.mark.parametrize("double", DOUBLED.values(), ids=DOUBLED)


@for_both
@both_calls
def test_results_that_differ_are_not_taken_to_be_equal(double, jit):
    """JAX takes them to be equal, as their types do not say otherwise, and returns the first."""
    with pytest.raises(ReplicationError, match="varies along axis 'i'"):
        jit(mapped(double, out_specs=P()))(X)


@for_both
@both_calls
def test_loops_and_branches(double, jit):
    """warp#1851: JAX rejects a loop whose values begin as others than they go on."""

    def body(x):
        twice = lax.scan(lambda c, _: (double(c), None), x, None, length=2)[0]
        return lax.cond(x.sum() > 1, double, lambda y: y, twice)

    want = np.where(X.reshape(4, 2).sum(1) > 1, 8, 4).repeat(2) * X
    np.testing.assert_allclose(jit(mapped(body))(X), want)


@both_calls
def test_derivatives_of_primitives(jit):
    """JAX expects another type of the cotangent."""
    f = mapped(
        lambda w, x: lax.psum(doubled_p.bind(w * x).sum(), "i"),
        in_specs=(P(), P("i")),
        out_specs=P(),
    )
    np.testing.assert_allclose(jit(jax.grad(f))(np.ones(1, np.float32), X), [2 * X.sum()])


@both_calls
def test_index_checks(jit):
    """jax#26887: JAX ends in an error of its own."""
    checked = checkify.checkify(
        jit(mapped(lambda x: x[jnp.argsort(x)])), errors=checkify.index_checks
    )
    error, got = checked(X[::-1])
    error.throw()
    np.testing.assert_array_equal(got, X[::-1].reshape(4, 2)[:, ::-1].ravel())


@both_calls
def test_checks_in_a_body_and_around(jit):
    """jax#26890: JAX selects between errors of different shapes."""

    def body(x):
        checkify.check(jnp.all(x >= 0), "negative")
        return x + 1

    def fun(x):
        y = mapped(body)(x)
        checkify.check(jnp.all(y > 0), "not positive")
        return mapped(body)(y) + mapped(lambda _: jnp.ones(2))(y).sum()

    checked = checkify.checkify(jit(fun))
    error, got = checked(X)
    error.throw()
    np.testing.assert_allclose(got, X + 10)
    error, _ = checked(-X)
    assert "negative" in error.get()


@both_calls
@pytest.mark.parametrize("axis", [None, "i"])
def test_vmapped_value_that_a_vmapped_function_of_the_body_closes_over(jit, axis):
    """jax#23476: with spmd_axis_name, JAX ends in an error of its own."""

    def add(number, state):
        f = mapped(jax.vmap(lambda s: number + s), in_specs=P("j"), out_specs=P("j"))
        return f(state)

    states = jax.device_put(X.reshape(4, 2), NamedSharding(MESH, P("i", "j")))
    numbers = np.arange(4, dtype=np.float32)
    got = jit(jax.vmap(add, spmd_axis_name=axis))(numbers, states)
    np.testing.assert_array_equal(got, X.reshape(4, 2) + numbers[:, None])
