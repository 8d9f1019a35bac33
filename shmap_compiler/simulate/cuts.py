"""How a full array is cut into blocks.

A window is the part of a full array that a device holds: (start, stop) of each dimension. Devices
with equal windows hold copies.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

Window = tuple[tuple[int, int], ...]
Groups = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Cut:
    """How one full array is cut.

    Attributes:
      windows: one for each device.
      groups: the devices whose blocks together are the full array.
      summed: whether devices with equal windows hold summands rather than copies.
    """

    windows: tuple[Window, ...]
    groups: Groups
    summed: bool = False

    def block(self, full: np.ndarray, device: int) -> np.ndarray:
        """What a device holds."""
        block = full[self.index(device)]
        return np.zeros_like(block) if self.summed and not self._is_first(device) else block

    def index(self, device: int) -> tuple[slice, ...]:
        """The window of a device, to index an array."""
        return tuple(slice(start, stop) for start, stop in self.windows[device])

    def _is_first(self, device: int) -> bool:
        group = next(group for group in self.groups if device in group)
        return device == next(d for d in group if self.windows[d] == self.windows[device])
