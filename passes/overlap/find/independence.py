"""Which products of a block can run while a collective of it sends: they do not need each other.

independence = Independence(flow)
independence.beside(3)            the numbers of the products beside the fourth operation
independence.apart(3)             those that it does not need and that do not need it, as bits
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ...ir.collective_ops import COLLECTIVES
from ...ir.dataflow import Dataflow
from .products import DOT


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

        Those that wait for a later collective come too late.
        """
        needed = self.flow.needed
        late = self._sent >> collective << collective
        apart = numbers(self.apart(collective))
        return [product for product in apart if not needed[product] & late]

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
