"""Gathered arrays that are combined with other arrays before they are multiplied."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P
from overlap_programs import gather

from shmap_compiler import shard_map

MESH = jax.make_mesh((4,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
WIDTH = 8


def scaled_rows(x, scales, w):
    """Rows that are sent as integers, with a scale for each."""
    return (gather(x.astype(jnp.int8)).astype(jnp.float32) * gather(scales[:, :1])) @ w


def scaled_columns(x, scales, w):
    """The same of columns of weights."""
    return x @ (gather(w.astype(jnp.int8), dimension=1).astype(jnp.float32) * gather(scales[:, 0]))


def scaled_weights(x, scales, w):
    """Weights whose rows are sent as integers, with a scale for each column."""
    return gather(x, dimension=1) @ (gather(w.astype(jnp.int8)).astype(jnp.float32) * scales[:, 0])


def scaled_blocks(x, scales, w):
    """Weights whose rows are gathered, with a scale for each row."""
    return x @ (gather(w[:2]) * gather(scales[:2, :1]))


def squared(x, scales, w):
    g = gather(x)
    return (g * jax.nn.relu(g) + scales[0, 0]) @ w


def turned(x, scales, w):
    """Both are transposed, each for itself."""
    g = gather(x)
    return w.T @ (g.T * jax.nn.relu(g).T)


def turned_weights(x, scales, w):
    """The same, in a product that sums over what is gathered."""
    g = gather(w)
    return (g.T + jax.nn.relu(g).T) @ x.reshape(4 * WIDTH, -1)


def masked(x, scales, w):
    return jnp.where(scales[0] > 0, gather(x), 0) @ w


def added(x, scales, w):
    """Two gathers of one product."""
    return (gather(x) + gather(2 * x)) @ w


def of_both(x, scales, w):
    """A product of two gathered arrays."""
    return gather(x) @ gather(w, dimension=1)


def by_largest(x, scales, w):
    """Of what all of the gathered array is needed for."""
    g = gather(x)
    return (g * jnp.max(g)) @ w


def by_product(x, scales, w):
    """Of what a product computes that needs the gathered array."""
    g = gather(x)
    return (g * (g @ w)[:, :WIDTH]) @ w


def crossed(x, scales, w):
    """Rows of a square array with its columns."""
    g = gather(x[:2])
    return (g * g.T) @ w


def of_few(x, scales, w):
    """More combinations than are looked at."""
    g = gather(x)
    for _ in range(40):
        g = jax.nn.relu(g * scales[0])
    return g @ w


def in_a_branch(x, scales, w):
    g = gather(x) * lax.cond(scales[0, 0] > 0, jnp.negative, lambda s: s, scales[0])
    return g @ w


FOUND = {
    scaled_rows: ["ring"],
    scaled_columns: ["ring"],
    scaled_weights: ["columns", None],
    scaled_blocks: ["columns"],
    squared: ["ring"],
    turned: ["ring"],
    turned_weights: ["columns"],
    masked: ["ring"],
    added: ["ring", None],
    of_both: ["ring", None],
    by_largest: [],
    by_product: ["ring"],
    crossed: [],
    of_few: [],
    in_a_branch: [],
}


def lowered(body, mode):
    """A program and its arguments: small integers, whose products and sums are exact."""
    integers = np.random.default_rng(0).integers
    shapes = (64, WIDTH), (64, WIDTH), (4 * WIDTH, 16)
    args = [jnp.asarray(integers(-2, 3, shape), jnp.float32) for shape in shapes]
    mapped = shard_map(body, mesh=MESH, in_specs=P("i"), out_specs=P("i"), check_vma=False)
    return mapped.lower(*args, overlap=mode), args


@pytest.mark.parametrize("body", FOUND, ids=lambda body: body.__name__)
def test_a_combined_array_is_multiplied_in_pieces(body):
    (plain, args), (forced, _) = lowered(body, "off"), lowered(body, "force")
    choices = forced.overlap_report().choices
    assert [choice.form for choice in choices] == FOUND[body]
    assert (forced.as_text("stablehlo") != plain.as_text("stablehlo")) == bool(choices)
    np.testing.assert_array_equal(forced.compile()(*args), plain.compile()(*args))
