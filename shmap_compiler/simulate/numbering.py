"""The numbers by which steps know the values of a module."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from jaxlib.mlir import ir
from shmap_passes.ir.types import Value


class Numbering:
    """Numbers values when they are first asked for."""

    def __init__(self) -> None:
        self._next = itertools.count()
        self._numbers: dict[Any, int] = {}

    def fresh(self) -> int:
        """The number of a value that no operation of the module makes."""
        return next(self._next)

    def of(self, values: Sequence[Value]) -> tuple[int, ...]:
        """The numbers of values."""
        for value in values:
            if value not in self._numbers:
                self._numbers[value] = self.fresh()
        return tuple(self._numbers[value] for value in values)

    def around(self, op: ir.Operation) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The numbers of the operands of an op, and of its results."""
        return self.of(list(op.operands)), self.of(list(op.results))
