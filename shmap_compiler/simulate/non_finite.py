"""Finds the operation that made the first NaN of numbers, or infinity of finite numbers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from shmap_compiler.base.untyped import Function
from shmap_compiler.simulate.device import Arrays
from shmap_compiler.simulate.report import NonFinite
from shmap_compiler.simulate.steps import Step


def has_non_finite(array: np.ndarray) -> bool:
    """Whether an array contains a NaN or an infinity."""
    return _has_nan(array) or _has_infinity(array)


class FirstNonFinite:
    """An observer of a program that is played op by op."""

    found: NonFinite | None = None

    def see(
        self,
        devices: Sequence[int],
        step: Step,
        operands: Sequence[Arrays],
        results: Sequence[Arrays],
    ) -> None:
        """Looks at one step."""
        # What a device receives may be what another one of the group sent.
        read = [array for own in operands for array in own]
        # Constants are what the user wrote, and buffers without contents are NaN here.
        if self.found is not None or not read:
            return
        # Infinities make NaNs, as in the softmax of a row that is masked completely.
        for kind, is_made, was_there in (
            ("NaN", _has_nan, _has_nan),
            ("infinity", _has_infinity, has_non_finite),
        ):
            makers = [d for d, own in zip(devices, results, strict=True) if any(map(is_made, own))]
            if makers and not any(map(was_there, read)):
                self.found = NonFinite(kind, step.place, makers[0])
                return


def _has_nan(array: np.ndarray) -> bool:
    return _has(array, np.isnan)


def _has_infinity(array: np.ndarray) -> bool:
    return _has(array, np.isinf)


def _has(array: np.ndarray, test: Function) -> bool:
    if array.dtype.kind in "biu" or not array.size:
        return False
    return bool(np.any(test(array)))
