"""The bits of arrays."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

from shmap_compiler.base.jax_compat import bits_of


def as_unsigned(x: jax.Array) -> jax.Array:
    """The bits of real numbers or booleans, as unsigned integers of the same width."""
    if x.dtype == jnp.bool_:
        return x.astype(jnp.uint8)
    return lax.bitcast_convert_type(x, f"uint{bits_of(x.dtype)}")
