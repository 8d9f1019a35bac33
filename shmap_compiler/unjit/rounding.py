"""How much rounding changes what a program computes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from shmap_compiler.base.untyped import AnyValue, PyTree
from shmap_compiler.simulate import agreement
from shmap_compiler.simulate.agreement import Agreement

_FEW = 4
"""How many times as far as its arguments the roundings inside of a program may move its results."""

_NARROW = {"bf16": jnp.bfloat16, "xf16": jnp.float16}
"""By how the types of their arrays end."""


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


def is_explained(
    found: Sequence[Agreement],
    run: Callable[..., Sequence[np.ndarray]],
    run_source: Callable[..., Sequence[np.ndarray]],
    args: Sequence[PyTree],
    expected: Sequence[np.ndarray],
    body: str,
) -> bool:
    """Whether a simulation differs from a program only as rounding changes the program itself.

    Products of narrow numbers have few digits, also in a wide result, and a step of Adam's along a
    gradient that is 0 but for rounding may go either way: no share of the digits tells that from a
    mistake. So the source has to compute bitwise the same as the program, for the arguments and for
    these rounded at random, as equal numbers hide sums over other devices. And the simulation may
    differ by a few times as much as the results for rounded arguments.

    Args:
      found: how the results of the simulation compare with those that are expected.
      run: the program, as a function of `args` that returns the results.
      run_source: the same of the source.
      expected: what the program returns for `args`.
      body: the module; the arguments are rounded to the precision of its types.
    """
    if any(each.problem for each in found):
        return False
    moved = rounded(args, coarsest(body))
    changed = run(*moved)
    if not all(
        _has_same_bits(run_source(*arguments), results)
        for arguments, results in ((args, expected), (moved, changed))
    ):
        return False
    changes = agreement.compare(list(changed), list(expected))
    return all(
        each.holds or each.relative <= _FEW * change.relative < np.inf
        for each, change in zip(found, changes, strict=True)
    )


def _has_same_bits(ours: Sequence[np.ndarray], theirs: Sequence[np.ndarray]) -> bool:
    return len(ours) == len(theirs) and all(map(agreement.has_same_bits, ours, theirs))


def coarsest(body: str) -> float:
    """The precision of the narrowest type of a module, of those that programs compute in."""
    return max(
        (float(jnp.finfo(type_).eps) for name, type_ in _NARROW.items() if f"{name}>" in body),
        default=0.0,
    )


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
