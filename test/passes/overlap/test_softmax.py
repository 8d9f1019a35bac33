"""What is a softmax, and of what numbers."""

import jax
import jax.numpy as jnp
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


def found(function, *types):
    """(numbers, numbers in a row, dimensions of batches of the product) of each softmax."""
    mapped = shard_map(
        function, mesh=AbstractMesh((2,), ("i",)), in_specs=P(), out_specs=P(), check_vma=False
    )
    text = mapped.lower(*types).as_text("body")
    with shmap_passes.make_context():
        module = ir.Module.parse(text)
        return [
            (each.numbers, each.row, len(each.product.batch[0]) if each.product else None)
            for each in softmaxes(find_ops(module.operation, [REDUCE]))
        ]


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
