"""Typed random keys, and the numbers that they are made of."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from shmap_compiler.base.untyped import AnyValue, Leaf


def is_key(leaf: Leaf) -> bool:
    """Whether a value, or a type, is that of random keys."""
    return hasattr(leaf, "dtype") and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def as_data(value: AnyValue) -> AnyValue:
    """The numbers that random keys are made of; any other value as it is."""
    return jax.random.key_data(value) if is_key(value) else value


def as_keys(data: AnyValue, type_: Leaf) -> AnyValue:
    """The random keys that are made of numbers; the numbers, if the type is not that of keys."""
    return jax.random.wrap_key_data(data, impl=implementation(type_)) if is_key(type_) else data


def implementation(leaf: Leaf) -> str:
    """The name of the generator of a type of random keys, such as `key<fry>`."""
    tag = str(leaf.dtype).removeprefix("key<").removesuffix(">")
    return {"fry": "threefry2x32", "rbg": "rbg", "urbg": "unsafe_rbg"}.get(tag, tag)
