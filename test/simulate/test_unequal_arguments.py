"""Simulations of arguments whose copies differ: each device has its own, as in a compiled call."""

import jax
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from shmap_compiler import shard_map, simulate_module

MESH = jax.make_mesh((2, 4), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
X = np.arange(32, dtype=np.float32).reshape(8, 4) / 8


def unequal(spec, shape, make=lambda k, shape: np.full(shape, k, np.float32)):
    """An array of which device k has what `make` returns for k and the shape of a part."""
    sharding = NamedSharding(MESH, spec)
    parts = [
        jax.device_put(make(k, sharding.shard_shape(shape)), device)
        for k, device in enumerate(MESH.devices.flat)
    ]
    return jax.make_array_from_single_device_arrays(shape, sharding, parts)


def total(mapper=shard_map):
    def f(x):
        return lax.psum(x, "model"), lax.psum(x * (1 + lax.axis_index("model")), "model")

    return mapper(f, mesh=MESH, in_specs=P("data"), out_specs=P("data"), check_vma=False)


@pytest.mark.parametrize("partitioner", ["gspmd", "shardy"])
@pytest.mark.parametrize("held", [P("data"), P()], ids=str)
def test_each_device_has_its_own_copy(partitioner, held):
    x = unequal(held, (4, 4))
    lowered = total().lower(x, partitioner=partitioner)
    found, wanted = lowered.simulate(x).results, jax.jit(total(jax.shard_map))(x)
    for ours, theirs in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert found[0][0, 0] == 0 + 1 + 2 + 3


def test_the_sum_of_another_program_is_put_off_to_this_one():
    specs = {"in_specs": (P("data", "model"), P("model")), "out_specs": P("data")}
    partial = shard_map(lambda x, w: x @ w, mesh=MESH, check_vma=False, **specs)(X, X[:4].T)
    lowered = total().lower(partial)
    found = lowered.simulate(partial).results[0]
    np.testing.assert_allclose(found, X @ X[:4].T, rtol=1e-6)
    assert lowered.validate(partial).holds


def test_random_keys():
    keys = unequal(P(), (), lambda k, shape: jax.random.key(k))
    draw = shard_map(
        lambda key: jax.random.uniform(key, (1, 1)),
        mesh=MESH,
        in_specs=P(),
        out_specs=P("data", "model"),
    )
    found = draw.lower(keys).simulate(keys).results
    wanted = np.stack([jax.random.uniform(jax.random.key(k)) for k in range(8)])
    np.testing.assert_array_equal(found, wanted.reshape(2, 4))


def test_a_module_of_jax():
    x = unequal(P("data"), (4, 4))
    f = jax.jit(total(jax.shard_map))
    text = f.lower(x).as_text(debug_info=True)
    np.testing.assert_array_equal(simulate_module(text, [x]).results[0], f(x)[0])


def test_the_copies_of_other_devices_are_not_asked_for():
    small = jax.make_mesh((2,), ("data",), axis_types=(AxisType.Auto,))
    f = shard_map(lambda x: x * 2, mesh=small, in_specs=P("data"), out_specs=P("data"))
    x = unequal(P(), (4, 4))
    found = f.lower(jax.ShapeDtypeStruct((4, 4), np.float32)).simulate(x).results
    np.testing.assert_array_equal(found, 2 * np.asarray(x))
