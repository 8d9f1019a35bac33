"""Whether a call computes what a module does: both are run on random numbers."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import permutations

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from shmap_compiler.base.untyped import AnyValue, Function
from shmap_compiler.simulate.agreement import default_tolerance
from shmap_compiler.unjit.embedded import call_stablehlo

_TRIES = 4
"""With so many other arguments the result may be the same before an argument counts as unused."""

Type = tuple[tuple[int, ...], str]
"""A shape, and the name of a dtype."""


@cache
def order_of_arguments(
    text: str, module: str, types: tuple[Type, ...], result: Type, definition: str = ""
) -> tuple[int, ...] | None:
    """The order of arguments in which a call computes what a module does; None if in none.

    Args:
      text: the call, with `{}` for each argument.
      module: the module.
      types: of its arguments.
      result: the type of its result.
      definition: of the function that is called, unless `jax`, `jnp` or `lax` has it.
    """
    names = {"jax": jax, "jnp": jnp, "lax": lax}
    exec(definition, names)
    rng = np.random.default_rng(0)
    draws = [[draw(shape, np.dtype(name), rng) for shape, name in types] for draw in _DRAWS]
    expected: list[np.ndarray] = []
    for order in permutations(range(len(types))):
        given = [f"a{k}" for k in order]
        parameters = ", ".join(f"a{k}" for k in range(len(types)))
        code = f"lambda {parameters}: {text.format(*given)}"
        try:
            fun = jax.jit(eval(code, names))
            made = jax.eval_shape(fun, *draws[0])
            if (tuple(made.shape), made.dtype.name) != result:
                continue
            found = [np.asarray(fun(*args)) for args in draws]
        except Exception:  # The user's call may need what is not here.
            continue
        if not expected:
            whole = jax.jit(lambda *given: call_stablehlo(module, *given))
            expected = [np.asarray(whole(*args)) for args in draws]
            if not _are_numbers(expected):
                return None
            if not all(_matters(whole, k, draws, expected, rng) for k in range(len(types))):
                return None  # whatever it is for: numbers like these do not show it
        if all(map(agree, found, expected)):
            return order
    return None


def _any(shape: tuple[int, ...], dtype: np.dtype, rng: np.random.Generator) -> AnyValue:
    if dtype.kind == "b":
        return jnp.asarray(rng.random(shape) < 0.5)
    if dtype.kind in "iu":
        return jnp.asarray(rng.integers(0, 4, shape).astype(dtype))
    return jnp.asarray(2 * rng.standard_normal(shape)).astype(dtype)


def _positive(shape: tuple[int, ...], dtype: np.dtype, rng: np.random.Generator) -> AnyValue:
    """Numbers that have logarithms, and symmetric matrices that have factors."""
    if dtype.kind in "biu":
        return _any(shape, dtype, rng)
    values = rng.random(shape)
    if len(shape) > 1 and shape[-1] == shape[-2]:
        values = values + values.swapaxes(-1, -2) + shape[-1] * np.eye(shape[-1])
    return jnp.asarray(values).astype(dtype)


_DRAWS = (_any, _positive)


def _matters(
    fun: Function,
    k: int,
    draws: Sequence[Sequence[AnyValue]],
    expected: Sequence[np.ndarray],
    rng: np.random.Generator,
) -> bool:
    """Whether another argument in the place of the k-th changes what a function returns."""
    for draw, args, result in zip(_DRAWS, draws, expected, strict=True):
        for _ in range(_TRIES):
            other = draw(args[k].shape, args[k].dtype, rng)
            found = np.asarray(fun(*args[:k], other, *args[k + 1 :]))
            if found.tobytes() != result.tobytes():
                return True
    return False


def _are_numbers(draws: Sequence[np.ndarray]) -> bool:
    """Whether each element is a number in one of the draws: NaN equals whatever else fails."""
    if draws[0].dtype.kind in "biu":
        return True
    return bool(np.all(np.any([each == each for each in draws], axis=0)))


def agree(found: np.ndarray, expected: np.ndarray) -> bool:
    """Whether arrays are equal, up to rounding."""
    if expected.dtype.kind in "biu":
        return np.array_equal(found, expected)
    tolerance = default_tolerance(expected.dtype)
    wide = np.complex128 if expected.dtype.kind == "c" else np.float64
    found, expected = found.astype(wide), expected.astype(wide)
    largest = np.max(np.abs(expected[np.isfinite(expected)]), initial=1.0)
    return bool(np.allclose(found, expected, rtol=0, atol=tolerance * largest, equal_nan=True))
