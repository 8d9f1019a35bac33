"""Whether rounding alone explains how a simulation differs from a program."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import jax.numpy as jnp
import numpy as np

from shmap_compiler.base.untyped import PyTree
from shmap_compiler.simulate import agreement
from shmap_compiler.simulate.agreement import Agreement
from shmap_compiler.simulate.rounding import rounded

_FEW = 4
"""How many times as far as its arguments the roundings inside of a program may move its results."""

_NARROW = {"bf16": jnp.bfloat16, "xf16": jnp.float16}
"""By how the types of their arrays end."""


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
