"""Sets of mesh axes as bit masks: joining two is one `|`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping


class AxisSets:
    """Translates between sets of axis names and masks.

    R2: an axis of size one is in no set. Nothing can differ between one device.
    """

    def __init__(self, sizes: Mapping[str, int]):
        self.sizes = dict(sizes)
        self._bits = {
            name: (1 << k if size > 1 else 0) for k, (name, size) in enumerate(sizes.items())
        }

    def mask(self, names: Iterable[str]) -> int:
        """Names that are no mesh axes, those of an enclosing vmap, are left out."""
        mask = 0
        for name in names:
            mask |= self._bits.get(name, 0)
        return mask

    def names(self, mask: int) -> tuple[str, ...]:
        """In mesh order."""
        return tuple(name for name, bit in self._bits.items() if bit & mask)
