"""xmaps inside of an xmap, on mesh axes that both use: values that lack the outer axis are cut."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType, Mesh
from named_programs import DEVICES, LINE

from shmap_compiler import SpecError, SpecTypeError, xmap

X = np.random.default_rng(8).uniform(0.5, 1, size=(4, 8, 3)).astype(np.float32)
W = np.array([1, 2, 3], np.float32)
CUBE = Mesh(DEVICES.reshape(2, 2, 2), ("x", "y", "z"), axis_types=(AxisType.Auto,) * 3)
NOWHERE = (), ()


def nested(of_inner, of_outer):
    """An xmap of a value that another one summed along its axis."""

    def inner(x, w):
        shifted = lax.ppermute(x, "i", [(k, (k + 1) % 8) for k in range(8)])
        return jnp.sin(x * w) + lax.axis_index("i"), lax.psum(x * w, "i"), shifted

    mapped = xmap(
        inner,
        in_axes=(["i", ...], [...]),
        out_axes=({1: "i"}, [...], ["i", ...]),
        axis_resources={"i": of_inner} if of_inner else {},
        mesh=CUBE,
    )
    return xmap(
        lambda x, w: mapped(lax.psum(jnp.sin(x) * w, "j"), w[:1]),
        in_axes=(["j", ...], [...]),
        out_axes=[...],
        axis_resources={"j": of_outer} if of_outer else {},
        mesh=CUBE,
    )


@functools.cache
def results_of_nested(of_inner, of_outer):
    """Values, gradients, tangents of these and values of two at once."""
    f = nested(of_inner, of_outer)

    def loss(x, w):
        return sum(jnp.sum(jnp.cos(r + k)) for k, r in enumerate(f(x, w)))

    @jax.jit
    def everything():
        gradient = jax.grad(loss, (0, 1))
        stacked = jax.vmap(f, (0, None))(jnp.stack([X, X + 1]), W)
        return f(X, W), gradient(X, W), jax.jvp(gradient, (X, W), (X, W))[1], stacked

    return everything()


@pytest.mark.parametrize(
    ("of_inner", "of_outer"),
    [
        ("x", "x"),
        (("x", "y"), "x"),
        (("y", "x"), "x"),
        (("y", "x", "z"), "x"),
        (("y", "x"), ("x", "y")),
        (("x", "y", "z"), ("z", "x")),
    ],
)
def test_values_without_the_outer_axis_are_split_over_its_resource(of_inner, of_outer):
    found, wanted = results_of_nested(of_inner, of_outer), results_of_nested(*NOWHERE)
    jax.tree.map(lambda f, w: np.testing.assert_allclose(f, w, rtol=2e-4, atol=2e-4), found, wanted)


def test_values_that_never_meet():
    double = xmap(lambda y: y * 2, ["i"], ["i"], axis_resources={"i": "x"}, mesh=LINE)
    both = xmap(
        lambda x, y: (x, double(y)),
        in_axes=(["j"], [...]),
        out_axes=(["j"], [...]),
        axis_resources={"j": "x"},
        mesh=LINE,
    )
    x = jnp.arange(8.0)
    found = both(x, x)
    np.testing.assert_array_equal(found[0], x)
    np.testing.assert_array_equal(found[1], x * 2)


def test_the_inner_mesh_has_the_same_devices():
    turned = Mesh(DEVICES[::-1], ("x",), axis_types=(AxisType.Auto,))
    double = xmap(lambda y: y * 2, ["i"], ["i"], axis_resources={"i": "x"}, mesh=turned)
    outer = xmap(double, ["j", ...], ["j", ...], axis_resources={"j": "x"}, mesh=LINE)
    with pytest.raises(SpecError, match="a mesh of other devices, or in another order"):
        outer(jnp.ones((8, 8)))


@pytest.mark.parametrize(
    ("fun", "in_axes", "out_axes", "what"),
    [
        (lambda x: x, ["i"], ["i"], "an argument"),
        (lambda x: lax.psum(x, "i"), ["i"], [], "an argument"),
        (lambda x: x, [], ["i"], "a result"),
        (lambda x: x * 0 + lax.axis_index("i"), [], ["i"], "a value|a result"),
    ],
)
def test_a_value_with_both_axes_is_refused(fun, in_axes, out_axes, what):
    sizes = {"i": 8}
    inner = xmap(fun, in_axes, out_axes, axis_sizes=sizes, axis_resources={"i": "x"}, mesh=LINE)
    outer = xmap(inner, ["j", ...], ["j", ...], axis_resources={"j": "x"}, mesh=LINE)
    message = f"({what}) whose named shape has the axes .*, both mapped to the resource 'x'"
    with pytest.raises(SpecTypeError, match=message):
        outer(jnp.ones((8, 8) if in_axes else 8))
