"""softmax and its kin over named axes and dimensions."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax import lax

from shmap_compiler.named import reductions
from shmap_compiler.named.axes import Axis, split_axis


def softmax(x: Any, axis: Axis = -1) -> Any:
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
    exponentials = jnp.exp(x - _largest(x, axis))
    return exponentials / reductions.sum(exponentials, axis, keepdims=True)


def log_softmax(x: Any, axis: Axis = -1) -> Any:
    """The logarithm of `softmax`, as `jax.nn.log_softmax`."""
    shifted = x - _largest(x, axis)
    return shifted - jnp.log(reductions.sum(jnp.exp(shifted), axis, keepdims=True))


def logsumexp(x: Any, axis: Axis = None, *, keepdims: bool = False) -> Any:
    """The logarithm of the sum of exponentials, as `jax.nn.logsumexp`.

    Args:
      x: An array.
      axis: A name, a dimension, or a tuple of both; None for all dimensions.
      keepdims: Whether reduced dimensions stay, with size one.
    """
    largest = _largest(x, axis)
    total = jnp.log(reductions.sum(jnp.exp(x - largest), axis, keepdims=True)) + largest
    return total if keepdims else jnp.squeeze(total, split_axis(x, axis)[0])


def _largest(x: Any, axis: Axis) -> Any:
    """The largest element, or 0 where it is infinite; not differentiated: it cancels out."""
    largest = lax.stop_gradient(reductions.max(lax.stop_gradient(x), axis, keepdims=True))
    return jnp.where(jnp.isfinite(largest), largest, jnp.zeros_like(largest))
