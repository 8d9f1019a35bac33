"""Regions inside of regions, as JAX nests them for Shardy, exported for either partitioner."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import shmap_passes
from jax import lax
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P
from run_module import jax_partitioner, passed, run_in_child

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


INDEX = """
    %k = stablehlo.custom_call @shmap.axis_index()
      {api_version = 4 : i32, backend_config = {axes = ["a"]}} : () -> tensor<i32>
    %f = stablehlo.convert %k : (tensor<i32>) -> tensor<f32>
    %g = stablehlo.broadcast_in_dim %f, dims = [] : (tensor<f32>) -> tensor<4x4xf32>
    %h = stablehlo.add %b, %g : tensor<4x4xf32>"""
CALL = "%h = func.call @indexed(%b) : (tensor<4x4xf32>) -> tensor<4x4xf32>"


def body_with_an_index_inside(inner, axes):
    sizes = ", ".join(f'"{axis}"=2' for axis in axes)
    placed = '{sdy.sharding = #sdy.sharding<@mesh, [{"a"}, {}]>}'
    split = 'shardings=[<@mesh, [{}, {"b"}]>]'
    return f"""
    sdy.mesh @mesh = <[{sizes}]>
    func.func public @main(%x: tensor<4x8xf32> {placed}) -> (tensor<4x8xf32> {placed})
        attributes {{sdy.manual_axes = #sdy<manual_axes{{"a"}}>}} {{
      %y = sdy.manual_computation(%x) in_{split} out_{split} manual_axes={{"b"}}
          (%b: tensor<4x4xf32>) {{
        {inner}
        sdy.return %h : tensor<4x4xf32>
      }} : (tensor<4x8xf32>) -> tensor<4x8xf32>
      return %y : tensor<4x8xf32>
    }}
    func.func private @indexed(%b: tensor<4x4xf32>) -> tensor<4x4xf32> {{
      {INDEX}
      return %h : tensor<4x4xf32>
    }}"""


@pytest.mark.subprocess
@pytest.mark.parametrize("partitioner", ["gspmd", "shardy"])
@pytest.mark.parametrize("axes", ["ab", "abc"])
@pytest.mark.parametrize("inner", [INDEX, CALL], ids=["inside", "in_a_called_function"])
def test_an_index_along_an_outer_axis(inner, axes, partitioner):
    pipeline = shmap_passes.pipeline(partitioner, "ids")
    text = passed(body_with_an_index_inside(inner, axes), pipeline)
    x = np.arange(64, dtype=np.float32).reshape(8, 8)
    (result,) = run_in_child(text, (x,), dict.fromkeys(axes, 2), partitioner)
    np.testing.assert_array_equal(result, x + np.repeat([0, 1], 4)[:, None])
