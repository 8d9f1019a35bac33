"""Compares the results of a program with those of its reference."""

from __future__ import annotations

from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np

from shmap_compiler.base.random_keys import as_data
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
    absolute, relative = distances(ours, theirs)
    return Agreement(path, "", absolute, relative, tolerance)


def distances(ours: np.ndarray, theirs: np.ndarray) -> tuple[float, float]:
    """The largest difference of two arrays, and the same in units of the largest of `theirs`.

    Whole numbers are compared exactly. NaN equals NaN.
    """
    is_whole = not any(jnp.issubdtype(x.dtype, jnp.inexact) for x in (ours, theirs))
    is_complex = any(jnp.issubdtype(x.dtype, jnp.complexfloating) for x in (ours, theirs))
    wide = np.complex128 if is_complex else np.float64
    found, expected = ours.astype(wide), theirs.astype(wide)
    apart = differences(found, expected)
    if is_whole:  # more than 53 bits may differ by less than floats do
        apart = np.where(ours == theirs, 0.0, np.maximum(apart, 1.0))
    absolute, largest = float(apart.max(initial=0.0)), largest_number(expected)
    return absolute, absolute / largest if largest else (np.inf if absolute else 0.0)


def differences(found: np.ndarray, expected: np.ndarray) -> np.ndarray:
    """How far apart the elements are; infinitely if only one is NaN, or is that infinity."""
    same = (found == expected) | (np.isnan(found) & np.isnan(expected))
    with np.errstate(invalid="ignore", over="ignore"):
        apart = np.where(same, 0.0, np.abs(found - expected))
    return np.nan_to_num(apart, nan=np.inf, posinf=np.inf)


def largest_number(array: np.ndarray) -> float:
    """The largest magnitude of the elements that are finite; 0 if none is."""
    magnitudes = np.abs(array)
    return float(magnitudes.max(initial=0.0, where=np.isfinite(magnitudes)))


def has_same_bits(ours: np.ndarray, theirs: np.ndarray) -> bool:
    """Whether two arrays of one type have the same bits; any NaN equals any other."""
    if ours.tobytes() == theirs.tobytes():
        return True
    if ours.dtype != theirs.dtype or ours.shape != theirs.shape:
        return False
    if not jnp.issubdtype(ours.dtype, jnp.inexact):
        return bool(np.all(ours == theirs))
    found, expected = _parts(ours), _parts(theirs)
    bits = f"u{found.dtype.itemsize}"
    same = found.view(bits) == expected.view(bits)
    return bool(np.all(same | (np.isnan(found) & np.isnan(expected))))


def _parts(array: np.ndarray) -> np.ndarray:
    """The numbers of an array in a row; of complex ones both parts."""
    flat = np.ravel(array)
    is_complex = jnp.issubdtype(array.dtype, jnp.complexfloating)
    return flat.view(f"f{array.dtype.itemsize // 2}") if is_complex else flat


def _values(array: AnyValue) -> np.ndarray:
    array = array if hasattr(array, "dtype") else np.asarray(array)
    return np.asarray(as_data(array))
