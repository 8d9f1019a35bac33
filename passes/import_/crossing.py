"""Where arrays enter and leave the manual regions of a module that is imported."""

from __future__ import annotations

from dataclasses import dataclass

from jaxlib.mlir import ir

from ..ir.types import Value
from .placement import Placement


@dataclass
class Crossing:
    """An op that turns a full array into blocks, or blocks into a full array.

    Attributes:
      op: it has one operand and one result.
      placement: how the full array is split; None for a token.
      enters: whether blocks are its result.
    """

    op: ir.Operation
    placement: Placement | None
    enters: bool

    @property
    def full(self) -> Value:
        return self.op.operands[0] if self.enters else self.op.results[0]

    @property
    def block(self) -> Value:
        return self.op.results[0] if self.enters else self.op.operands[0]
