"""Programs of xmap and pmap."""

from functools import partial

import jax
import jax.numpy as jnp
from jax import lax

from shmap_compiler import pmap, xmap


@partial(xmap, in_axes=["rows", ...], out_axes=["rows", ...], axis_resources={"rows": "i"},
         mesh=jax.make_mesh((8,), ("i",), axis_types=(jax.sharding.AxisType.Auto,)))  # fmt: skip
def softmax(x):
    return jnp.exp(x) / lax.psum(jnp.exp(x), "rows")


softmax_args = (jnp.linspace(0, 1, 64).reshape(16, 4),)


def softmax_reference(x):
    return jax.nn.softmax(x, 0)


@partial(pmap, axis_name="i")
def normalized(row):
    return row / lax.psum(row, "i")


normalized_args = (jnp.linspace(0, 1, 16).reshape(8, 2) + 1,)


def normalized_reference(x):
    return x / x.sum(0)


@partial(pmap, axis_name="i", out_axes=(-1, None))
def columns(row):
    return 2 * row, lax.psum(row, "i")


columns_args = normalized_args


def columns_reference(x):
    return (2 * x).T, x.sum(0)


@partial(pmap, axis_name="i", static_broadcasted_argnums=(-3, 2))
def scaled(factor, row, power):
    return factor * lax.psum(row, "i") ** power


scaled_args = (3, *normalized_args, 2)


def scaled_reference(factor, x, power):
    return factor * x.sum(0, keepdims=True).repeat(8, 0) ** power
