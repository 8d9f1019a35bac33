"""Array types as text: `f32[8,16]`.

    TYPE    = ELEMENT | ELEMENT "[" "]" | ELEMENT "[" SIZE { "," SIZE } "]"
    ELEMENT = a short name (f32, bf16, i8, u64, c64, pred, f8e4m3fn) or a NumPy name (float32)

An element type alone is that of a scalar.
"""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp

from ..usage import Mistake, UsageError, shortened

_ELEMENTS = (
    *("float64", "float32", "float16", "bfloat16"),
    *("float8_e3m4", "float8_e4m3", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e4m3b11fnuz"),
    *("float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu", "float4_e2m1fn"),
    *("int64", "int32", "int16", "int8", "int4", "int2"),
    *("uint64", "uint32", "uint16", "uint8", "uint4", "uint2"),
    *("complex64", "complex128", "bool"),
)
_SHORTENINGS = (("bfloat", "bf"), ("float", "f"), ("uint", "u"), ("int", "i"), ("complex", "c"))
_NEEDED = "ELEMENT[SIZE,...], as in f32[8,16], bf16[4], i32[] or pred (a scalar)"


def parse(text: str) -> jax.ShapeDtypeStruct:
    """The type that `text` names. Raises UsageError."""
    match = re.fullmatch(r"\s*(\w+)\s*(?:\[([\d\s,]*)\])?\s*", text)
    if match is None:
        raise _mistake(text, repr(shortened(text)), "write the type in quotes: --arg 'f32[8,16]'")
    element, sizes = match.groups()
    if element not in _BY_NAME:
        raise _mistake(
            text,
            f"element type {shortened(element)!r}",
            f"use one of {', '.join(_short(name) for name in _ELEMENTS)}, or a NumPy name",
        )
    dims = [size.strip() for size in sizes.split(",")] if sizes and sizes.strip() else []
    if not all(re.fullmatch(r"\d{1,19}", size) for size in dims):
        fix = "write whole numbers of at most 19 digits between single commas"
        raise _mistake(text, f"sizes [{shortened(sizes or '')}]", fix)
    return jax.ShapeDtypeStruct(tuple(map(int, dims)), jnp.dtype(_BY_NAME[element]))


def require_enabled(text: str, type_: jax.ShapeDtypeStruct) -> None:
    """Raises UsageError for a 64-bit type where JAX is not in its 64-bit mode."""
    if jax.dtypes.canonicalize_dtype(type_.dtype) != type_.dtype:
        raise UsageError(
            Mistake(
                f"--arg {text!r}",
                f"{type_.dtype}, a 64-bit element type",
                "JAX in its 64-bit mode",
                "set JAX_ENABLE_X64=1 in the environment",
            )
        )


def _mistake(text: str, found: str, fix: str) -> UsageError:
    return UsageError(Mistake(f"--arg {shortened(text)!r}", found, _NEEDED, fix))


def _short(name: str) -> str:
    for long, short in _SHORTENINGS:
        if name.startswith(long):
            return name.replace(long, short, 1).replace("_", "")
    return name


_BY_NAME = {
    **{name: name for name in _ELEMENTS},
    **{_short(name): name for name in _ELEMENTS},
    # XLA's own names.
    "pred": "bool",
    **{f"s{bits}": f"int{bits}" for bits in (2, 4, 8, 16, 32, 64)},
}
