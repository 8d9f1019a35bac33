"""What the generator knows of a value."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from oracle import Blocks

from programs.body import Axes
from programs.exact import is_float


@dataclass(frozen=True)
class Value:
    """Its blocks, and the axes along which they may differ; no operation may read a `final` one."""

    blocks: Blocks
    varying: Axes
    final: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        return self.blocks[0].shape

    @property
    def dtype(self) -> np.dtype:
        return self.blocks[0].dtype

    @property
    def kind(self) -> str:
        """One of b, i, f."""
        return "f" if is_float(self.dtype) else self.dtype.kind

    def like(self, other: Value) -> bool:
        return (self.shape, self.dtype) == (other.shape, other.dtype)
