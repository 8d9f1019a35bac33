"""How much rounding changes what a program computes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from shmap_compiler.base.untyped import AnyValue, PyTree
from shmap_compiler.simulate import agreement
from shmap_compiler.simulate.agreement import Agreement
from shmap_compiler.simulate.narrow_types import is_narrow, narrow_types

_ROUNDINGS = 64
"""So many roundings of its arguments a program may be off; `_half_of_the_digits` is the limit."""


def allowing_rounding(
    found: Sequence[Agreement],
    module: str,
    run: Callable[..., Sequence[np.ndarray]],
    args: Sequence[PyTree],
    expected: Sequence[np.ndarray],
) -> list[Agreement]:
    """Comparisons that allow for narrow types inside of a program, and for enlarged rounding.

    If all hold as they are, the program is neither read nor run.

    Args:
      found: how the results of `module` compare with those that are expected.
      module: the program whose results they are, as text.
      run, args, expected: as for `with_rounding`.
    """
    if all(each.holds for each in found) or any(each.problem for each in found):
        return list(found)
    types = narrow_types(module)
    if len(types) != len(found):  # some are no arrays, as the tokens of effects
        types = [frozenset().union(*types)] * len(found)
    digits = [
        each.allowing(max(map(agreement.default_tolerance, narrow), default=0.0))
        if jnp.issubdtype(result.dtype, jnp.inexact)
        else each
        for each, narrow, result in zip(found, types, expected, strict=True)
    ]
    if all(each.holds for each in digits):
        return digits
    enlarged = with_rounding(digits, run, args, expected, _ROUNDINGS)
    # Half of the few digits of a narrow result would hide mistakes.
    return [
        each if is_narrow(result.dtype) else more
        for each, more, result in zip(digits, enlarged, expected, strict=True)
    ]


def with_rounding(
    found: Sequence[Agreement],
    run: Callable[..., Sequence[np.ndarray]],
    args: Sequence[PyTree],
    expected: Sequence[np.ndarray],
    roundings: int,
) -> list[Agreement]:
    """Comparisons of results that allow more where a program enlarges small differences.

    The solution of a system of equations, for one, has as many digits less as the system is badly
    conditioned. How many tells another run, on arguments that differ in their last place. Half of
    the digits must agree in any case.

    Args:
      found: how results compare with those that are expected.
      run: the program, as a function of `args` that returns the results.
      expected: what it returns for `args`.
      roundings: so many times as much may change as when each argument is rounded once.
    """
    again = run(*rounded(args))
    changes = agreement.compare(list(again), list(expected))
    return [
        each.allowing(min(roundings * change.relative, _half_of_the_digits(result)))
        for each, change, result in zip(found, changes, expected, strict=True)
    ]


def rounded(args: Sequence[PyTree], precision: float = 0.0) -> tuple[PyTree, ...]:
    """The arguments, each number changed by one unit in the last place or by the precision."""
    rng = np.random.default_rng(0)
    return jax.tree.map(lambda x: _moved(x, rng, precision), tuple(args))


def _moved(x: AnyValue, rng: np.random.Generator, precision: float) -> AnyValue:
    """An array with its numbers changed up or down at random."""
    if not hasattr(x, "dtype") or not jnp.issubdtype(x.dtype, jnp.inexact):
        return x
    signs = np.where(rng.random(x.shape) < 0.5, 1, -1)
    changed = np.asarray(x) * (1 + signs * max(float(jnp.finfo(x.dtype).eps), precision))
    return placed_as(x, changed.astype(x.dtype))


def placed_as(x: AnyValue, values: np.ndarray) -> jax.Array:
    """Values on the devices of an array, if that is bound to them."""
    return jax.device_put(values, x.sharding if getattr(x, "committed", False) else None)


def _half_of_the_digits(result: np.ndarray) -> float:
    """The square root of the precision of a type; nothing for whole numbers."""
    is_inexact = jnp.issubdtype(result.dtype, jnp.inexact)
    return float(jnp.finfo(result.dtype).eps) ** 0.5 if is_inexact else 0.0
