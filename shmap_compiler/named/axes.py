"""Arguments that are names, dimensions, or both."""

from __future__ import annotations

import math

import jax.numpy as jnp
from jax import lax
from jax.typing import ArrayLike

Axis = str | int | tuple[str | int, ...] | None
"""Named axes and dimensions; None for all dimensions, but no named axis."""


def split_axis(x: ArrayLike, axis: Axis) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """(dimensions of `x`, names)."""
    if axis is None:
        return tuple(range(jnp.ndim(x))), ()
    axes = axis if isinstance(axis, (tuple, list)) else (axis,)
    dimensions = tuple(a % jnp.ndim(x) for a in axes if isinstance(a, int))
    return dimensions, tuple(a for a in axes if not isinstance(a, int))


def count(x: ArrayLike, axis: Axis) -> int:
    """How many elements a reduction of `x` over these axes takes."""
    dimensions, names = split_axis(x, axis)
    named = math.prod(lax.axis_size(name) for name in names)
    return math.prod(jnp.shape(x)[d] for d in dimensions) * named
