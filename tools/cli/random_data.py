"""Random arrays in place of types, the same for the same seed."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import keystr, tree_leaves_with_path

from shmap_compiler.base.untyped import AnyValue, PyTree

from ..usage import Mistake, UsageError

_LARGEST_INTEGER = 8


def fill(args: PyTree, seed: int) -> PyTree:
    """The pytree `args` with an array of random data in place of each `jax.ShapeDtypeStruct`.

    Floats are standard normal, integers at most 8 in size, booleans fair coins.

    Raises:
      UsageError: a shape has a dimension that is not a number.
    """
    require_numbers(args)
    rng = np.random.default_rng(seed)
    return jax.tree.map(
        lambda leaf: _placed(leaf, rng) if isinstance(leaf, jax.ShapeDtypeStruct) else leaf, args
    )


def require_numbers(args: PyTree) -> None:
    """Raises UsageError if the shape of a `jax.ShapeDtypeStruct` is symbolic."""
    for path, leaf in tree_leaves_with_path(args):
        if isinstance(leaf, jax.ShapeDtypeStruct) and not all(
            isinstance(n, int) for n in leaf.shape
        ):
            raise UsageError(
                Mistake(
                    f"args{keystr(path)}",
                    f"{leaf.dtype.name}[{', '.join(map(str, leaf.shape))}], a symbolic shape",
                    "a shape of numbers, for which the program is compiled and run",
                    "write a number for each dimension",
                )
            )


def _placed(type_: jax.ShapeDtypeStruct, rng: np.random.Generator) -> AnyValue:
    values = _array(type_, rng)
    return values if type_.sharding is None else jax.device_put(values, type_.sharding)


def _array(type_: jax.ShapeDtypeStruct, rng: np.random.Generator) -> np.ndarray:
    dtype = type_.dtype
    if jnp.issubdtype(dtype, jnp.complexfloating):
        values = rng.standard_normal(type_.shape) + 1j * rng.standard_normal(type_.shape)
    elif jnp.issubdtype(dtype, jnp.floating):
        values = rng.standard_normal(type_.shape)
    elif jnp.issubdtype(dtype, jnp.integer):
        limits = jnp.iinfo(dtype)
        low = max(-_LARGEST_INTEGER, int(limits.min))
        high = min(_LARGEST_INTEGER, int(limits.max))
        values = rng.integers(low, high, type_.shape, endpoint=True)
    else:
        values = rng.random(type_.shape) < 0.5
    return np.asarray(values).astype(dtype)
