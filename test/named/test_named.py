"""The namespace `named`, compared with `jax.numpy`, and mistakes of xmap's arguments."""

import contextlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.scipy.special import logsumexp
from jax.sharding import PartitionSpec as P

from shmap_compiler import SerialLoop, SpecError, UnknownAxisError, named, shard_map, xmap
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


@pytest.mark.parametrize("dimension", [0, np.int64(0), jnp.array(-1)], ids=repr)
def test_gathered_along_a_name_and_a_dimension(dimension):
    index = jnp.array([1, -1])
    rows = xmap(lambda x: named.pgather(x, index, (dimension, "k")), ["n", "k", ...], ["n", ...])
    cube = jnp.arange(24.0).reshape(2, 3, 4)
    np.testing.assert_array_equal(rows(cube), cube.swapaxes(1, 2).reshape(2, 12)[:, index])


def test_gathered_without_elements():
    picked = xmap(lambda x: named.pgather(x, jnp.array([0, 1]), "n"), ["n", ...], [...])
    assert picked(jnp.zeros((8, 0))).shape == (2, 0)


@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16, jnp.int32, jnp.complex64])
def test_sums_that_do_not_fit_in_the_type(dtype):
    """As jnp, which computes a mean of 16-bit numbers in 32 bits."""
    x = jnp.full((100,), 1000).astype(dtype)
    mean, var = xmap(lambda x: (named.mean(x, "n"), named.var(x, "n")), ["n"], [])(x)
    np.testing.assert_array_equal(mean, jnp.mean(x))
    np.testing.assert_array_equal(var, jnp.var(x))
    assert (mean.dtype, var.dtype) == (jnp.mean(x).dtype, jnp.var(x).dtype)


@pytest.mark.parametrize("mesh", [None, jax.make_mesh((4,), ("i",))], ids=["vmap", "devices"])
@pytest.mark.parametrize("where", [(), (1,), (1, 3), (0,), (3,)], ids=str)
def test_position_of_a_nan(where, mesh):
    x = jnp.array([1.0, 3.0, 2.0, 3.0]).at[jnp.array(where, int)].set(jnp.nan)

    def fun(x):
        return named.argmax(x, "n"), named.argmin(x, "n")

    resources = {} if mesh is None else {"axis_resources": {"n": "i"}}
    with contextlib.nullcontext() if mesh is None else jax.set_mesh(mesh):
        found = xmap(fun, ["n"], [], **resources)(x)
    assert found == (jnp.argmax(x), jnp.argmin(x))


def test_extrema_of_a_shard_mapped_function_propagate_nan():
    x = jnp.array([1.0, jnp.nan, 2.0, 3.0])

    def fun(x):
        return named.max(x, (0, "i")), named.min(x, (0, "i"))

    mesh = jax.make_mesh((4,), ("i",))
    found = shard_map(fun, mesh=mesh, in_specs=P("i"), out_specs=P())(x)
    assert np.isnan(found).all()


@pytest.mark.parametrize("axis", [1, -2, (0, 5), np.int64(7)], ids=str)
def test_dimensions_that_an_array_does_not_have(axis):
    with pytest.raises(SpecError, match="a name, or a dimension from -1 to 0"):
        xmap(lambda x: named.sum(x, axis), ["n", ...], ["n", ...])(X)


def test_dimension_of_a_scalar():
    with pytest.raises(SpecError, match=r"(?s)dimension 0 of an array of shape .*needed: a name"):
        xmap(lambda x: named.max(x, 0), ["n"], ["n"])(X[0])


def test_dimension_as_an_integer_of_numpy():
    result = xmap(lambda x: named.sum(x, np.int64(-1)), ["n", ...], ["n"])(X)
    np.testing.assert_allclose(result, X.sum(1), rtol=1e-6)


def test_an_axis_without_positions():
    mesh = jax.make_mesh((4,), ("i",))

    def fun(x):
        return 2 * x, named.sum(x, "n"), named.any(x, "n"), named.all(x, (0, "n"))

    out_axes = (["n", ...], [...], [...], [...])
    for resources in {}, {"n": "i"}:
        f = xmap(fun, ["n", ...], out_axes, axis_resources=resources, mesh=mesh)
        doubled, total, one, every = f(jnp.ones((0, 3)))
        assert doubled.shape == (0, 3)
        np.testing.assert_array_equal(total, np.zeros(3))
        np.testing.assert_array_equal(one, np.zeros(3, bool))
        assert every


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


@pytest.mark.parametrize("placed", [False, True])
@pytest.mark.parametrize(
    ("factors", "dtype"),
    [
        ((np.full(3, 100, np.int8), np.full((8, 3), 100, np.int8)), jnp.int32),
        ((np.ones(3, bool), np.ones((8, 3), bool)), jnp.int32),
        ((np.ones(3, np.float16), np.full((8, 3), 30000, np.float16)), jnp.float32),
    ],
    ids=["int8", "bool", "float16"],
)
def test_a_product_is_summed_in_its_own_type(factors, dtype, placed):
    """Also if one factor does not vary along the axis."""
    mesh = jax.make_mesh((2, 4), ("a", "b"))

    def fun(x, y):
        numbers = (((0,), (0,)), ((), ()))
        return lax.psum(jax.lax.dot_general(x, y, numbers, preferred_element_type=dtype), "n")

    options = {"axis_resources": {"n": "b"}, "mesh": mesh} if placed else {}
    found = xmap(fun, ([...], ["n", ...]), [...], **options)(*factors)
    x, y = (np.asarray(each, np.float64) for each in factors)
    assert found.dtype == dtype
    np.testing.assert_array_equal(found, (x * y).sum())


@pytest.mark.parametrize("placed", [False, True])
def test_a_sum_of_products_whose_factors_have_no_finite_sum(placed):
    mesh = jax.make_mesh((2, 4), ("a", "b"))
    options = {"axis_resources": {"n": "a", "k": "b"}, "mesh": mesh} if placed else {}
    small = np.full((4, 2), 1e-4, np.float16)
    large = np.full((1024, 2), 100, np.float16)

    def fun(x, y):
        return lax.psum(x @ y, "k"), lax.psum(y @ x, "k")

    for found in xmap(fun, (["n", ...], ["k", ...]), (["n"], ["n"]), **options)(small, large):
        np.testing.assert_allclose(found, 20.48, rtol=1e-2)

    def outer(x, y):
        return lax.psum(lax.dot_general(x, y, (((), ()), ((), ()))), "k")

    x, y = jnp.array([0, 1e-10]), jnp.array([1e38, 3e38, 3e38, 1])
    np.testing.assert_allclose(xmap(outer, (["n"], ["k"]), ["n"], **options)(x, y), [0, 7e28])


def test_a_serial_loop_over_results_without_elements():
    mesh = jax.make_mesh((4,), ("i",))
    options = {"axis_resources": {"n": SerialLoop(4)}, "mesh": mesh}
    found = xmap(lambda x: 2 * x, ["n", ...], ["n", ...], **options)(jnp.zeros((8, 0)))
    assert found.shape == (8, 0)


@pytest.mark.parametrize(
    "x", [np.uint8([3, 60]), np.int8([-100, 100]), np.int32([-(2**31), 2**31 - 1])], ids=repr
)
@pytest.mark.parametrize("name", ["logsumexp", "softmax", "log_softmax"])
def test_normalizations_of_integers_do_not_wrap_around(x, name):
    fun = getattr(named, name)
    want = getattr(jax.nn, name)(x.astype(np.float32))
    by_name = xmap(lambda x: fun(x, "n"), ["n"], [] if name == "logsumexp" else ["n"])(x)
    for found in by_name, fun(x, 0):
        np.testing.assert_allclose(found, want, rtol=1e-6)
        assert found.dtype == want.dtype


@pytest.mark.parametrize("spec", ["i{n},i{n}->", "i{n}->i"])
def test_products_of_booleans_are_booleans(spec):
    x = jnp.array([[True, False], [True, False], [True, False]])

    def fun(x):
        return named.einsum(spec, *[x] * spec.count("{"))

    want = jnp.einsum(spec.replace("{n}", "n"), *[x.T] * spec.count("{"))
    found = xmap(fun, ["n", ...], [...])(x)
    np.testing.assert_array_equal(found, want)
    assert found.dtype == want.dtype
