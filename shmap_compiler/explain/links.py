"""Until when the links of a network are taken, while a schedule runs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field

from shmap_passes.cost.collective_time import Cost
from shmap_passes.cost.networks import Network
from shmap_passes.cost.routes import dimension


@dataclass
class Links:
    """The links of a network. Each carries one transfer after the other, in the order they begin.

    A permute uses single links: what it sends over one of them waits for that link alone. Other
    collectives use all links along some dimensions of a torus, or the whole network, all the time.

    Attributes:
      spans: when collectives ran: (begin, end).
      transfers: what each link, or dimension, carried when: (link, begin, end), of the latest
        collective.
      usage: seconds for which each link, or dimension, was in use.
    """

    network: Network
    spans: list[tuple[float, float]] = field(default_factory=list)
    transfers: list[tuple[Hashable, float, float]] = field(default_factory=list)
    usage: dict[Hashable, float] = field(default_factory=lambda: defaultdict(float))
    _all: float = 0.0
    _last: float = 0.0
    _dimensions: dict[int | None, float] = field(default_factory=dict)
    _last_in: dict[int | None, float] = field(default_factory=dict)
    _each: dict[Hashable, float] = field(default_factory=dict)

    def take(self, cost: Cost, now: float) -> tuple[float, float]:
        """When a collective that could begin now begins, and when it ends."""
        self.transfers.clear()
        span = self._take_links(cost, now) if cost.links is not None else self._take(cost, now)
        self.spans.append(span)
        self._last = max(self._last, span[1])
        return span

    def _take_links(self, cost: Cost, now: float) -> tuple[float, float]:
        begins, end = [], now
        for link, seconds in (cost.links or {}).items():
            along = dimension(link, self.network)
            taken = (self._all, self._dimensions.get(along, 0.0), self._each.get(link, 0.0))
            begin = max(now, *taken)
            self._each[link] = begin + seconds
            self._last_in[along] = max(self._last_in.get(along, 0.0), begin + seconds)
            self.usage[link] += seconds
            self.transfers.append((link, begin, begin + seconds))
            begins.append(begin)
            end = max(end, begin + seconds)
        begin = min(begins, default=now)
        # Short messages take as long as their hops do.
        return begin, max(end, begin + cost.seconds)

    def _take(self, cost: Cost, now: float) -> tuple[float, float]:
        if cost.dimensions is None:
            begin = max(now, self._last)
            self._all = end = begin + cost.seconds
            self.usage[None] += cost.seconds
            self.transfers.append((None, begin, end))
            return begin, end
        ends = (
            max(self._dimensions.get(d, 0.0), self._last_in.get(d, 0.0)) for d in cost.dimensions
        )
        begin = max([now, self._all, *ends])
        end = begin + cost.seconds
        for d in cost.dimensions:
            self._dimensions[d] = end
            self.usage[d] += cost.seconds
            self.transfers.append((d, begin, end))
        return begin, end

    @property
    def busy(self) -> float:
        """Seconds in which at least one collective ran."""
        total, until = 0.0, 0.0
        for begin, end in sorted(self.spans):
            total += max(0.0, end - max(begin, until))
            until = max(until, end)
        return total


def fullest(usage: Mapping[Hashable, float], network: Network) -> float:
    """Seconds for which the link is in use that is in use for longest."""
    everything = usage.get(None, 0.0)
    rests: dict[int | None, float] = defaultdict(float)
    for key, seconds in usage.items():
        if isinstance(key, tuple):
            along = dimension(key, network)
            whole = usage.get(along, 0.0) if along is not None else 0.0
            rests[along] = max(rests[along], seconds + whole)
        elif key is not None and isinstance(key, int):
            rests[key] = max(rests[key], seconds)
    return everything + max(rests.values(), default=0.0)


def show_link(link: Hashable) -> str:
    """A link, dimension or port in words."""
    if link is None:
        return "all links"
    if isinstance(link, int):
        return f"all links along dimension {link}"
    assert isinstance(link, tuple)
    start, end = link
    place = ",".join(map(str, end))
    if isinstance(start, str):
        return f"GPU {place} {start}"
    return f"{','.join(map(str, start))} to {place}"
