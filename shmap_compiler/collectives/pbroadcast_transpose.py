"""The transpose of JAX's own pbroadcast, for derivatives that a body takes itself.

JAX's rule fills an array with the sum of the cotangents, which JAX refuses unless that is a scalar.
Inside a body this one takes its place; everywhere else JAX's stays.
"""

from __future__ import annotations

from collections.abc import Callable

import jax.numpy as jnp
from jax import lax
from jax.extend.core import Primitive
from jax.interpreters import ad


def register_transpose(primitive: Primitive, in_body: Callable[[], bool]) -> None:
    """
    Args:
      primitive: JAX's, with the source as a parameter or as a second operand.
      in_body: whether the body of a shard_mapped function is being traced.
    """
    ordinary = ad.primitive_transposes[primitive]

    def transpose(cotangent, x, *operand, axis_name, **params):
        if type(cotangent) is ad.Zero or not in_body():
            return ordinary(cotangent, x, *operand, axis_name=axis_name, **params)
        source = operand[0] if operand else params["source"]
        total = lax.psum(cotangent, axis_name)
        mine = lax.axis_index(axis_name) == source
        return [jnp.where(mine, total, jnp.zeros_like(total)), *[None for _ in operand]]

    ad.primitive_transposes[primitive] = transpose
