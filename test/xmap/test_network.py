"""The network of the tutorial: the program that one writes by hand, value and gradient.

Products, collectives and reduced elements are counted in the optimized HLO.
"""

import collections
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.nn import one_hot, relu
from jax.scipy.special import logsumexp
from jax.sharding import PartitionSpec as P
from named_programs import ASSIGNMENTS, IN_AXES, LINE, SQUARE, named_loss, network, positional_loss

from shmap_compiler import shard_map, xmap

ARGS = network(64, 32, 10, 16)


def data_parallel(w1, w2, images, labels):
    return lax.pmean(positional_loss(w1, w2, images, labels), "x")


def tensor_parallel(w1, w2, images, labels, axis="x"):
    logits = lax.psum(relu(images @ w1) @ w2, axis)
    predictions = logits - logsumexp(logits, axis=1, keepdims=True)
    return -jnp.mean(jnp.sum(one_hot(labels, predictions.shape[-1]) * predictions, axis=1))


def both_parallel(w1, w2, images, labels):
    return lax.pmean(tensor_parallel(w1, w2, images, labels, "y"), "x")


BY_HAND = {
    "none": positional_loss,
    "batch": shard_map(
        data_parallel, mesh=LINE, in_specs=(P(), P(), P("x"), P("x")), out_specs=P()
    ),
    "hidden": shard_map(
        tensor_parallel, mesh=LINE, in_specs=(P(None, "x"), P("x"), P(), P()), out_specs=P()
    ),
    "both": shard_map(
        both_parallel,
        mesh=SQUARE,
        in_specs=(P(None, "y"), P("y"), P("x"), P("x")),
        out_specs=P(),
    ),
}
_OPS = "dot|all-reduce|all-gather|reduce-scatter|collective-permute|all-to-all"


def count(text):
    """How often each operation occurs in HLO, and how many elements each collective gives."""
    found = collections.Counter()
    for result, op in re.findall(rf"= (\([^)]*\)|\S+) ({_OPS})\(", text):
        found[op] += 1
        for dims in re.findall(r"\w+\[([\d,]*)\]", result) if op != "dot" else ():
            found[f"{op} elements"] += int(np.prod([int(d) for d in dims.split(",") if d]))
    return found


@pytest.mark.parametrize("name", ASSIGNMENTS)
def test_equals_what_one_writes_by_hand(name):
    resources, mesh = ASSIGNMENTS[name]
    loss = xmap(named_loss, IN_AXES, [...], axis_resources=resources, mesh=mesh)
    programs = {}
    for f in (loss, BY_HAND[name]):
        compiled = [
            jax.jit(f).lower(*ARGS).compile(),
            jax.jit(jax.grad(f, (0, 1))).lower(*ARGS).compile(),
        ]
        programs[f] = [count(c.as_text()) for c in compiled]
        if f is loss:
            value, gradient = (c(*ARGS) for c in compiled)
    assert programs[loss] == programs[BY_HAND[name]]
    assert programs[loss][1]["dot"] == 5  # the counting counts
    np.testing.assert_allclose(value, positional_loss(*ARGS), rtol=1e-5)
    want = jax.grad(positional_loss, (0, 1))(*ARGS)
    jax.tree.map(lambda g, w: np.testing.assert_allclose(g, w, atol=1e-6), gradient, want)


def test_the_array_of_all_products_is_never_made():
    """The contraction stays a product if the axis is also split."""
    loss = xmap(named_loss, IN_AXES, [...], axis_resources={"hidden": ("x",)}, mesh=LINE)
    text = loss.lower(*ARGS).as_text("body")
    assert text.count("stablehlo.dot_general") == 2
    assert "tensor<16x64x4x" not in text


def test_labels_are_not_differentiated():
    loss = xmap(named_loss, IN_AXES, [...], axis_resources={"batch": "x"}, mesh=LINE)
    with pytest.raises(TypeError, match="real- or complex-valued inputs"):
        jax.grad(loss, 3)(*ARGS)
