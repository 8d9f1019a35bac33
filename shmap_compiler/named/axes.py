"""Arguments that are names, dimensions, or both."""

from __future__ import annotations

import math
import operator

import jax.numpy as jnp
from jax import lax
from jax.typing import ArrayLike

from shmap_compiler.base.errors import Problem, SpecError

Axis = str | int | tuple[str | int, ...] | None
"""Named axes and dimensions; None for all dimensions, but no named axis."""


def split_axis(x: ArrayLike, axis: Axis) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """(dimensions of `x`, names).

    Raises:
      SpecError: `x` does not have one of the dimensions.
    """
    if axis is None:
        return tuple(range(jnp.ndim(x))), ()
    axes = axis if isinstance(axis, (tuple, list)) else (axis,)
    given = [operator.index(a) for a in axes if not isinstance(a, str)]
    rank = jnp.ndim(x)
    wrong = [a for a in given if not -rank <= a < rank]
    if wrong:
        raise SpecError(f"the axes `{axis}`", [_not_a_dimension(a, jnp.shape(x)) for a in wrong])
    return tuple(a % rank for a in given), tuple(a for a in axes if isinstance(a, str))


def count(x: ArrayLike, axis: Axis) -> int:
    """How many elements a reduction of `x` over these axes takes."""
    dimensions, names = split_axis(x, axis)
    named = math.prod(lax.axis_size(name) for name in names)
    return math.prod(jnp.shape(x)[d] for d in dimensions) * named


def _not_a_dimension(axis: int, shape: tuple[int, ...]) -> Problem:
    rank = len(shape)
    return Problem(
        "axis",
        f"dimension {axis} of an array of shape {shape}",
        f"a name, or a dimension from {-rank} to {rank - 1}" if rank else "a name",
        "choose a dimension that the array has; named axes are not among its dimensions",
    )
