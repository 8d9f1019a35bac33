"""Regions inside of regions, as JAX nests them for Shardy, exported for either partitioner."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P
from run_module import jax_partitioner

from shmap_compiler import import_module

MESH = jax.make_mesh((2, 2, 2), ("a", "b", "c"), axis_types=(AxisType.Auto,) * 3)


def over(axis, body, spec):
    """`body`, in a region that makes one more axis manual."""
    return jax.shard_map(body, in_specs=spec, out_specs=spec, axis_names={axis}, check_vma=False)


def collectives(x):
    y = jax.nn.silu(x) + lax.axis_index("b")
    whole = lax.all_gather(y, "b", tiled=True)
    looped = lax.fori_loop(0, 2, lambda _, c: lax.psum(jnp.tanh(c), "b") * 0.5, y)
    turned = lax.all_to_all(whole, "b", 1, 0, tiled=True)
    moved = lax.ppermute(y, "b", [(0, 1), (1, 0)])
    return lax.psum_scatter(whole, "b", tiled=True) + looped + turned.sum() + moved


def one_in_one(x):
    inner = over("b", collectives, P(None, "b"))(x)
    return inner * lax.axis_index("a") + lax.psum(inner, "a")


def all_axes(x):
    def third(y):
        rows = lax.all_gather(y, "c", tiled=True)
        return lax.psum(y, "c") + lax.axis_index("c") + rows.sum()

    def second(y):
        return over("c", third, P("c"))(jnp.sin(y)) * lax.psum(1, "b")

    return over("b", second, P(None, "b"))(x)


def in_a_loop(x):
    step = over("b", lambda y: lax.psum(y, "b") * 0.5 + y, P(None, "b"))
    return lax.fori_loop(0, 3, lambda _, c: jnp.sin(step(c)), x)


def without_elements(x):
    empty, rest = over("b", lambda y: (y[:0], y * 2), P(None, "b"))(x)
    return rest + empty.sum()


@pytest.mark.parametrize("partitioner", ["gspmd", "shardy"])
@pytest.mark.parametrize("body", [one_in_one, all_axes, in_a_loop, without_elements])
def test_a_region_in_a_region(body, partitioner):
    x = np.linspace(-1, 1, 64, dtype=np.float32).reshape(8, 8)
    specs = {"in_specs": P("a"), "out_specs": P("a"), "axis_names": {"a"}}
    jitted = jax.jit(jax.shard_map(body, mesh=MESH, check_vma=False, **specs))
    with jax_partitioner("shardy"):
        text = jitted.lower(x).as_text()
        expected = np.asarray(jitted(x))
    assert text.count("sdy.manual_computation") > 1
    module = import_module(text, partitioner=partitioner)
    (result,) = module.compile("cpu:8")(x)
    np.testing.assert_allclose(np.asarray(result), expected, rtol=1e-6)
    (simulated,) = module.simulate(x).results
    np.testing.assert_allclose(np.asarray(simulated), expected, rtol=1e-5)
