"""softmax and its kin over named axes and dimensions."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import ArrayLike

from shmap_compiler.base.untyped import AnyValue
from shmap_compiler.named import reductions
from shmap_compiler.named.axes import Axis, split_axis


def softmax(x: ArrayLike, axis: Axis = -1) -> jax.Array:
    """Exponentials that sum to one over `axis`, as `jax.nn.softmax`.

    Args:
      x: An array.
      axis: A name, a dimension, or a tuple of both; None for all dimensions.

    Examples:
      >>> f = xmap(lambda x: named.softmax(x, "rows"), in_axes=["rows", ...],
      ...          out_axes=["rows", ...])
      >>> jnp.allclose(f(x), jax.nn.softmax(x, 0)).item()
      True
    """
    x = _in_inexact_type(x)
    exponentials = jnp.exp(x - _largest(x, axis))
    return exponentials / reductions.sum(exponentials, axis, keepdims=True)


def log_softmax(x: AnyValue, axis: Axis = -1) -> AnyValue:
    """The logarithm of `softmax`, as `jax.nn.log_softmax`."""
    x = _in_inexact_type(x)
    shifted = x - _largest(x, axis)
    return shifted - jnp.log(reductions.sum(jnp.exp(shifted), axis, keepdims=True))


def logsumexp(x: ArrayLike, axis: Axis = None, *, keepdims: bool = False) -> jax.Array:
    """The logarithm of the sum of exponentials, as `jax.nn.logsumexp`.

    Args:
      x: An array.
      axis: A name, a dimension, or a tuple of both; None for all dimensions.
      keepdims: Whether reduced dimensions stay, with size one.
    """
    x = _in_inexact_type(x)
    largest = _largest(x, axis)
    total = jnp.log(reductions.sum(jnp.exp(x - largest), axis, keepdims=True)) + largest
    return total if keepdims else jnp.squeeze(total, split_axis(x, axis)[0])


def _in_inexact_type(x: ArrayLike) -> jax.Array:
    """`x` in a type in which differences do not wrap around, as those of narrow integers do."""
    return jnp.asarray(x, reductions.inexact_type(x))


def _largest(x: ArrayLike, axis: Axis) -> jax.Array:
    """The largest element, or 0 where it is infinite; not differentiated: it cancels out."""
    number = reductions.largest_number(lax.stop_gradient(x), axis, keepdims=True)
    largest = lax.stop_gradient(number)
    return jnp.where(jnp.isfinite(largest), largest, jnp.zeros_like(largest))
