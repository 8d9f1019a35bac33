"""Positions along named axes."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import ArrayLike

from shmap_compiler.base.errors import Problem, SpecError
from shmap_compiler.base.untyped import DType, Function
from shmap_compiler.named.axes import Axis, split_axis


def axis_size(axis: str | tuple[str, ...]) -> int:
    """The size of a named axis, or the product of several.

    Examples:
      >>> xmap(lambda x: x * named.axis_size("rows"), ["rows", ...], ["rows", ...])(x)[1].item()
      16.0
    """
    return lax.axis_size(axis)


def one_hot(
    labels: ArrayLike, num_classes: int, *, dtype: DType = None, axis: str | int = -1
) -> jax.Array:
    """One where a label is the position along `axis`, and zero elsewhere, as `jax.nn.one_hot`.

    Args:
      labels: Integers.
      num_classes: The size of the new axis. That of a named axis is given.
      dtype: Of the result; by default, that of a Python float.
      axis: The name of the new axis, or its dimension in the result.

    Raises:
      SpecError: `num_classes` is not the size of the named axis.
    """
    dtype = jnp.result_type(float) if dtype is None else dtype
    if not isinstance(axis, str):
        return jax.nn.one_hot(labels, num_classes, dtype=dtype, axis=axis)
    size = lax.axis_size(axis)
    if size != num_classes:
        raise SpecError(f"one_hot of `{axis}`", [_not_the_size(axis, size, num_classes)])
    return (jnp.asarray(labels) == lax.axis_index(axis)).astype(dtype)


def pgather(source: ArrayLike, indices: ArrayLike, axes: Axis) -> jax.Array:
    """Elements of `source` at `indices` along axes, as if these were one leading dimension.

    Args:
      source: An array.
      indices: Integers: positions along `axes`, row-major if there are several. Negative ones count
        from the end.
      axes: A name, a dimension, or a tuple of both, which the result does not have.

    Returns:
      An array of the shape of `indices`, then of the dimensions of `source` that are left.

    Examples:
      >>> def f(x, k):
      ...     return named.pgather(x, k, "rows")
      >>> picked = xmap(f, in_axes=(["rows", ...], [...]), out_axes=[...])(x, jnp.array([3, 0]))
      >>> jnp.allclose(picked, x[jnp.array([3, 0])]).item()
      True
    """
    given = axes if isinstance(axes, (tuple, list)) else (axes,)
    dimensions, names = split_axis(source, axes)
    gathered = jnp.moveaxis(jnp.asarray(source), dimensions, tuple(range(len(dimensions))))
    for name in reversed(names):
        gathered = lax.all_gather(gathered, name)
    # Now names come first, then dimensions: `given` says in which order their positions count.
    leading = iter(range(len(names))), iter(range(len(names), len(given)))
    order = [next(leading[not isinstance(a, str)]) for a in given]
    order += range(len(given), gathered.ndim)
    gathered = gathered.transpose(order)
    positions, rest = gathered.shape[: len(given)], gathered.shape[len(given) :]
    return gathered.reshape(math.prod(positions), *rest)[indices]


def argmax(x: ArrayLike, axis: str | int) -> jax.Array:
    """The position of the largest element along one axis, as `jnp.argmax`.

    It is the first of equal ones, and of NaNs if there are any.
    """
    return _position(x, axis, jnp.argmax, lax.pmax)


def argmin(x: ArrayLike, axis: str | int) -> jax.Array:
    """The position of the smallest element along one axis, as `jnp.argmin` (see `argmax`)."""
    return _position(x, axis, jnp.argmin, lax.pmin)


def _position(x: ArrayLike, axis: str | int, positional: Function, extremum: Function) -> jax.Array:
    if not isinstance(axis, str):
        return positional(x, axis)
    x = lax.stop_gradient(x)
    index, size = lax.axis_index(axis), lax.axis_size(axis)
    candidate = jnp.where(x == extremum(x, axis), index, size)
    # A NaN comes before all numbers, whether or not the extremum propagates it.
    first = lax.pmin(jnp.where(jnp.isnan(x), index - size, candidate), axis)
    return jnp.where(first < 0, first + size, first)


def _not_the_size(axis: str, size: int, found: int) -> Problem:
    return Problem(
        "num_classes",
        f"{found}",
        f"{size}, the size of axis {axis!r}",
        f"write named.axis_size({axis!r})",
    )
