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
from .lives import Life, Lives, Timeline
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
        earlier, later = dict[int, int](), dict[int, int]()
        for place in {place for number in late for place in self._read_by.get(number, ())}:
            life = self._arrays[place]
            if life.first < sent.number:
                readers = [user.number for user in self.flow.users(life.value)]
                least = max([before, life.first, *(n for n in readers if n not in late)])
                earlier[place] = min(life.last, least)
                later[place] = max(life.last, sent.number)
        most = self._timeline.peak(earlier)
        return self._timeline.peak(later) - most <= self.lives.allowed(self.block, most)

    @cached_property
    def _arrays(self) -> list[Life]:
        return self.lives.of(self.block)

    @cached_property
    def _timeline(self) -> Timeline:
        return Timeline.of(self._arrays)

    @cached_property
    def _read_by(self) -> dict[int, list[int]]:
        """The places in `_arrays` of what each operation reads."""
        found: dict[int, list[int]] = {}
        for place, life in enumerate(self._arrays):
            for user in self.flow.users(life.value):
                found.setdefault(user.number, []).append(place)
        return found
