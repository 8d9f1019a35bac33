"""What is attention between a gather and a scatter, and what is not."""

import jax
import jax.numpy as jnp
import pytest
import shmap_passes
from jax.sharding import AbstractMesh
from jax.sharding import PartitionSpec as P
from jaxlib.mlir import ir
from shmap_passes.overlap.find.row_ways import Way
from shmap_passes.overlap.find.sequence_blocks import sequence_blocks_of
from shmap_passes.overlap.rewrite.inline_local import inline_local

from shmap_compiler import shard_map

MESH = AbstractMesh((8,), ("i",))
X, W = (4, 128, 16), (16, 16)


def ways_of(function, *shapes):
    """In which the blocks of a function are cut; the first argument has rows."""
    specs = (P(None, "i"), *(P(),) * (len(shapes) - 1))
    mapped = shard_map(function, mesh=MESH, in_specs=specs, out_specs=P(), check_vma=False)
    arguments = [jax.ShapeDtypeStruct(shape, "float32") for shape in shapes]
    text = mapped.lower(*arguments).as_text("body")
    with shmap_passes.make_context():
        module = ir.Module.parse(text).operation.opview
        inline_local(module)  # as is done before forms are chosen
        return [block.way for block in sequence_blocks_of(module)]


def gather(x):
    return jax.lax.all_gather(x, "i", axis=1, tiled=True)


def scatter(x):
    return jax.lax.psum_scatter(x, "i", scatter_dimension=1, tiled=True)


def mixed(rows, w, mask=None):
    queries = rows @ w
    scores = jnp.einsum("bsd,btd->bst", queries, jnp.sin(queries))
    if mask is not None:
        scores = jnp.where(mask, scores, -30)
    return jnp.einsum("bst,btd->bsd", jax.nn.softmax(scores), queries)


def attention(x, w):
    return scatter(mixed(gather(x), w) @ w)


def of_causal_sequences(x, w):
    mask = jnp.tril(jnp.ones((128, 128), bool))
    return scatter(mixed(gather(x), w, mask) @ w)


def of_several_layers(x, w):
    return attention(jnp.sin(attention(x, w)), w)


def with_sum_over_rows(x, w):
    found = mixed(gather(x), w)
    return scatter(found @ w), jnp.einsum("bsd,bse->de", found, found)


def with_two_sums(x, w):
    found = mixed(gather(x), w)
    return scatter(found @ w), scatter(found @ w.T)


def with_mean_of_sequences(x, w):
    rows = gather(x)
    return scatter(mixed(rows - rows.mean(0), w) @ w)


def of_masked_sequences(x, w, mask):
    return scatter(mixed(gather(x), w, mask) @ w)


def with_others_cut_twice(x, w, u):
    """Chunks of one array along two dimensions."""
    found = mixed(gather(x), w)
    rows, columns = (
        jax.lax.dot_general(found, u, (((2,), (2,)), ((0,), (batch,)))) for batch in (0, 1)
    )
    return scatter((rows + columns) @ w[:4])


def of_products_alone(x, w):
    return scatter(jnp.tanh(gather(x) @ w) @ w), jnp.einsum("bsd,bse->bde", x, x)


CUT = Way(dimension=0)


@pytest.mark.parametrize(
    ("function", "shapes", "expected"),
    [
        (attention, (X, W), [CUT]),
        (of_causal_sequences, (X, W), [CUT]),
        (of_several_layers, (X, W), [CUT, CUT]),
        (with_sum_over_rows, (X, W), []),
        (with_two_sums, (X, W), []),
        (with_mean_of_sequences, (X, W), []),
        (of_masked_sequences, (X, W, (4, 128, 128)), [CUT]),
        (with_others_cut_twice, (X, W, (4, 4, 16)), []),
        (of_products_alone, (X, W), []),
        (attention, ((1, 128, 16), W), []),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_sequences_that_go_from_a_gather_to_a_scatter_by_themselves(function, shapes, expected):
    assert ways_of(function, *shapes) == expected
