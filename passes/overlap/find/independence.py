"""Which products of a block can run while a collective of it sends: they do not need each other.

independence = Independence(flow)
independence.beside(3)            the numbers of the products beside the fourth operation
independence.apart(3)             those that it does not need and that do not need it, as bits
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ...ir.collective_ops import COLLECTIVES
from ...ir.dataflow import Dataflow
from .products import DOT

_NEAR = 8
"""So many products before a collective, and after it, may run beside it though they wait for one
before it."""


@dataclass(frozen=True)
class Independence:
    """What the operations of a block need of each other, by their numbers in it."""

    flow: Dataflow

    @cached_property
    def products(self) -> list[int]:
        """In program order."""
        return [node.number for node in self.flow.nodes if node.name == DOT]

    def beside(self, collective: int) -> list[int]:
        """The products that do not need a collective, and that it does not need.

        Those that wait for a later collective, which it does not wait for, come too late. Of those
        that wait for an earlier one, the nearest count.
        """
        needed = self.flow.needed
        others = self._sent & ~needed[collective]
        later = others >> collective << collective
        place = bisect.bisect(self.products, collective)
        near = self.products[max(0, place - _NEAR) : place + _NEAR]
        apart = numbers(self.apart(collective))
        return [each for each in apart if not needed[each] & (later if each in near else others)]

    def apart(self, collective: int) -> int:
        """The products that do not need a collective, and that it does not need, as bits."""
        return self._products & ~self.flow.needed[collective] & ~self.flow.needing[collective]

    @cached_property
    def _products(self) -> int:
        return bits(self.products)

    @cached_property
    def _sent(self) -> int:
        """The collectives of the block, as bits by number."""
        return bits(node.number for node in self.flow.nodes if node.name in COLLECTIVES)


def bits(numbers: Iterable[int]) -> int:
    """An integer with these bits."""
    found = 0
    for number in numbers:
        found |= 1 << number
    return found


def numbers(found: int) -> list[int]:
    """The numbers of the bits of an integer that are set."""
    if not found:
        return []
    array = np.frombuffer(found.to_bytes(found.bit_length() // 8 + 1, "little"), np.uint8)
    return np.flatnonzero(np.unpackbits(array, bitorder="little")).tolist()
