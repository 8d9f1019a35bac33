"""Which products of a block can run while a collective of it sends: they do not need each other.

independence = Independence(flow)
independence.beside(3)            the numbers of the products beside the fourth operation
independence.needed[3]            what it needs, directly or not, as bits by number
independence.needing[3]           what needs it
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from ..ir.collective_ops import COLLECTIVES
from ..ir.dataflow import Dataflow
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

        Those that wait for another collective, which it does not wait for, come too late.
        """
        needed = self.needed
        late = self._sent & ~needed[collective]  # itself, too
        return [
            product
            for product in self.products
            if not needed[product] & late and not needed[collective] >> product & 1
        ]

    @cached_property
    def needed(self) -> list[int]:
        """What each operation of the block needs, as bits by number."""
        needed: list[int] = []
        for node in self.flow.nodes:
            values = (*node.operands, *node.inner)
            sources = [each for value in values if (each := self.flow.source(value)) is not None]
            found = bits(each.number for each in sources)
            for each in sources:
                found |= needed[each.number]
            needed.append(found)
        return needed

    @cached_property
    def needing(self) -> list[int]:
        """What needs each operation of the block, as bits by number."""
        needing = [0] * len(self.flow.nodes)
        for node in reversed(self.flow.nodes):
            for user in (user for value in node.results for user in self.flow.users(value)):
                needing[node.number] |= needing[user.number] | 1 << user.number
        return needing

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
    return [number for number, bit in enumerate(reversed(f"{found:b}")) if bit == "1"]
