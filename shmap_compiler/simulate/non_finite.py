"""Finds the operation that made the first NaN or infinity of finite numbers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from shmap_compiler.base.untyped import AnyValue, Function
from shmap_compiler.simulate.report import NonFinite
from shmap_compiler.simulate.steps import Step


def has_non_finite(array: object) -> bool:
    """Whether an array contains a NaN or an infinity."""
    return _has(array, np.isnan) or _has(array, np.isinf)


class FirstNonFinite:
    """An observer of a program that is played op by op."""

    found: NonFinite | None = None

    def see(
        self, device: int, step: Step, operands: Sequence[AnyValue], results: Sequence[AnyValue]
    ) -> None:
        """Looks at one step of one device."""
        # Constants are what the user wrote, and buffers without contents are NaN here.
        if self.found is not None or not operands:
            return
        for kind, test in (("NaN", np.isnan), ("infinity", np.isinf)):
            if any(_has(x, test) for x in results) and not any(map(has_non_finite, operands)):
                self.found = NonFinite(kind, step.place, device)
                return


def _has(array: AnyValue, test: Function) -> bool:
    if array.dtype.kind in "biu" or not array.size:
        return False
    return bool(np.any(test(array)))
