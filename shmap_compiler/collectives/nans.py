"""Extrema across devices that propagate NaN, as those on one device do.

An all-reduce may drop a NaN: XLA does not specify whether it does, and on CPU it does.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax import lax

from shmap_compiler.base.untyped import AxisName, Function, Parameter


def propagating(
    extremum: Function, x: jax.Array, names: Sequence[AxisName], **params: Parameter
) -> jax.Array:
    """The extremum of `x` over `names`, or NaN where one of the values is NaN.

    Args:
      extremum: `lax.pmax` or `lax.pmin`, which takes `params`.
    """
    result = extremum(x, names, **params)
    if not jnp.issubdtype(x.dtype, jnp.inexact):
        return result
    # In the same type and by the same extremum, so that XLA can combine the two.
    sign = 1 if extremum is lax.pmax else -1
    found = extremum(sign * jnp.isnan(x).astype(x.dtype), names, **params)
    # A product, for derivatives are NaN there, too.
    return result * jnp.where(found != 0, jnp.nan, 1).astype(result.dtype)
