"""Sites that were found together, of which one changes when another is rewritten."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P
from overlap_programs import BY_NAME, gather, mesh, normal, scatter

import shmap_compiler
from shmap_compiler import shard_map

ROWS = P("i")


def exchange(x):
    return lax.all_to_all(x, "i", 0, 0, tiled=True)


def rewritten(fun, pass_name, form, *args, in_specs=ROWS):
    """(results as they are, and rewritten; the operations of the rewritten program by name)."""
    mapped = {"mesh": mesh(i=4), "in_specs": in_specs, "out_specs": ROWS, "check_vma": False}
    expected = shard_map(fun, **mapped)(*args)
    with shmap_compiler.passes(BY_NAME[pass_name](form=form, parts=2)):
        lowered = shard_map(fun, **mapped).lower(*args)
    results = lowered.compile()(*args)
    for ours, plain in zip(jax.tree.leaves(results), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(ours, plain, rtol=0, atol=2e-6 * np.abs(plain).max())
    states = {state.name: state.text for state in lowered.snapshots.stages}
    return states[f"shmap-{pass_name}"]


def test_of_exchanges_that_share_operations_the_first_is_rewritten():
    def both(x, y, w):
        return exchange(jnp.tanh(exchange(x) + exchange(y)) @ w)

    x, y, w = normal(0, 32, 8, 8), normal(1, 32, 8, 8), normal(2, 8, 8)
    text = rewritten(both, "overlap-all-to-all", "chunks", x, y, w, in_specs=(ROWS, ROWS, P()))
    assert text.count("call @shmap_chunk") == 2


def test_exchanges_one_after_the_other_are_rewritten():
    """What the second sends is another value when the first is rewritten."""

    def twice(x, w):
        y = exchange(jnp.tanh(exchange(x)) @ w)
        return exchange(jnp.sin(exchange(y)) @ w)

    x, w = normal(0, 32, 8, 8), normal(1, 8, 8)
    text = rewritten(twice, "overlap-all-to-all", "chunks", x, w, in_specs=(ROWS, P()))
    assert text.count("call @shmap_chunk") == 4


def layer(x, dy, w):
    """The gradient of a weight, and sums of the rows over devices."""
    g, e = gather(x), gather(dy)
    return jnp.einsum("rk,rf->kf", g, e), lambda w: scatter(g @ w)


@pytest.mark.parametrize(("form", "scatters"), [("row-chunks", 0), ("row-stages", 4)])
def test_blocks_of_rows_beside_each_other_are_rewritten(form, scatters):
    def beside(x, y, w):
        one, summed_one = layer(x, y, w)
        other, summed_other = layer(y * 2, x * 3, w)
        return one[:2], summed_one(w), other[:2], summed_other(w)

    args = normal(0, 32, 8), normal(1, 32, 8), normal(2, 8, 8)
    in_specs = (ROWS, ROWS, P())
    text = rewritten(beside, "overlap-row-block", form, *args, in_specs=in_specs)
    assert text.count("stablehlo.all_gather") == 8
    assert text.count("stablehlo.reduce_scatter") == scatters


def test_what_is_computed_from_arrays_that_are_kept_is_computed_again():
    def gated(x, dy, v, w):
        g, e = gather(x), gather(dy)
        a, b = g @ v, g @ w
        weight = jnp.einsum("rk,rf->kf", jnp.tanh(a), e)[:2]
        return scatter((jnp.tanh(a) * b) @ w), scatter(a @ v + jnp.sin(b) @ w), weight

    args = normal(0, 32, 8), normal(1, 32, 8), normal(2, 8, 8), normal(3, 8, 8)
    in_specs = (ROWS, ROWS, P(), P())
    text = rewritten(gated, "overlap-row-block", "row-chunks", *args, in_specs=in_specs)
    calls = [each for each in text.splitlines() if "call @shmap_chunk" in each]
    assert max(each.rpartition("-> ")[2].count("tensor<16x8xf32>") for each in calls) == 2


def in_stages(fun, *shapes):
    """The collectives and barriers of a program in stages of rows, and its products, in order."""
    args = [normal(k, *shape) for k, shape in enumerate(shapes)]
    in_specs = tuple(ROWS if shape == (32, 8) else P() for shape in shapes)
    text = rewritten(fun, "overlap-row-block", "row-stages", *args, in_specs=in_specs)
    letters = {
        "stablehlo.all_gather": "g",
        "stablehlo.reduce_scatter": "s",
        "stablehlo.optimization_barrier": "|",
        "contracting_dims = [1] x [0]": "p",
        "contracting_dims = [0] x [0]": "w",
    }
    lines = [[letters[key] for key in letters if key in line] for line in text.splitlines()]
    return "".join(letter for found in lines for letter in found)


def test_gathers_of_a_layer_that_is_computed_again_are_sent_together():
    """The gradient of its weights is added up beside its scatter."""

    def recomputed(x, dy, v):
        g, e = gather(x), gather(dy)
        d = jnp.tanh(g @ v) * e
        dx = scatter(d @ v)
        return dx, jnp.einsum("rk,rf->kf", g, d)[:2]

    order = in_stages(recomputed, (32, 8), (32, 8), (8, 8))
    assert order == "gg|ggp|wp|p|swp|s"


def test_sums_that_need_products_of_gathers_are_added_up_beside_the_scatter():
    def both(x, dy, v):
        g, e = gather(x), gather(dy)
        h = jnp.tanh(g @ v)
        sums = jnp.einsum("rk,rf->kf", g, e)[:2], jnp.einsum("rk,rf->kf", h, h * e)[:2]
        return scatter((h * e) @ v), *sums

    order = in_stages(both, (32, 8), (32, 8), (8, 8))
    assert order == "gg|ggp|w|wp|p|w|swp|s"


def test_products_after_a_scatter_that_need_it_come_after_it():
    def after(x, v):
        g = gather(x)
        y = scatter(jnp.tanh(g @ v) @ v)
        d = jnp.einsum("rk,rf->kf", g, jnp.sin(g) * y.sum())
        return y, d[:2]

    order = in_stages(after, (32, 8), (8, 8))
    assert order.index("w") > order.rindex("s")


def test_a_block_of_rows_that_waits_for_one_that_is_rewritten_stays():
    """The first block has a product of the gradient of a weight in the second one."""

    def crossed(x, y, w):
        one, summed_one = layer(x, y, w)
        other, summed_other = layer(y * 2, x * 3, w)
        return one[:2], summed_one(other), summed_other(w)

    args = normal(0, 32, 8), normal(1, 32, 8), normal(2, 8, 8)
    in_specs = (ROWS, ROWS, P())
    text = rewritten(crossed, "overlap-row-block", "row-chunks", *args, in_specs=in_specs)
    assert text.count("stablehlo.all_gather") == 6
    assert text.count("stablehlo.reduce_scatter") == 1


def test_what_needs_least_memory_is_kept_of_a_chunk():
    """Two arrays are computed from a product and two reductions of it: these are kept."""

    def weighed(x, dy, v):
        a = gather(x) @ v
        p = jnp.exp(a - a.max(1, keepdims=True))
        q = p / p.sum(1, keepdims=True)
        y = scatter(q @ v)
        e = gather(dy * y)
        return y, scatter((e * p) @ v), jnp.einsum("rk,rf->kf", e, q)[:2]

    args = normal(0, 32, 8), normal(1, 32, 8), normal(2, 8, 8)
    in_specs = (ROWS, ROWS, P())
    text = rewritten(weighed, "overlap-row-block", "row-chunks", *args, in_specs=in_specs)
    kept = re.search(r"func.func private @shmap_chunk\(.*\) -> (.*) {", text)[1]
    assert sorted(re.findall(r"tensor<(\S*)xf32>", kept)) == ["16", "16", "16x8"]


def trained_layer(x, w):
    """A layer of experts both ways; the gradient of the weights sums over tokens of both."""
    b = exchange(x).reshape(32, 8)
    g = exchange(jnp.tanh(exchange((b @ w).reshape(4, 8, 8))))
    return exchange((g.reshape(32, 8) @ w).reshape(4, 8, 8)), b.T @ g.reshape(32, 8)


def test_blocks_of_exchanges_are_rewritten():
    """The second one exchanges what the first one has computed."""

    def twice(x, w):
        y, one = trained_layer(x, w)
        z, other = trained_layer(jnp.flip(y, 1), w)
        return z, one, other

    x, w = normal(0, 16, 8, 8), normal(1, 8, 8)
    text = rewritten(twice, "overlap-exchange-block", "summed-chunks", x, w, in_specs=(ROWS, P()))
    assert text.count("stablehlo.all_to_all") == 16


def test_of_products_that_are_computed_from_each_other_the_first_is_rewritten():
    def gram(x, w):
        gathered = gather(x)
        return jnp.tanh(gathered @ w) @ gathered.T

    x, w = normal(0, 16, 8), normal(1, 8, 8)
    text = rewritten(gram, "overlap-gather-product", "ring", x, w, in_specs=(ROWS, P()))
    assert "call @shmap_" in text or "collective_permute" in text
