"""What is a softmax, and of what numbers."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import shmap_passes
from jax.sharding import AbstractMesh
from jax.sharding import PartitionSpec as P
from jaxlib.mlir import ir
from shmap_passes.ir.find_ops import find_ops
from shmap_passes.overlap.find.row_sums import REDUCE
from shmap_passes.overlap.find.softmax import softmaxes

from shmap_compiler import shard_map

X = jax.ShapeDtypeStruct((2, 4, 16, 32), "bfloat16")


def of_each(facts, function, *types):
    """Facts of each softmax of a program."""
    mapped = shard_map(
        function, mesh=AbstractMesh((2,), ("i",)), in_specs=P(), out_specs=P(), check_vma=False
    )
    text = mapped.lower(*types).as_text("body")
    with shmap_passes.make_context():
        module = ir.Module.parse(text)
        return [facts(each) for each in softmaxes(find_ops(module.operation, [REDUCE]))]


def sizes(softmax):
    """(numbers, numbers in a row, dimensions of batches of the product)."""
    product = softmax.product
    return softmax.numbers, softmax.row, len(product.batch[0]) if product else None


found = partial(of_each, sizes)
masks = partial(of_each, lambda softmax: softmax.masks)


def attention(q, k, v):
    scores = jnp.einsum("bhtd,bhsd->bhts", q, k).astype(jnp.float32) / 32**0.5
    is_before = jnp.tril(jnp.ones(scores.shape[-2:], bool))
    shares = jax.nn.softmax(jnp.where(is_before, scores, -jnp.inf)).astype(v.dtype)
    return jnp.einsum("bhts,bhsd->bhtd", shares, v)


def test_scores_of_heads():
    assert found(attention, X, X, X) == [(2 * 4 * 16 * 16, 16, 2)]


def test_scores_in_a_gradient():
    def gradient(*args):
        return jax.grad(lambda *args: attention(*args).astype(jnp.float32).sum(), (0, 1, 2))(*args)

    assert found(gradient, X, X, X) == [(2 * 4 * 16 * 16, 16, 2)]


def test_scores_of_one_head():
    def of_rows(q, k):
        return jax.nn.softmax(jnp.einsum("td,sd->ts", q[0, 0], k[0, 0]))

    assert found(of_rows, X, X) == [(16 * 16, 16, 0)]


@pytest.mark.parametrize(
    "function", [jax.nn.softmax, jax.nn.log_softmax, jax.nn.logsumexp], ids=lambda f: f.__name__
)
def test_functions_that_begin_as_softmax(function):
    assert found(lambda x: function(x, axis=-1), X) == [(2 * 4 * 16 * 32, 32, None)]


def test_a_softmax_of_several_dimensions():
    assert found(lambda x: jax.nn.softmax(x, (1, 3)), X) == [(2 * 4 * 16 * 32, 4 * 32, None)]


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x - x.max(-1, keepdims=True),
        lambda x: jnp.exp(x.max(-1, keepdims=True) - x),
        lambda x: jnp.exp(x - x.sum(-1, keepdims=True)),
        lambda x: jnp.exp(2 * x - x.max(-1, keepdims=True)),
        lambda x: jnp.exp(x - jax.lax.optimization_barrier(x.max(-1, keepdims=True))),
        lambda x: jnp.exp(x - jax.lax.argmax(x, 3, jnp.int32)[..., None]),
    ],
    ids=["no-exponential", "negative", "sum", "of-others", "stored", "place"],
)
def test_no_softmax(function):
    assert found(function, X) == []


def scores_of(q, k):
    return jnp.einsum("bhtd,bhsd->bhts", q, k).astype(jnp.float32)


SEEN = np.tri(16, dtype=bool)
SCALE = jax.ShapeDtypeStruct((), "float32")


@pytest.mark.parametrize(
    "masked",
    [
        lambda x: jnp.where(jnp.tril(jnp.ones((16, 16), bool)), x, -jnp.inf),
        lambda x: jnp.where(SEEN, x, -jnp.inf),
        lambda x: jnp.where(jnp.arange(16) < 12, x, -1e9),
        lambda x: x + np.where(SEEN, 0, -1e9).astype("float32"),
        lambda x: x - jnp.arange(16.0),
        lambda x: x + jnp.einsum("bhts->bts", x)[:, None],
    ],
    ids=["causal", "constant", "padding", "added", "distances", "sums"],
)
def test_masks_and_biases(masked):
    def function(q, k):
        return jax.nn.softmax(masked(scores_of(q, k)))

    assert masks(function, X, X) == [1]


def test_a_mask_that_is_given():
    def function(q, k, mask):
        return jax.nn.softmax(jnp.where(mask, scores_of(q, k), -jnp.inf))

    assert masks(function, X, X, jax.ShapeDtypeStruct((16, 16), "bool")) == [1]


@pytest.mark.parametrize(
    "scaled",
    [
        lambda x, scale: x,
        lambda x, scale: x / 32**0.5,
        lambda x, scale: x * scale,
        lambda x, scale: 30 * jnp.tanh(x / 30),
        lambda x, scale: jnp.clip(x, -30, 30),
        lambda x, scale: x * jnp.full_like(x, 0.5),
    ],
    ids=["as-it-is", "divided", "scaled", "capped", "clipped", "full"],
)
def test_scores_alone(scaled):
    def function(q, k, scale):
        return jax.nn.softmax(scaled(scores_of(q, k), scale))

    assert masks(function, X, X, SCALE) == [0]


@pytest.mark.parametrize(("elements", "count"), [("2.0", 0), ("[[0.0, 1.0], [0.0, 0.0]]", 1)])
def test_constants_of_one_number_are_no_masks(elements, count):
    text = f"""
      func.func @main(%q: tensor<2x4xf32>, %k: tensor<2x4xf32>) -> tensor<2x2xf32> {{
        %s = stablehlo.dot_general %q, %k, contracting_dims = [1] x [1]
          : (tensor<2x4xf32>, tensor<2x4xf32>) -> tensor<2x2xf32>
        %c = stablehlo.constant dense<{elements}> : tensor<2x2xf32>
        %x = stablehlo.add %s, %c : tensor<2x2xf32>
        %i = stablehlo.constant dense<0.0> : tensor<f32>
        %m = stablehlo.reduce(%x init: %i) applies stablehlo.maximum across dimensions = [1]
          : (tensor<2x2xf32>, tensor<f32>) -> tensor<2xf32>
        %b = stablehlo.broadcast_in_dim %m, dims = [0] : (tensor<2xf32>) -> tensor<2x2xf32>
        %d = stablehlo.subtract %x, %b : tensor<2x2xf32>
        %e = stablehlo.exponential %d : tensor<2x2xf32>
        return %e : tensor<2x2xf32>
      }}"""
    with shmap_passes.make_context():
        module = ir.Module.parse(text)
    # Outside of the MLIR context, as in `Lowered.overlap_report`.
    (softmax,) = softmaxes(find_ops(module.operation, [REDUCE]))
    assert softmax.masks == count
