"""Derivatives through `linear_call`, whose transpose is the user's.

The transpose takes whole cotangents along axes along which results do not vary, as in JAX with
check_vma, or shares if it sums them itself. The oracle is JAX's own derivative of the function.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.custom_derivatives import linear_call
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

from shmap_compiler import shard_map

MESH = jax.make_mesh((4, 2), ("i", "j"), axis_types=(AxisType.Auto,) * 2)
X = np.linspace(0.5, 2, 32, dtype=np.float32)
W = np.array([2, 3, 5, 7], np.float32)
WEIGHTS = np.array([1, -2, 3, 4], np.float32)


def weighted_sum(x):
    return lax.psum(WEIGHTS * x, "i")


SUM_TRANSPOSES = {
    "whole": lambda r, ct: r * ct,
    "cast": lambda r, ct: lax.pcast(r * ct, "i", to="varying"),
    "shares": lambda r, ct: lax.psum(r * ct, "i"),
}


def called_sum(transpose):
    def fun(x):
        call = lambda r, v: lax.psum(r * v, "i")  # noqa: E731
        return linear_call(call, SUM_TRANSPOSES[transpose], jnp.asarray(WEIGHTS), x)

    return fun


BODIES = {
    "alone": (lambda total, x, w: total(x), P("j")),
    "each device's": (lambda total, x, w: total(x) * x, P(("i", "j"))),
    "nonlinear": (lambda total, x, w: jnp.sin(total(jnp.cos(x * w))) * w, P("j")),
    "loop": (lambda total, x, w: lax.fori_loop(0, 2, lambda _, c: c * total(x), w), P("j")),
    "checkpoint": (lambda total, x, w: jax.checkpoint(lambda x: total(x * x))(x), P("j")),
    "branch": (
        lambda total, x, w: lax.cond(w[0] > 0, lambda: jnp.sin(total(x)), lambda: w),
        P("j"),
    ),
}


def derivatives(body, spec, total):
    """The gradients of a weighted sum of results, and those of these gradients."""
    f = shard_map(
        lambda x, w: body(total, x, w), mesh=MESH, in_specs=(P(("i", "j")), P()), out_specs=spec
    )

    def loss(x, w):
        y = f(x, w)
        return (y * jnp.cos(jnp.arange(y.size))).sum()

    def norm(x, w):
        return sum(jnp.sin(g).sum() for g in jax.grad(loss, (0, 1))(x, w))

    return jax.jit(lambda: (jax.grad(loss, (0, 1))(X, W), jax.grad(norm, (0, 1))(X, W)))()


@functools.cache
def derivatives_by_jax(body):
    return derivatives(*BODIES[body], weighted_sum)


@pytest.mark.parametrize("transpose", SUM_TRANSPOSES)
@pytest.mark.parametrize("body", BODIES)
def test_derivatives_of_a_sum(body, transpose):
    wanted = derivatives_by_jax(body)
    found = derivatives(*BODIES[body], called_sum(transpose))
    jax.tree.map(lambda f, w: np.testing.assert_allclose(f, w, rtol=1e-3, atol=1e-4), found, wanted)


@pytest.mark.parametrize(
    "transpose",
    [lambda r, ct: r * ct, lambda r, ct: lax.psum(r * ct, ("i", "j"))],
    ids=["shares", "sums"],
)
def test_operand_that_is_equal_on_all_devices(transpose):
    def place():
        return 1.0 + lax.axis_index("i") + lax.axis_index("j")

    def called(w):
        return linear_call(lambda r, v: r * v, transpose, place() * WEIGHTS, w)

    def gradient(product):
        f = shard_map(product, mesh=MESH, in_specs=P(), out_specs=P(("i", "j")))
        return jax.grad(lambda w: jnp.sin(f(w)).sum())(W)

    np.testing.assert_allclose(
        gradient(called), gradient(lambda w: place() * WEIGHTS * w), rtol=1e-4
    )


@pytest.mark.parametrize("check_vma", [True, False])
def test_without_types_transposes_take_shares(check_vma):
    """As in JAX: each device's copy of a result has a cotangent of its own."""
    options = {"mesh": MESH, "in_specs": P("i"), "out_specs": P(), "check_vma": check_vma}
    f = shard_map(called_sum("whole"), **options)
    found = jax.grad(lambda x: f(x).sum())(X[:16])
    shares = 1 if check_vma else 8 // 2
    np.testing.assert_allclose(found, np.tile(WEIGHTS, 4) / shares, rtol=1e-5)
