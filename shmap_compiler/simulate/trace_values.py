"""Finds the first operation whose values differ between two modules of one program."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from shmap_compiler.simulate.agreement import distances, has_same_bits
from shmap_compiler.simulate.device import Arrays
from shmap_compiler.simulate.first_difference import FirstDifference
from shmap_compiler.simulate.places import SourcePlace
from shmap_compiler.simulate.steps import Step


class ValueTrace:
    """An observer of a program that is played op by op.

    A value is known by its device, the line, name and type of its operation, and its number among
    those. Passes move operations and remove some, but keep their lines.
    """

    def __init__(self) -> None:
        self._counts: Counter[Any] = Counter()
        self.values: dict[Any, Any] = {}
        self.places: dict[Any, SourcePlace] = {}

    def see(
        self,
        devices: Sequence[int],
        step: Step,
        operands: Sequence[Arrays],
        results: Sequence[Arrays],
    ) -> None:
        """Notes the results of one step."""
        if not step.place.line:
            return
        for device, own in zip(devices, results, strict=True):
            for result in own:
                kind = (device, step.place.line, step.place.op, result.shape, result.dtype.name)
                key = (*kind, self._counts[kind])
                self._counts[kind] += 1
                self.values[key] = result
                self.places[key] = step.place


def first_difference(
    before: ValueTrace, after: ValueTrace, tolerance: float | None
) -> FirstDifference:
    """The first value of `after` that `before` has with other contents.

    Args:
      tolerance: how far values may be apart, in units of the largest magnitude; None for bitwise.
    """
    for key, value in after.values.items():
        if key in before.values and not agrees(value, before.values[key], tolerance):
            return FirstDifference(after.places[key], key[0])
    return FirstDifference(None, None)


def agrees(found: np.ndarray, expected: np.ndarray, tolerance: float | None) -> bool:
    """Whether two arrays are within a tolerance; with None, whether their bits are the same."""
    if tolerance is None:
        return has_same_bits(found, expected)
    return distance(found, expected) <= tolerance


def distance(found: np.ndarray, expected: np.ndarray) -> float:
    """How far two arrays are apart, in units of the largest magnitude; NaN equals NaN."""
    if found is expected or found.tobytes() == expected.tobytes():
        return 0.0
    return distances(found, expected)[1]
