"""Questions about arbitrary values that a user passes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import NamedSharding

from shmap_compiler.base.jax_compat import is_high_type
from shmap_compiler.base.untyped import AnyValue, Aval, Leaf


def type_of(leaf: Leaf) -> Aval:
    """Type of an argument or result, or None if it is no array."""
    if isinstance(leaf, jax.ShapeDtypeStruct):
        return leaf
    try:
        type_ = jax.typeof(leaf)
    except (TypeError, OverflowError):  # the latter for an integer that no type holds
        return None
    return None if is_high_type(type_) else type_


def input_type(leaf: Leaf, sharding: NamedSharding | None = None) -> jax.ShapeDtypeStruct:
    """The type of an array, of its type or of a number, as an argument of `jax.jit`.

    Results depend on whether it is weak: of bfloat16 arrays and a strong f32 scalar they are f32.
    """
    type_ = leaf if hasattr(leaf, "dtype") else jax.typeof(leaf)
    dtype = jax.dtypes.canonicalize_dtype(type_.dtype, allow_extended_dtype=True)
    weak = bool(getattr(type_, "weak_type", False))
    return jax.ShapeDtypeStruct(np.shape(leaf), dtype, sharding=sharding, weak_type=weak)


def copied(leaf: Leaf) -> Leaf:
    """A copy of an array, for a program that donates it; anything else as it is."""
    return jnp.copy(leaf) if isinstance(leaf, jax.Array) else leaf


def has_tangent(type_: Aval) -> bool:
    """Whether values of a type have tangents of the same type: not if they are integers."""
    return jnp.issubdtype(type_.dtype, jnp.inexact)


def as_weak(x: AnyValue, weak: bool) -> AnyValue:
    """An array of the same element type, weakly typed or not."""
    if jax.typeof(x).weak_type == weak:
        return x
    return lax.convert_element_type_p.bind(x, new_dtype=x.dtype, weak_type=weak, sharding=None)


def are_wide(types: Iterable[Aval]) -> bool:
    """Whether there are 64-bit numbers among the types, and JAX has them switched off here."""
    return any(
        jax.dtypes.canonicalize_dtype(dtype, allow_extended_dtype=True) != dtype
        for dtype in {type_.dtype for type_ in types}
    )


def having(types: Iterable[Aval]) -> contextlib.AbstractContextManager[None]:
    """A context in which JAX makes arrays of these types, also where it has some switched off."""
    return jax.enable_x64(True) if are_wide(types) else contextlib.nullcontext()


def is_hashable(value: object) -> bool:
    try:
        hash(value)
    except Exception:  # whatever the user's __hash__ raises
        return False
    return True


def is_compared_by_identity(value: object) -> bool:
    """Whether `is_same_value` holds for one object only, as for arrays and most functions."""
    return not is_hashable(value) or type(value).__eq__ is object.__eq__


def is_same_value(found: object, expected: object) -> bool:
    """Whether a program that was made for one static value is valid for another."""
    if found is expected:
        return True
    if type(found) is not type(expected) or not is_hashable(expected):
        return False
    if not isinstance(expected, float | complex | np.generic):
        return found == expected
    # By equality, a NaN differs from itself, and 0.0 does not differ from -0.0.
    is_nan = expected != expected
    return (is_nan or found == expected) and repr(found) == repr(expected)
