"""Collectives of Python numbers and their derivatives are as weakly typed as in `jax.shard_map`."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

from shmap_compiler import shard_map

MESH = jax.make_mesh((4, 2), ("i", "j"), axis_types=(AxisType.Auto,) * 2)
X = jnp.arange(8, dtype=jnp.bfloat16)
REDUCTIONS = [lax.psum, lax.pmax, lax.pmin, lax.pmean]


def mapped(fun, shard_map=shard_map, **options):
    return shard_map(fun, mesh=MESH, in_specs=P("i"), out_specs=P("i"), **options)


CALLS = {
    "eager": lambda f: f(X),
    "jit": lambda f: jax.jit(f)(X),
    "vmap": lambda f: jax.vmap(f)(X[None])[0],
    "grad": lambda f: jax.grad(lambda x: f(x).astype(float).sum())(X),
}


@pytest.mark.parametrize("check_vma", [True, False])
@pytest.mark.parametrize("how", CALLS)
@pytest.mark.parametrize("reduction", REDUCTIONS, ids=lambda fun: fun.__name__)
def test_a_reduction_of_a_number_times_an_array(reduction, how, check_vma):
    def scaled(x):
        return x * reduction(jnp.where(lax.axis_index("i") == 3, 1.0, 0.5) * 2.0, "i")

    by_jax = mapped(scaled, jax.shard_map, check_vma=check_vma)
    found = CALLS[how](mapped(scaled, check_vma=check_vma))
    expected = jax.jit(lambda: CALLS[how](by_jax))()
    assert found.dtype == expected.dtype
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("check_vma", [True, False])
def test_a_result_is_as_weakly_typed_under_vmap(check_vma):
    def chosen(x):
        return lax.pmax(jnp.where(x[0] > 0, 1, 2), "i")[None]

    found, expected = (
        jax.jit(jax.vmap(mapped(chosen, each, check_vma=check_vma)))(X[None])
        for each in (shard_map, jax.shard_map)
    )
    assert found.aval.weak_type == expected.aval.weak_type


def test_a_loop_may_multiply_by_a_reduction_of_a_number():
    def loop(x):
        scale = lax.psum(jnp.where(lax.axis_index("i") == 3, 1.0, 0.0), "i")
        return lax.scan(lambda c, _: (c * scale, None), x, None, length=2)[0]

    for result in (jax.jit(mapped(loop))(X), mapped(loop)(X)):
        assert result.dtype == jnp.bfloat16
        np.testing.assert_array_equal(result, X)


def test_the_types_of_one_setting_are_not_taken_for_the_other():
    """JAX keeps the types that a primitive infers."""

    def scaled(x):
        return x * lax.psum(jnp.where(lax.axis_index("i") == 3, 1.0, 0.0), "i")

    wanted = {True: jnp.bfloat16, False: jnp.float32}
    for check_vma in (True, False, True):
        for each in (shard_map, jax.shard_map):
            function = mapped(scaled, each, check_vma=check_vma)
            assert jax.eval_shape(function, X).dtype == wanted[check_vma]


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_results_are_weakly_typed(wrap):
    same = wrap(shard_map(lambda x: x, mesh=MESH, in_specs=P(), out_specs=P()))
    assert same(0.5).weak_type
    assert not same(np.float32(0.5)).weak_type


@jax.custom_vjp
def squared_sum(x):
    return lax.psum(x * x, "i")


squared_sum.defvjp(lambda x: (squared_sum(x), x), lambda x, ct: (2 * x * ct,))


def exchanged(x):
    parts = jnp.broadcast_to(lax.pcast(x, "i", to="varying") * x, (4,))
    return lax.psum(lax.all_to_all(parts, "i", 0, 0, tiled=True)[0], "i")


FUNCTIONS = {
    "psum": lambda x: lax.psum(x * x, "i"),
    "psum over two axes": lambda x: lax.psum(x * x, ("i", "j")),
    "psum of a varying value": lambda x: lax.psum(lax.pcast(x, "i", to="varying") * x, "i"),
    "pmean": lambda x: lax.pmean(x * x, "i") * x,
    "psum in a loop": lambda x: lax.scan(
        lambda y, _: (lax.psum(y * x, "i"), None), x, None, length=2
    )[0],
    "psum in a checkpoint": jax.checkpoint(lambda x: lax.psum(x * x, "i")),
    "psum in a rule": lambda x: squared_sum(x) * x,
    "a gradient in the body": lambda x: lax.psum(
        jax.grad(lambda y: lax.pcast(y, "i", to="varying") * y)(x), "i"
    ),
    "all_gather": lambda x: lax.psum(lax.all_gather(x * x, "i")[0] * x, "i"),
    "psum_scatter": lambda x: lax.psum(
        lax.psum_scatter(jnp.broadcast_to(x * x, (4,)), "i", tiled=True)[0], "i"
    ),
    "ppermute": lambda x: lax.psum(lax.ppermute(x * x, "i", [(0, 1), (1, 0)]), "i"),
    "all_to_all": exchanged,
    "a product with axis_index": lambda x: lax.psum(x * x * lax.axis_index("i"), "i"),
}

DERIVATIVES = {
    "value_and_grad": jax.value_and_grad,
    "vjp": lambda f: lambda x: jax.vjp(f, x)[1](f(x)),
    "jvp": lambda f: lambda x: jax.jvp(f, (x,), (x,)),
    "linearize": lambda f: lambda x: jax.linearize(f, x)[1](x),
    "checkpoint": lambda f: jax.grad(jax.checkpoint(f)),
    "vmap": lambda f: lambda x: jax.vmap(jax.grad(f))(lax.broadcast(x, (3,))),
}


def of_number(fun, shard_map=shard_map, **options):
    return shard_map(fun, mesh=MESH, in_specs=P(), out_specs=P(), **options)


def weak_types(fun, *args):
    return [x.weak_type for x in jax.tree.leaves(jax.eval_shape(fun, *args))]


@pytest.mark.parametrize("check_vma", [True, False])
@pytest.mark.parametrize("derivative", DERIVATIVES.values(), ids=DERIVATIVES)
@pytest.mark.parametrize("fun", FUNCTIONS.values(), ids=FUNCTIONS)
def test_a_derivative_is_as_weakly_typed(fun, derivative, check_vma):
    found, expected = (
        weak_types(derivative(of_number(fun, each, check_vma=check_vma)), 3.0)
        for each in (shard_map, jax.shard_map)
    )
    assert found == expected


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_a_step_by_the_gradient_of_a_number_keeps_the_type_of_weights(wrap):
    gradient = wrap(jax.grad(of_number(lambda x: lax.psum(x * x, "i"))))(3.0)
    assert gradient == 24
    assert (X - 0.1 * gradient).dtype == jnp.bfloat16


@pytest.mark.parametrize("derivative", DERIVATIVES.values(), ids=DERIVATIVES)
@pytest.mark.parametrize("reduction", [lax.pmax, lax.pmin], ids=lambda fun: fun.__name__)
def test_a_derivative_of_an_extremum_is_weakly_typed(reduction, derivative):
    """JAX has none."""
    assert all(weak_types(derivative(of_number(lambda x: reduction(x, "i") * x)), 3.0))


def test_a_gradient_is_scaled_in_its_own_type():
    with jax.enable_x64(True):
        weak = jax.ShapeDtypeStruct((), jnp.float32, weak_type=True)
        gradient = jax.eval_shape(jax.grad(of_number(lambda x: lax.psum(x * x, "i"))), weak)
    assert (gradient.dtype, gradient.weak_type) == (jnp.float32, True)
