"""Compares the results of a program with those of its reference."""

from __future__ import annotations

from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np

from shmap_compiler.base.untyped import AnyValue, DType, PyTree


@dataclass(frozen=True)
class Agreement:
    """How far one result is from its reference.

    Attributes:
      path: the result, e.g. "result['w']".
      problem: why the two cannot be compared, or "".
      absolute: the largest difference.
      relative: the largest difference, in units of the reference's largest magnitude.
      tolerance: how large `relative` may be.
    """

    path: str
    problem: str
    absolute: float
    relative: float
    tolerance: float

    @property
    def holds(self) -> bool:
        return not self.problem and self.relative <= self.tolerance

    def allowing(self, relative: float) -> Agreement:
        """The same with at least this tolerance."""
        return replace(self, tolerance=max(self.tolerance, relative))


def compare(results: PyTree, references: PyTree, tolerance: float | None = None) -> list[Agreement]:
    """One Agreement per array of the result.

    Args:
      tolerance: of all results; by default that of `default_tolerance`.
    """
    found, expected = jax.tree.structure(results), jax.tree.structure(references)
    if found != expected:
        problem = f"structure {found}, in the reference {expected}"
        return [Agreement("result", problem, np.inf, np.inf, 0.0)]
    pairs = zip(
        jax.tree_util.tree_leaves_with_path(results), jax.tree.leaves(references), strict=True
    )
    return [
        _compare(f"result{jax.tree_util.keystr(path)}", result, reference, tolerance)
        for (path, result), reference in pairs
    ]


def as_data(array: AnyValue) -> AnyValue:
    """The data of an array of random keys; any other array as it is."""
    is_key = hasattr(array, "dtype") and jnp.issubdtype(array.dtype, jax.dtypes.prng_key)
    return jax.random.key_data(array) if is_key else array


def default_tolerance(dtype: DType) -> float:
    """The error to allow in a result of this type, in units of its largest magnitude.

    A sharded sum adds in another order than the reference: 64 units in the last place (eps) leave
    room for sums of thousands of terms. In types narrower than 32 bits it also rounds each partial
    sum and each addition, by eps / 2 each: 2 eps leave room for four roundings.
    """
    if not jnp.issubdtype(dtype, jnp.inexact):
        return 0.0
    info = jnp.finfo(dtype)
    return float(info.eps) * (64 if info.bits >= 32 else 2)


def _compare(
    path: str, result: AnyValue, reference: AnyValue, tolerance: float | None
) -> Agreement:
    tolerance = default_tolerance(result.dtype) if tolerance is None else tolerance
    ours, theirs = _values(result), _values(reference)
    if ours.shape != theirs.shape:
        problem = f"shape {ours.shape}, in the reference {theirs.shape}"
        return Agreement(path, problem, np.inf, np.inf, tolerance)
    same = (ours == theirs) | (np.isnan(ours) & np.isnan(theirs))
    with np.errstate(invalid="ignore"):
        difference = np.where(same, 0.0, np.abs(ours - theirs))
    # Where only one of the two is NaN or infinite.
    difference = np.nan_to_num(difference, nan=np.inf)
    absolute = float(difference.max(initial=0.0))
    magnitudes = np.abs(theirs)
    largest = float(magnitudes.max(initial=0.0, where=np.isfinite(magnitudes)))
    relative = absolute / largest if largest else (np.inf if absolute else 0.0)
    return Agreement(path, "", absolute, relative, tolerance)


def _values(array: AnyValue) -> np.ndarray:
    """The numbers of an array, exact up to 53 bits."""
    array = array if hasattr(array, "dtype") else np.asarray(array)
    if jnp.issubdtype(array.dtype, jax.dtypes.prng_key):
        array = jax.random.key_data(array)
    wide = np.complex128 if jnp.issubdtype(array.dtype, jnp.complexfloating) else np.float64
    return np.asarray(array).astype(wide)
