"""Tests of what test_additions.py adds to a copy of the project; it runs them there."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P
from shmap_compiler.collectives.pprod import pprod

from shmap_compiler import HangError, ReplicationError, Target, TargetError, shard_map

mesh = jax.make_mesh((4, 2), ("i", "j"), axis_types=(AxisType.Auto,) * 2)
x = np.array([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0], np.float32)
PRODUCTS = x.reshape(4, 2).prod(0)


def over_i(f, out_specs=None, **options):
    return shard_map(f, mesh=mesh, in_specs=P("i"), out_specs=out_specs or P(), **options)


def product(x):
    return pprod(x, "i")


@pytest.mark.parametrize("call", [lambda f: f, jax.jit])
def test_the_collective_runs(call):
    np.testing.assert_array_equal(call(over_i(product))(x), PRODUCTS)


def test_the_collective_is_vmapped():
    result = jax.jit(jax.vmap(over_i(product)))(np.stack([x, 2 * x]))
    np.testing.assert_array_equal(result, [PRODUCTS, 16 * PRODUCTS])


def test_the_collective_is_lowered_by_axes_and_costs_an_all_reduce():
    lowered = over_i(product).lower(x)
    assert "stablehlo.multiply" in lowered.as_text("body")
    assert '#stablehlo.axis_ref<name = "i">' in lowered.as_text("body")
    (collective,) = lowered.compile().explain().collectives
    assert (collective.kind, collective.axes) == ("all-reduce", ("i",))


@pytest.mark.parametrize("call", [lambda f: f, jax.jit])
@pytest.mark.parametrize("check_vma", [True, False])
def test_a_program_hangs_in_which_only_some_devices_reach_the_collective(call, check_vma):
    def some(x):
        return lax.cond(lax.axis_index("i") == 0, product, lambda x: x, x)

    with pytest.raises(HangError, match="pprod over 'i'"):
        call(over_i(some, P("i"), check_vma=check_vma))(x)


def test_all_devices_along_the_other_axis_reach_it():
    def some(x):
        return lax.cond(lax.axis_index("j") == 0, product, lambda x: x, x)

    result = jax.jit(over_i(some, P("i", "j"), check_vma=False))(x[:, None])
    np.testing.assert_array_equal(result[:, 0], np.tile(PRODUCTS, 4))
    np.testing.assert_array_equal(result[:, 1], x)


def test_the_result_is_replicated_over_the_axes_of_the_collective_and_no_others():
    def f(x):
        return pprod(x, "i")

    both = shard_map(f, mesh=mesh, in_specs=P(("i", "j")), out_specs=P())
    with pytest.raises(ReplicationError, match="'j'"):
        jax.jit(both)(jnp.asarray(x))


def test_the_pass_is_in_the_pipeline():
    text = over_i(lambda x: jnp.negative(jnp.negative(x)), P("i")).lower(x).as_text("stablehlo")
    assert "stablehlo.negate" not in text


def test_the_target_compiles_and_runs():
    target = Target.parse("socket:8")
    assert len(over_i(product).lower(x).compile("socket:8").explain().collectives) == 1
    on_target = shard_map(
        product, mesh=target.mesh({"i": 4, "j": 2}), in_specs=P("i"), out_specs=P()
    )
    np.testing.assert_array_equal(on_target(x), PRODUCTS)
    with pytest.raises(TargetError, match="write socket: and a number"):
        Target.parse("socket:two")
