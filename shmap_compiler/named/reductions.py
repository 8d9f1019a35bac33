"""Reductions over named axes and dimensions together."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import ArrayLike

from shmap_compiler.base.untyped import AnyValue, DType, Function
from shmap_compiler.collectives.nans import propagating
from shmap_compiler.named.axes import Axis, count, split_axis


def sum(x: ArrayLike, axis: Axis = None, *, keepdims: bool = False) -> jax.Array:
    """Sums over named axes and dimensions, as `jnp.sum` does over dimensions.

    Args:
      x: An array.
      axis: A name, a dimension, or a tuple of both; None for all dimensions.
      keepdims: Whether summed dimensions stay, with size one. Named axes go in any case.

    Examples:
      >>> f = xmap(lambda x: named.sum(x, (0, "rows")), in_axes=["rows", ...], out_axes=[...])
      >>> (f(x.reshape(8, 2)) == x.sum()).item()
      True
    """
    return _reduced(jnp.sum, lax.psum, x, axis, keepdims)


def max(x: ArrayLike, axis: Axis = None, *, keepdims: bool = False) -> jax.Array:
    """The largest element, as `jnp.max` (see `sum`)."""
    return _reduced(jnp.max, _of_numbers(partial(propagating, lax.pmax)), x, axis, keepdims)


def largest_number(x: ArrayLike, axis: Axis, *, keepdims: bool) -> jax.Array:
    """Like `max`, but a NaN of another device may be ignored, which saves a collective."""
    return _reduced(jnp.max, _of_numbers(lax.pmax), x, axis, keepdims)


def min(x: ArrayLike, axis: Axis = None, *, keepdims: bool = False) -> jax.Array:
    """The smallest element, as `jnp.min` (see `sum`)."""
    return _reduced(jnp.min, _of_numbers(partial(propagating, lax.pmin)), x, axis, keepdims)


def mean(x: ArrayLike, axis: Axis = None, *, keepdims: bool = False) -> jax.Array:
    """The arithmetic mean, as `jnp.mean` (see `sum`)."""
    total = sum(_computed_with(x), axis, keepdims=keepdims)
    return (total / count(x, axis)).astype(inexact_type(x))


def var(x: ArrayLike, axis: Axis = None, *, ddof: int = 0, keepdims: bool = False) -> jax.Array:
    """The variance, as `jnp.var` (see `sum`)."""
    dimensions, names = split_axis(x, axis)
    axes = (*dimensions, *names)
    values = _computed_with(x)
    centered = values - mean(values, axes, keepdims=True)
    squares = jnp.real(centered * jnp.conj(centered))
    result = sum(squares, axes, keepdims=keepdims) / (count(x, axis) - ddof)
    return result.astype(jnp.finfo(inexact_type(x)).dtype)


def std(x: ArrayLike, axis: Axis = None, *, ddof: int = 0, keepdims: bool = False) -> jax.Array:
    """The standard deviation, as `jnp.std` (see `sum`)."""
    return jnp.sqrt(var(x, axis, ddof=ddof, keepdims=keepdims))


def prod(x: ArrayLike, axis: Axis = None, *, keepdims: bool = False) -> jax.Array:
    """The product, as `jnp.prod` (see `sum`). Named axes are gathered: no collective multiplies."""

    def over_names(x, names):
        return jnp.prod(lax.all_gather(x, names), 0)

    return _reduced(jnp.prod, over_names, x, axis, keepdims)


def any(x: ArrayLike, axis: Axis = None, *, keepdims: bool = False) -> jax.Array:
    """Whether any element is true, as `jnp.any` (see `sum`)."""
    return _reduced(jnp.any, partial(_of_booleans, lax.pmax, False), x, axis, keepdims)


def all(x: ArrayLike, axis: Axis = None, *, keepdims: bool = False) -> jax.Array:
    """Whether all elements are true, as `jnp.all` (see `sum`)."""
    return _reduced(jnp.all, partial(_of_booleans, lax.pmin, True), x, axis, keepdims)


def _reduced(
    positional: Function,
    collective: Function,
    x: AnyValue,
    axis: Axis,
    keepdims: bool,
) -> AnyValue:
    """Dimensions first: what is left is what collectives send."""
    dimensions, names = split_axis(x, axis)
    x = positional(jnp.asarray(x), axis=dimensions, keepdims=keepdims)
    return collective(x, names) if names else x


def _of_numbers(collective: Function) -> Function:
    """A collective that takes booleans too."""

    def fun(x, names):
        if x.dtype != jnp.bool_:
            return collective(x, names)
        return collective(x.astype(jnp.int32), names).astype(jnp.bool_)

    return fun


def _of_booleans(
    extremum: Function, of_none: bool, x: AnyValue, names: tuple[str, ...]
) -> AnyValue:
    """An extremum of booleans, which along an axis without positions is `of_none`."""
    if lax.axis_size(names) == 0:
        return jnp.full(x.shape, of_none)
    return _of_numbers(extremum)(x, names)


def inexact_type(x: ArrayLike) -> DType:
    dtype = jnp.result_type(x)
    return dtype if jnp.issubdtype(dtype, jnp.inexact) else jnp.result_type(float)


def _computed_with(x: ArrayLike) -> jax.Array:
    """`x` as sums of it are computed: in 32 bits at least, as in `jnp.mean` and `jnp.var`."""
    dtype = inexact_type(x)
    return jnp.asarray(x, jnp.float32 if jnp.finfo(dtype).bits < 32 else dtype)
