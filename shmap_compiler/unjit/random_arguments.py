"""Random arrays in place of types, placed as the compiled program takes them."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from shmap_compiler.base.untyped import AnyValue, Leaf, PyTree, Unchecked

_LARGEST_INTEGER = 4


def filled(args: Sequence[PyTree], shardings: Sequence[Unchecked]) -> tuple[AnyValue, ...]:
    """The arguments with random arrays in place of types, all of them on their devices.

    Args:
      shardings: of each argument, None for those that the program does not use.
    """
    rng = np.random.default_rng(0)
    leaves, tree = jax.tree.flatten(tuple(args))
    each = tree.flatten_up_to(tuple(shardings))
    placed = [_placed(leaf, s, rng) for leaf, s in zip(leaves, each, strict=True)]
    return jax.tree.unflatten(tree, placed)


def _placed(leaf: Leaf, sharding: Unchecked, rng: np.random.Generator) -> AnyValue:
    value = _random(leaf, rng) if isinstance(leaf, jax.ShapeDtypeStruct) else leaf
    return value if sharding is None else jax.device_put(value, sharding)


def _random(type_: jax.ShapeDtypeStruct, rng: np.random.Generator) -> AnyValue:
    dtype, shape = type_.dtype, type_.shape
    if jnp.issubdtype(dtype, jax.dtypes.prng_key):
        keys = jax.random.split(jax.random.key(0), int(np.prod(shape)) or 1)
        return keys.reshape(shape)
    if jnp.issubdtype(dtype, jnp.inexact):
        values = rng.standard_normal(shape)
        if jnp.issubdtype(dtype, jnp.complexfloating):
            values = values + 1j * rng.standard_normal(shape)
    elif jnp.issubdtype(dtype, jnp.integer):
        values = rng.integers(0, _LARGEST_INTEGER, shape)
    else:
        values = rng.random(shape) < 0.5
    return jnp.asarray(np.asarray(values).astype(dtype))
