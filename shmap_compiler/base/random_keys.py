"""Typed random keys, and the numbers that they are made of."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from shmap_compiler.base.untyped import AnyValue, Leaf


def is_key(leaf: Leaf) -> bool:
    """Whether a value, or a type, is that of random keys."""
    return hasattr(leaf, "dtype") and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def as_keys(data: AnyValue, type_: Leaf) -> AnyValue:
    """The keys of a type that numbers are the data of; the numbers, if the type is no keys'."""
    return jax.random.wrap_key_data(data, impl=_implementation(type_)) if is_key(type_) else data


def _implementation(leaf: Leaf) -> str:
    """The name of the generator of a type of random keys, such as `key<fry>`."""
    tag = str(leaf.dtype).removeprefix("key<").removesuffix(">")
    return {"fry": "threefry2x32", "rbg": "rbg", "urbg": "unsafe_rbg"}.get(tag, tag)
