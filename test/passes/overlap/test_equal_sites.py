"""Equal layers of a program share the functions that their sites become; others have their own."""

import re
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import shmap_passes
from jax import lax
from jax.sharding import AbstractMesh
from jax.sharding import PartitionSpec as P
from jaxlib.mlir import ir
from overlap_programs import BY_NAME, PROGRAMS, WriteForm, mesh
from shmap_passes.ir import build
from shmap_passes.overlap.form import Form
from shmap_passes.overlap.rewrite.equal_sites import shared, sharing

import shmap_compiler
from shmap_compiler import shard_map


def by_rows(x, w, scales):
    for scale in scales:
        h = jnp.tanh(scale * (lax.all_gather(x, "i", axis=0, tiled=True) @ w))
        x = lax.psum_scatter(h @ w.T, "i", scatter_dimension=0, tiled=True)
    return x


def by_weights(x, w, scales):
    for scale in scales:
        w = w[::-1]
        h = jnp.tanh(scale * (x @ lax.all_gather(w, "i", axis=0, tiled=True)))
        x = lax.psum(h @ jnp.tile(w, (4, 1)), "i")
    return x


def lowered(layers, specs, *args):
    def body(x, w):
        return layers(x, w, (2.0, 2.0, 3.0))

    mapped = shard_map(body, mesh=mesh(i=4), in_specs=specs, out_specs=specs[0], check_vma=False)
    program = mapped.lower(*args, overlap="force")
    expected = mapped.lower(*args).compile()(*args)
    tolerance = 2e-6 * np.abs(expected).max()
    np.testing.assert_allclose(program.compile()(*args), expected, rtol=0, atol=tolerance)
    states = {state.name: state.text for state in program.snapshots.stages}
    return states["shmap-overlap-product-sum"]


def functions_and_calls(text, name):
    """How many functions have a name, but for its number, and how many calls."""
    return (
        len(re.findall(rf"func\.func private @{name}(_\d+)?\(", text)),
        len(re.findall(rf"call @{name}(_\d+)?\(", text)),
    )


def test_equal_rings_and_sums_are_functions_that_layers_call():
    x, w, *_ = PROGRAMS["gathered"][-1]
    text = lowered(by_rows, (P("i"), P()), jnp.asarray(x[:, :16]), 0.1 * jnp.asarray(w[:16, :16]))
    # The third layer multiplies by another constant, before a scatter like those of the others.
    assert functions_and_calls(text, "shmap_ring") == (2, 3)
    assert functions_and_calls(text, "shmap_sums") == (1, 3)
    assert '"stablehlo.all_gather"' not in text
    assert '"stablehlo.reduce_scatter"' not in text


def test_equal_chunks_are_functions_that_layers_call():
    x = jnp.asarray(PROGRAMS["gathered"][-1][0])[:16, :16]
    text = lowered(by_weights, (P("i"), P("i")), x, 0.1 * x)
    assert functions_and_calls(text, "shmap_chunks") == (3, 6)


def test_equal_rings_whose_steps_are_loops_are_functions():
    x = jnp.asarray(PROGRAMS["gathered"][-1][0])[:, :16]

    def body(x, w):
        return by_rows(x, w, (2.0, 2.0))

    mesh_of_18 = AbstractMesh((18,), ("i",))
    specs = {"in_specs": (P("i"), P()), "out_specs": P("i"), "check_vma": False}
    args = jnp.tile(x, (2, 1))[:72], 0.1 * x[:16]
    program = shard_map(body, mesh=mesh_of_18, **specs).lower(*args, overlap="force")
    states = {state.name: state.text for state in program.snapshots.stages}
    text = states["shmap-overlap-product-scatter"]
    assert text.count("stablehlo.while") == 2
    assert functions_and_calls(text, "shmap_ring") == (1, 2)
    assert functions_and_calls(text, "shmap_sums") == (1, 2)


def read_once_more(x, w, scales):
    read = []
    for _ in scales:
        g = lax.all_gather(x, "i", axis=0, tiled=True)
        x = lax.psum_scatter(jnp.tanh(g @ w) @ w.T, "i", scatter_dimension=0, tiled=True)
        read.append(g)
    return x + jnp.flip(read[-1], 0)[: len(x)]


def on_two_lines(x, w, scales):
    for _ in scales:
        x = lax.all_gather(x, "i", axis=0, tiled=True)[: len(x)] @ w
    for _ in scales:
        x = jnp.tanh(lax.all_gather(x, "i", axis=0, tiled=True) @ w)[: len(x)]
    for _ in scales:
        x = jnp.tanh(lax.all_gather(x, "i", axis=0, tiled=True) @ w)[: len(x)]
    return x


def of_two_widths(x, w, scales):
    for width in (8, 8, 16, 16):
        g = lax.all_gather(x[:, :width], "i", axis=0, tiled=True)
        x = jnp.tanh(g @ w[:width])[: len(x)]
    return x


def with_factors(x, w, scales):
    """The last of which something else reads as well."""
    factors = []
    for _ in scales:
        factors.append(jnp.tile(x, (4, 1)) @ w)
        h = jnp.tanh(lax.all_gather(x, "i", axis=0, tiled=True) @ w) * factors[-1]
        x = jnp.sort(h)[: len(x)]
    return x + jnp.sort(factors[-1])[: len(x)]


@pytest.mark.parametrize(
    ("layers", "functions", "calls"),
    [(read_once_more, 2, 3), (on_two_lines, 2, 6), (of_two_widths, 2, 4), (with_factors, 2, 3)],
)
def test_sites_that_differ_have_functions_of_their_own(layers, functions, calls):
    """By what others read, by the line of the program, and by their sizes."""
    x, w, *_ = PROGRAMS["gathered"][-1]
    args = jnp.asarray(x[:, :16]), 0.1 * jnp.asarray(w[:16, :16])
    text = lowered(layers, (P("i"), P()), *args)
    assert functions_and_calls(text, "shmap_ring") == (functions, calls)


def layer(x, v, w, scale=1.0):
    h = jnp.tanh(scale * (lax.all_gather(x, "i", axis=0, tiled=True) @ v))
    return lax.psum_scatter(h @ w, "i", scatter_dimension=0, tiled=True)


def gated_layer(x, v, w):
    g = lax.all_gather(x, "i", axis=0, tiled=True)
    return lax.psum_scatter((jnp.tanh(g @ v) * (g @ v)) @ w, "i", scatter_dimension=0, tiled=True)


def kept_by_others(x, v, w):
    """Whose hidden values something else reads."""
    h = jnp.tanh(lax.all_gather(x, "i", axis=0, tiled=True) @ v)
    y = lax.psum_scatter(h @ w, "i", scatter_dimension=0, tiled=True)
    return y * jnp.sum(jnp.flip(h, 0), axis=0)[: y.shape[1]].mean()


def reduced(x, v, w, of=lax.min):
    h = lax.all_gather(x, "i", axis=0, tiled=True) @ v
    reduction = lax.reduce(lax.stop_gradient(h), np.float32(0), lambda a, b: -of(-a, -b), (1,))
    h = jnp.tanh(h - reduction[:, None])
    return lax.psum_scatter(h @ w, "i", scatter_dimension=0, tiled=True)


@pytest.mark.parametrize(
    ("layers", "kinds"),
    [
        ([layer, layer, layer], 1),
        ([reduced, partial(reduced, of=lax.max), reduced], 2),
        ([layer, layer, partial(layer, scale=2.0)], 2),
        ([layer, gated_layer, layer, gated_layer], 2),
        ([layer, kept_by_others, layer, kept_by_others], 2),
    ],
    ids=["equal", "other reductions", "one of another scale", "two kinds", "read by others"],
)
def test_blocks_of_rows_share_functions_with_equal_ones_only(layers, kinds):
    x = np.random.default_rng(0).standard_normal((16, 8)).astype(np.float32)
    v, w = (np.random.default_rng(k).standard_normal((8, 8)).astype(np.float32) for k in (1, 2))

    def gradient(x, weights):
        def loss(x, weights):
            for each, (v, w) in zip(layers, weights, strict=True):
                x = x + each(x, v, w)
            return jnp.sum(x**2)

        return jax.grad(loss, (0, 1))(x, weights)

    def lowered(*added):
        weights = (P(None, "i"), P("i"))
        specs = P("i"), [weights] * len(layers)
        mapped = shard_map(
            gradient, mesh=mesh(i=4), in_specs=specs, out_specs=specs, check_vma=False
        )
        with shmap_compiler.passes(*added):
            return mapped.lower(*args)

    args = jnp.asarray(x), [(v / 4, w / 4 + k / 9) for k in range(len(layers))]
    expected = jax.tree.leaves(lowered().compile()(*args))
    options = {"op_name": "all_gather", "form_name": "row-chunks", "parts": 2}
    texts = []
    for is_shared in (False, True):
        written = WriteForm(**options, shared=is_shared)
        program = lowered(written, BY_NAME["overlap-row-block"]())
        for ours, plain in zip(jax.tree.leaves(program.compile()(*args)), expected, strict=True):
            np.testing.assert_allclose(ours, plain, rtol=0, atol=2e-5 * np.abs(plain).max())
        states = {state.name: state.text for state in program.snapshots.stages}
        texts.append(states["shmap-overlap-row-block"])
    for name in ("shmap_chunk", "shmap_product", "shmap_add"):
        (alone, calls), (together, same) = (functions_and_calls(text, name) for text in texts)
        assert together == alone * kinds / len(layers)
        assert calls == same or name == "shmap_product"  # which another function calls, too


FUNCTIONS = """module {
  func.func public @main(%x: tensor<4xf32>, %y: tensor<4xf32>) -> tensor<4xf32> {
    %a = stablehlo.negate %x : tensor<4xf32>
    %b = stablehlo.negate %y : tensor<4xf32>
    %c = stablehlo.add %a, %b : tensor<4xf32>
    return %c : tensor<4xf32>
  }
}"""


def test_what_is_built_of_values_that_a_site_does_not_use_is_not_shared():
    with shmap_passes.make_context(), ir.Location.unknown():
        module = ir.Module.parse(FUNCTIONS)
        block = module.body.operations[0].regions[0].blocks[0]
        first, second, after, _ = (op.operation for op in block.operations)
        form = Form("ring", shared=True)
        with ir.InsertionPoint(after), sharing():
            for op, other in zip((first, second), reversed(block.arguments), strict=True):
                made = partial(build.add, other, other)
                (value,) = shared("f", [op], op.results, form, lambda made=made: [made()])
                op.results[0].replace_all_uses_with(value)
        module.operation.verify()
        assert functions_and_calls(str(module), "f") == (2, 2)


def one(x, w):
    return lax.all_gather(x, "i", axis=0, tiled=True) @ w


def test_what_is_there_once_is_not_a_function():
    x, w, *_ = PROGRAMS["gathered"][-1]
    mapped = shard_map(one, mesh=mesh(i=4), in_specs=(P("i"), P()), out_specs=P(), check_vma=False)
    program = mapped.lower(jnp.asarray(x), jnp.asarray(w), overlap="force")
    text = program.snapshots.stages[-1].text
    assert functions_and_calls(text, "shmap_ring") == (0, 0)
