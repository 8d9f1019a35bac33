"""The namespace `named`, compared with `jax.numpy`, and mistakes of xmap's arguments."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.scipy.special import logsumexp

from shmap_compiler import SpecError, UnknownAxisError, named, xmap
from shmap_compiler.named import lax

X = np.random.default_rng(2).normal(size=(4, 6)).astype(np.float32)
REDUCTIONS = ("sum", "max", "min", "mean", "var", "std", "prod", "any", "all")


def test_reductions_over_names_and_dimensions():
    def fun(x):  # f32[6] along rows
        by_name = [getattr(named, name)(x, "rows") for name in REDUCTIONS]
        both = [getattr(named, name)(x, (0, "rows")) for name in REDUCTIONS]
        return by_name, both, named.argmax(x, "rows"), named.logsumexp(x, ("rows", 0))

    by_name, both, largest, total = xmap(fun, ["rows", ...], [...])(X)
    for name, got, whole in zip(REDUCTIONS, by_name, both, strict=True):
        np.testing.assert_allclose(got, getattr(jnp, name)(X, 0), rtol=1e-5)
        np.testing.assert_allclose(whole, getattr(jnp, name)(X), rtol=1e-5)
    np.testing.assert_array_equal(largest, X.argmax(0))
    np.testing.assert_allclose(total, logsumexp(X), rtol=1e-6)


def test_products_gathers_and_softmax():
    def fun(x, y, k):  # {n, k} and {k, m}
        return (
            named.einsum("{n,k},{k,m}->{n,m}", x, y),
            lax.pdot(x, y, "k"),
            named.softmax(x, "k"),
            lax.pgather(x, k, "n"),
        )

    index = jnp.array([3, 0])
    product, dot, probabilities, rows = xmap(
        fun, (["n", "k"], ["k", "m"], [...]), (["n", "m"], ["n", "m"], ["n", "k"], [None, "k"])
    )(X, X.T, index)
    np.testing.assert_allclose(product, X @ X.T, rtol=1e-5)
    np.testing.assert_allclose(dot, X @ X.T, rtol=1e-5)
    np.testing.assert_allclose(probabilities, jax.nn.softmax(X, 1), rtol=1e-5)
    np.testing.assert_allclose(rows, X[index])


@pytest.mark.parametrize(
    ("options", "found"),
    [
        ({"in_axes": {-1: "a"}}, "negative axes"),
        ({"in_axes": ["a", "a"]}, "'a' more than once"),
        ({"in_axes": ["a", ...], "out_axes": ["b"]}, "axis 'b', which appears neither"),
        ({"in_axes": ["a"]}, "an array of rank 2"),
        ({"in_axes": ["a", ...], "axis_sizes": {"a": 3}}, "size 4 of axis 'a'"),
        ({"in_axes": ["a", ...], "axis_sizes": {"b": 3}, "out_axes": [...]}, "more axes"),
        ({"in_axes": ["a", ...], "axis_resources": {"a": "x"}}, "resource 'x'"),
        ({"in_axes": ["a", ...], "axis_resources": "x"}, "a dict by names of axes"),
        ({"in_axes": ["a", ...], "axis_sizes": 5}, "a dict by names of axes"),
        ({"in_axes": ["a", ...], "donate_argnums": "x"}, "a position of an argument"),
    ],
)
def test_mistakes(options, found):
    with pytest.raises(SpecError, match=found) as raised:
        xmap(lambda x: x, **{"out_axes": ["a", ...], **options})(X)
    assert str(raised.value).startswith("xmap of `<lambda>` (")


def test_names_that_do_not_exist():
    with pytest.raises(UnknownAxisError, match="axis 'b'"):
        xmap(lambda x: lax.psum(x, "b"), ["a", ...], ["a", ...])(X)
