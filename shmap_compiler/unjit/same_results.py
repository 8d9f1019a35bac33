"""Whether a call computes what a module does: both are run on random numbers.

All bits have to agree, so that the source rounds as the program does. Of products of several arrays
the order may differ, as `jnp.einsum` chooses it by their shapes.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import permutations
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from shmap_compiler.base.untyped import Function
from shmap_compiler.simulate.agreement import default_tolerance, has_same_bits
from shmap_compiler.unjit.embedded import call_stablehlo

_TRIES = 4
"""With so many other arguments the result may be the same before an argument counts as unused."""

Type = tuple[tuple[int, ...], str]
"""A shape, and the name of a dtype."""


class SameCall(NamedTuple):
    """A call that computes what a module does.

    Attributes:
      order: of the arguments.
      is_exact: whether both agree for poles, ends of domains and what is no number, too, which XLA
        does not keep in all programs.
    """

    order: tuple[int, ...]
    is_exact: bool


@cache
def same_call(
    text: str, module: str, types: tuple[Type, ...], result: Type, definition: str = ""
) -> SameCall | None:
    """The call if it computes what a module does, with the arguments in some order.

    Args:
      text: the call, with `{}` for each argument.
      module: the module.
      types: of its arguments.
      result: the type of its result.
      definition: of the function that is called, unless `jax`, `jnp` or `lax` has it.
    """
    expected: tuple[np.ndarray, ...] = ()
    is_same = agree if text.startswith("jnp.einsum(") else has_same_bits
    for order in permutations(range(len(types))):
        found = _called(text, definition, types, order, result)
        if found is None:
            continue
        if not expected:
            whole, draws = jax.jit(lambda *given: call_stablehlo(module, *given)), _arguments(types)
            expected = tuple(np.asarray(whole(*args)) for args in draws)
            if not _are_numbers(expected[:-1]):
                return None
            if not all(_matters(whole, k, draws, expected) for k in range(len(types))):
                return None  # whatever it is for: numbers like these do not show it
        if all(map(is_same, found[:-1], expected[:-1])):
            return SameCall(order, is_same(found[-1], expected[-1]))
    return None


@cache
def _arguments(types: tuple[Type, ...]) -> tuple[tuple[np.ndarray, ...], ...]:
    """Random arguments, those of each of `_DRAWS`."""
    rng = np.random.default_rng(0)
    numpy_types = [(shape, np.dtype(name)) for shape, name in types]
    return tuple(tuple(draw(*each, rng) for each in numpy_types) for draw in _DRAWS)


@cache
def _called(
    text: str, definition: str, types: tuple[Type, ...], order: tuple[int, ...], result: Type
) -> tuple[np.ndarray, ...] | None:
    """What a call returns for each of `_arguments`; None if it is not of the type `result`."""
    names = {"jax": jax, "jnp": jnp, "lax": lax}
    exec(definition, names)
    given = [f"a{k}" for k in order]
    parameters = ", ".join(f"a{k}" for k in range(len(types)))
    draws = _arguments(types)
    try:
        fun = jax.jit(eval(f"lambda {parameters}: {text.format(*given)}", names))
        made = jax.eval_shape(fun, *draws[0])
        if (tuple(made.shape), made.dtype.name) != result:
            return None
        return tuple(np.asarray(fun(*args)) for args in draws)
    except Exception:  # The user's call may need what is not here.
        return None


def _any(shape: tuple[int, ...], dtype: np.dtype, rng: np.random.Generator) -> np.ndarray:
    if dtype.kind == "b":
        return np.asarray(rng.random(shape) < 0.5)
    if _is_integer(dtype):
        return rng.integers(0, 4, shape).astype(dtype)
    return np.asarray(2 * rng.standard_normal(shape)).astype(dtype)


def _positive(shape: tuple[int, ...], dtype: np.dtype, rng: np.random.Generator) -> np.ndarray:
    """Numbers that have logarithms, and symmetric matrices that have factors."""
    if dtype.kind == "b" or _is_integer(dtype):
        return _any(shape, dtype, rng)
    values = rng.random(shape)
    if len(shape) > 1 and shape[-1] == shape[-2]:
        values = values + values.swapaxes(-1, -2) + shape[-1] * np.eye(shape[-1])
    return np.asarray(values).astype(dtype)


def _large(shape: tuple[int, ...], dtype: np.dtype, rng: np.random.Generator) -> np.ndarray:
    """Numbers that remainders, masks and bounds change."""
    if dtype.kind == "b":
        return _any(shape, dtype, rng)
    if _is_integer(dtype):
        limits = np.iinfo(np.int64)
        wide = rng.integers(limits.min, limits.max, shape, endpoint=True)
        return wide.astype(dtype)
    return np.asarray(200 * rng.standard_normal(shape)).astype(dtype)


def _zeros(shape: tuple[int, ...], dtype: np.dtype, rng: np.random.Generator) -> np.ndarray:
    """Where a small number that is added decides."""
    return np.zeros(shape, dtype)


def _special(shape: tuple[int, ...], dtype: np.dtype, rng: np.random.Generator) -> np.ndarray:
    """Numbers that functions treat apart."""
    if dtype.kind == "b" or _is_integer(dtype):
        return _any(shape, dtype, rng)
    return rng.choice(_SPECIAL, shape).astype(dtype)


_SPECIAL = (np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -1.0, 2.0, -2.0, -3.0, 0.5, -0.5)
_ORDINARY = (_any, _positive, _large, _zeros)
_DRAWS = (*_ORDINARY, _special)


def _is_integer(dtype: np.dtype) -> bool:
    return jnp.issubdtype(dtype, jnp.integer)


def _matters(
    fun: Function,
    k: int,
    draws: Sequence[Sequence[np.ndarray]],
    expected: Sequence[np.ndarray],
) -> bool:
    """Whether another argument in the place of the k-th changes what a function returns."""
    rng = np.random.default_rng(1)
    for draw, args, result in zip(_ORDINARY, draws, expected, strict=False):
        for _ in range(_TRIES):
            other = draw(args[k].shape, args[k].dtype, rng)
            found = np.asarray(fun(*args[:k], other, *args[k + 1 :]))
            if found.tobytes() != result.tobytes():
                return True
    return False


def _are_numbers(draws: Sequence[np.ndarray]) -> bool:
    """Whether each element is a number in one of the draws: NaN equals whatever else fails."""
    if not jnp.issubdtype(draws[0].dtype, jnp.inexact):
        return True
    return bool(np.all(np.any([each == each for each in draws], axis=0)))


def agree(found: np.ndarray, expected: np.ndarray) -> bool:
    """Whether arrays are equal, up to rounding, and are zero in the same places."""
    if not jnp.issubdtype(expected.dtype, jnp.inexact):
        return np.array_equal(found, expected)
    tolerance, eps = default_tolerance(expected.dtype), float(jnp.finfo(expected.dtype).eps)
    wide = np.complex128 if expected.dtype.kind == "c" else np.float64
    found, expected = found.astype(wide), expected.astype(wide)
    largest = np.max(np.abs(expected[np.isfinite(expected)]), initial=0.0)
    other = np.where(expected == 0, found, np.where(found == 0, expected, 0))
    return bool(
        np.allclose(found, expected, rtol=0, atol=tolerance * largest, equal_nan=True)
        and np.all(~(np.abs(other) > eps**2 * largest))
    )
