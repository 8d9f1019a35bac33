"""How much rounding changes what a program computes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from shmap_compiler.base.untyped import AnyValue, PyTree
from shmap_compiler.simulate import agreement
from shmap_compiler.simulate.agreement import Agreement


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
    rng = np.random.default_rng(0)
    again = run(*jax.tree.map(lambda x: _rounded(x, rng), tuple(args)))
    changes = agreement.compare(list(again), list(expected))
    return [
        each.allowing(min(roundings * change.relative, _half_of_the_digits(result)))
        for each, change, result in zip(found, changes, expected, strict=True)
    ]


def _rounded(x: AnyValue, rng: np.random.Generator) -> AnyValue:
    """An array whose numbers differ by one unit in the last place, up or down."""
    if not hasattr(x, "dtype") or not jnp.issubdtype(x.dtype, jnp.inexact):
        return x
    signs = np.where(rng.random(x.shape) < 0.5, 1, -1)
    changed = np.asarray(x) * (1 + signs * float(jnp.finfo(x.dtype).eps))
    return jax.device_put(changed.astype(x.dtype), getattr(x, "sharding", None))


def _half_of_the_digits(result: np.ndarray) -> float:
    """The square root of the precision of a type; nothing for whole numbers."""
    is_inexact = jnp.issubdtype(result.dtype, jnp.inexact)
    return float(jnp.finfo(result.dtype).eps) ** 0.5 if is_inexact else 0.0
