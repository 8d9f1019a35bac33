"""Reshapes between products and collectives, which keep no product from being overlapped."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

from shmap_compiler import shard_map

MESH = jax.make_mesh((4,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
BATCH, LENGTH, WIDTH, HIDDEN = 4, 16, 8, 32
BY_LENGTH, ROWS, COLUMNS = P(None, "i"), P("i"), P(None, "i")


def gathered(x, axis, tiled=True):
    return lax.all_gather(x, "i", axis=axis, tiled=tiled)


def scattered(y, axis, tiled=True):
    return lax.psum_scatter(y, "i", scatter_dimension=axis, tiled=tiled)


def flat(x, w):
    """Sequences are gathered, and flattened."""
    return gathered(x, 1).reshape(-1, WIDTH) @ w


def first(x, w):
    """Each device has rows of all sequences, which come first."""
    return gathered(x, 0).reshape(-1, WIDTH) @ w


def untiled(x, w):
    return gathered(x, 0, tiled=False).reshape(-1, WIDTH) @ w


def apart(x, w):
    """Rows are gathered, and taken apart: each device has one sequence."""
    return gathered(x, 0).reshape(BATCH, -1, WIDTH) @ w


def heads(x, w):
    """What is multiplied by weights are the joined results of heads."""
    return gathered(x, 1).reshape(BATCH, LENGTH, WIDTH) @ w


def converted(x, w):
    return jnp.abs(gathered(x, 1).astype(jnp.bfloat16).reshape(-1, WIDTH).astype(jnp.float32) @ w)


def by_row(x, w, scales):
    return (gathered(x, 1).reshape(-1, WIDTH) @ w) * scales[:, None]


def squared(x, w):
    """What is reshaped is read twice by one operation."""
    y = gathered(x, 1).reshape(-1, WIDTH) @ w
    return y * y


def batched(x, w):
    """Parts have one row, as others are of a batch of products."""
    return jnp.einsum("nbd,ndf->nbf", gathered(x, 0).reshape(8, -1, WIDTH), w)


def summed_apart(x, w):
    return scattered((x @ w).reshape(BATCH, LENGTH, WIDTH), 1)


def summed_together(x, w):
    return scattered((x @ w).astype(jnp.bfloat16).reshape(-1, WIDTH), 0)


def summed_untiled(x, w):
    return scattered((x @ w).reshape(4, -1, WIDTH), 0, tiled=False)


def summed_everywhere(x, w):
    return lax.psum((x @ w).reshape(BATCH, LENGTH, WIDTH), "i")


def block(x, up, bias, down):
    h = jax.nn.relu(gathered(x, 1).reshape(-1, WIDTH) @ up + bias)
    return scattered((h @ down).reshape(BATCH, LENGTH, WIDTH), 1)


def gated(x, up, bias, down):
    g = gathered(x, 1).reshape(-1, WIDTH)
    h = jax.nn.relu(g @ up) * (g @ (up + 1) + bias)
    return scattered((h @ down).reshape(BATCH, LENGTH, WIDTH), 1)


SEQUENCES, TOKENS, WEIGHTS = (BATCH, LENGTH, WIDTH), (BATCH * LENGTH, WIDTH), (WIDTH, HIDDEN)
INNER = (BATCH * LENGTH, HIDDEN)
BLOCK = ((BY_LENGTH, COLUMNS, ROWS, ROWS), BY_LENGTH, (SEQUENCES, WEIGHTS, (32,), (HIDDEN, WIDTH)))
SUMMED = ((COLUMNS, ROWS), (INNER, (HIDDEN, WIDTH)))
# Body, specs of the arguments and of the result, shapes of the arguments, patterns of the sites.
PROGRAMS = {
    "flat": (flat, (BY_LENGTH, P()), P(), (SEQUENCES, WEIGHTS), "gather-product"),
    "first": (first, (ROWS, P()), P(), ((LENGTH, BATCH, WIDTH), WEIGHTS), "gather-product"),
    "untiled": (untiled, (ROWS, P()), P(), (TOKENS, WEIGHTS), "gather-product"),
    "apart": (apart, (ROWS, P()), P(), (TOKENS, WEIGHTS), "gather-product"),
    "heads": (heads, (BY_LENGTH, P()), P(), ((BATCH, LENGTH, 2, 4), WEIGHTS), "gather-product"),
    "converted": (converted, (BY_LENGTH, P()), P(), (SEQUENCES, WEIGHTS), "gather-product"),
    "by row": (
        by_row,
        (BY_LENGTH, P(), P()),
        P(),
        (SEQUENCES, WEIGHTS, TOKENS[:1]),
        "gather-product",
    ),
    "squared": (squared, (BY_LENGTH, P()), P(), (SEQUENCES, WEIGHTS), "gather-product"),
    "batched": (batched, (ROWS, P()), P(), (TOKENS, (8, *WEIGHTS)), "gather-product"),
    "summed apart": (summed_apart, SUMMED[0], BY_LENGTH, SUMMED[1], "product-scatter"),
    "summed together": (
        summed_together,
        (P(None, None, "i"), ROWS),
        ROWS,
        ((BATCH, LENGTH, HIDDEN), (HIDDEN, WIDTH)),
        "product-scatter",
    ),
    "summed untiled": (summed_untiled, SUMMED[0], ROWS, SUMMED[1], "product-scatter"),
    "summed everywhere": (summed_everywhere, SUMMED[0], P(), SUMMED[1], "product-sum"),
    "block": (block, *BLOCK, "gather-product product-scatter"),
    "gated": (gated, *BLOCK, "gather-product product-scatter"),
}


@functools.cache
def programs(name, *, gradient):
    """The program as it is and with forced forms, and its arguments."""
    body, in_specs, out_specs, shapes, _ = PROGRAMS[name]
    rng = np.random.default_rng(0)
    args = [rng.integers(-2, 3, shape).astype(np.float32) for shape in shapes]

    def gradients(*args):
        return jax.grad(lambda args: (body(*args).astype(jnp.float32) ** 2).sum())(args)

    fun, out_specs = (gradients, in_specs) if gradient else (body, out_specs)
    f = shard_map(fun, mesh=MESH, in_specs=in_specs, out_specs=out_specs, check_vma=False)
    modes = {"off": {}, "force": {"overlap_rounding": True}}
    return [f.lower(*args, overlap=mode, **given) for mode, given in modes.items()], args


@pytest.mark.parametrize("gradient", [False, True], ids=["forward", "gradient"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_numbers_are_those_of_the_plain_program(name, gradient):
    (plain, overlapped), args = programs(name, gradient=gradient)
    assert overlapped.overlap_report().is_changed
    found = jax.tree.leaves(overlapped.compile()(*args))
    for a, b in zip(found, jax.tree.leaves(plain.compile()(*args)), strict=True):
        assert a.sharding == b.sharding
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("name", PROGRAMS)
def test_forms_are_chosen(name):
    (_, overlapped), _ = programs(name, gradient=False)
    found = overlapped.overlap_report().choices
    assert [choice.pattern for choice in found] == PROGRAMS[name][-1].split()
    assert all(choice.form for choice in found)


def test_a_program_in_which_nothing_is_chosen_stays_as_it_is():
    def body(x, w):
        return jnp.tanh(gathered(x, 1).reshape(-1, WIDTH)), x @ w

    types = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in (SEQUENCES, WEIGHTS)]
    in_specs, out_specs = (BY_LENGTH, P()), (P(), BY_LENGTH)
    f = shard_map(body, mesh=MESH, in_specs=in_specs, out_specs=out_specs, check_vma=False)
    plain, forced = (f.lower(*types, overlap=mode) for mode in ("off", "force"))
    assert plain.as_text() == forced.as_text()


@pytest.mark.parametrize("mode", ["off", "force"])
def test_long_chains_of_operations(mode):
    """As many as Python's stack has no frames for."""

    def body(x, y, w):
        y = y @ w
        x = gathered(x, 1).reshape(-1, WIDTH) @ w
        for _ in range(1500):
            x, y = jnp.tanh(x), jnp.tanh(y)
        return x, scattered(y.reshape(BATCH, LENGTH, HIDDEN), 1)

    shapes = SEQUENCES, TOKENS, WEIGHTS
    types = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
    in_specs, out_specs = (BY_LENGTH, P(), P()), (P(), BY_LENGTH)
    f = shard_map(body, mesh=MESH, in_specs=in_specs, out_specs=out_specs, check_vma=False)
    found = f.lower(*types, overlap=mode).overlap_report().choices
    assert [choice.form for choice in found] == ["ring" if mode == "force" else None]
