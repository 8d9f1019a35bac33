"""Whether what products read has a place in memory while a collective beside them sends.

Meanwhile(block, flow, lives).fits(site, [12, 15])      the numbers of the products
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from jaxlib.mlir import ir

from ...ir.collective_ops import ALL_GATHER
from ...ir.dataflow import Dataflow
from ...ir.types import Value
from .lives import Life, Lives
from .site import Site


@dataclass(frozen=True)
class Meanwhile:
    """The arrays of a block, some of which are read later than in the plain program."""

    block: ir.Block
    flow: Dataflow
    lives: Lives

    def fits(self, site: Site, beside: Iterable[int]) -> bool:
        """Whether what products read that run beside a collective has a place meanwhile.

        In the plain program they may come before what is sent is computed.

        Args:
          beside: the products, by number.
        """
        sent = self.flow.node(site.op)
        before = sent.number
        if sent.name != ALL_GATHER:
            before = min(each.number for each in map(self.flow.node, site.products))
        late = {*beside}
        earlier, later = dict[Value, int](), dict[Value, int]()
        for life in {life for number in late for life in self._read_by.get(number, ())}:
            if life.first < sent.number:
                others = [number for number in self._readers[life] if number not in late]
                least = max([before, life.first, *others])
                earlier[life.value] = min(life.last, least)
                later[life.value] = max(life.last, sent.number)
        timeline = self.lives.timeline(self.block)
        most = timeline.peak(lasts=earlier)
        return timeline.peak(lasts=later) - most <= self.lives.allowed(self.block, most)

    @cached_property
    def _readers(self) -> dict[Life, list[int]]:
        """The operations that read each array, by number."""
        return {
            life: [user.number for user in self.flow.users(life.value)]
            for life in self.lives.of(self.block)
        }

    @cached_property
    def _read_by(self) -> dict[int, list[Life]]:
        """The arrays that each operation reads."""
        found: dict[int, list[Life]] = {}
        for life, readers in self._readers.items():
            for number in readers:
                found.setdefault(number, []).append(life)
        return found
