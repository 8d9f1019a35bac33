"""How a full array is cut into blocks.

A window is the part of a full array that a device holds: (start, stop) of each dimension. Devices
with equal windows hold copies, or summands.
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
      summands: the number of the summand that each device holds; devices with equal windows and
        numbers hold copies. () if no device holds summands.
    """

    windows: tuple[Window, ...]
    groups: Groups
    summands: tuple[int, ...] = ()

    def part(self, device: int) -> tuple[Window, int]:
        """What a device holds; devices with equal parts hold copies."""
        return self.windows[device], self.summands[device] if self.summands else 0

    def block(self, full: np.ndarray, device: int) -> np.ndarray:
        """What a device holds."""
        block = full[self.index(device)]
        is_zero = self.summands and not self._is_of_first_summand(device)
        return np.zeros_like(block) if is_zero else block

    def index(self, device: int) -> tuple[slice, ...]:
        """The window of a device, to index an array."""
        return tuple(slice(start, stop) for start, stop in self.windows[device])

    def _is_of_first_summand(self, device: int) -> bool:
        group = next(group for group in self.groups if device in group)
        first = next(d for d in group if self.windows[d] == self.windows[device])
        return self.summands[device] == self.summands[first]
