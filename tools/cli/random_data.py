"""Random arrays in place of types, the same for the same seed."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import keystr, tree_leaves_with_path

from shmap_compiler.base.random_keys import as_data, as_keys, is_key
from shmap_compiler.base.untyped import AnyValue, PyTree

from ..usage import Mistake, UsageError

_LARGEST_INTEGER = 8


def fill(args: PyTree, seed: int) -> PyTree:
    """The pytree `args` with an array of random data in place of each `jax.ShapeDtypeStruct`.

    Floats are standard normal, integers at most 8 in size, booleans fair coins.

    Raises:
      UsageError: a shape has a dimension that is not a number, an array does not fit into memory,
        or cannot have the sharding of its type.
    """
    require_numbers(args)
    rng = np.random.default_rng(seed)

    def filled(path: str, leaf: AnyValue) -> AnyValue:
        if not isinstance(leaf, jax.ShapeDtypeStruct):
            return leaf
        try:
            values = _array(leaf, rng)
        except (MemoryError, ValueError) as error:
            raise UsageError(_too_large(path, leaf, error)) from error
        if leaf.sharding is None:
            return values
        try:
            return jax.device_put(values, leaf.sharding)
        except ValueError as error:
            raise UsageError(_unplaceable(path, leaf, error)) from error

    found = [filled(f"args{keystr(path)}", leaf) for path, leaf in tree_leaves_with_path(args)]
    return jax.tree.unflatten(jax.tree.structure(args), found)


def require_numbers(args: PyTree) -> None:
    """Raises UsageError if the shape of a `jax.ShapeDtypeStruct` is symbolic."""
    for path, leaf in tree_leaves_with_path(args):
        if isinstance(leaf, jax.ShapeDtypeStruct) and not all(
            isinstance(n, int) for n in leaf.shape
        ):
            raise UsageError(
                Mistake(
                    f"args{keystr(path)}",
                    f"{_shown(leaf)}, a symbolic shape",
                    "a shape of numbers, for which the program is compiled and run",
                    "write a number for each dimension",
                )
            )


def _array(type_: jax.ShapeDtypeStruct, rng: np.random.Generator) -> AnyValue:
    dtype = type_.dtype
    if is_key(type_):
        return _keys(type_, rng)
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


def _keys(type_: jax.ShapeDtypeStruct, rng: np.random.Generator) -> jax.Array:
    """Random keys of the generator that the type names."""
    words = jax.eval_shape(as_data, jax.ShapeDtypeStruct(type_.shape, type_.dtype))
    return as_keys(rng.integers(0, 2**32, words.shape, np.uint32), type_)


def _shown(type_: jax.ShapeDtypeStruct) -> str:
    return f"{type_.dtype.name}[{', '.join(map(str, type_.shape))}]"


def _too_large(where: str, type_: jax.ShapeDtypeStruct, error: Exception) -> Mistake:
    return Mistake(
        where,
        f"{_shown(type_)}, which cannot be made: {error}",
        "a type whose random data fits into memory",
        "write smaller sizes",
    )


def _unplaceable(where: str, type_: jax.ShapeDtypeStruct, error: Exception) -> Mistake:
    return Mistake(
        where,
        f"{_shown(type_)}, which cannot be placed: {error}",
        "a sharding that divides the array, on devices that are here",
        "write a shape that can be split so, or another sharding",
    )
