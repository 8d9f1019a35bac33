"""The bits of arrays."""

from __future__ import annotations

import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax import lax

from shmap_compiler.base.jax_compat import bits_of
from shmap_compiler.base.untyped import DType


def as_unsigned(x: jax.Array) -> jax.Array:
    """The bits of real numbers or booleans, as unsigned integers of the same width."""
    if x.dtype == jnp.bool_:
        return x.astype(jnp.uint8)
    return lax.bitcast_convert_type(x, f"uint{bits_of(x.dtype)}")


def bytes_of(shape: Sequence[int], dtype: DType) -> int:
    """The bytes of an array in memory, where XLA packs elements of less than eight bits."""
    is_number = jnp.issubdtype(dtype, jnp.number)
    bits = bits_of(dtype) if is_number else 8 * dtype.itemsize
    if jnp.issubdtype(dtype, jnp.complexfloating):
        bits *= 2  # of which there are two
    return math.ceil(math.prod(shape) * bits / 8)
