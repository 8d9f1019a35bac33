"""A reduction of a Python number is as weakly typed as under `jax.shard_map`."""

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

    found, expected = (
        CALLS[how](mapped(scaled, each, check_vma=check_vma)) for each in (shard_map, jax.shard_map)
    )
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
