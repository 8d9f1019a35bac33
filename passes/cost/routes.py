"""The links that transfers between pairs of devices go over, and how long they keep them busy."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import lru_cache

from . import nccl
from .networks import Coordinates, Network, Nodes, Torus

Link = tuple[Coordinates, Coordinates] | tuple[str, Coordinates]
"""From a device to its neighbor on the grid; or the port through which a GPU sends or receives."""

Ends = tuple[Coordinates, Coordinates]
"""A transfer: from a device to another."""


def link_seconds(
    payload: int, transfers: Sequence[Ends], network: Network
) -> tuple[dict[Link, float], int]:
    """How long transfers that begin together keep each link busy, and the hops of the longest.

    Args:
      payload: bytes of each transfer.
    """
    if isinstance(network, Nodes):
        return _port_seconds(payload, transfers, network), 1 if transfers else 0
    loads, hops = _loads(tuple(transfers), network)
    seconds = {link: n * payload / _bandwidth(link, network) for link, n in loads.items()}
    return seconds, hops


@lru_cache(maxsize=64)  # a form is looked at with several payloads
def _loads(transfers: tuple[Ends, ...], network: Torus) -> tuple[Counter[Link], int]:
    """How many transfers go over each link, and the hops of the longest."""
    routes = [list(_route(start, end, network)) for start, end in transfers]
    return Counter(link for route in routes for link in route), max(map(len, routes), default=0)


def dimension(link: Link, network: Network) -> int | None:
    """The dimension of a torus along which a link goes; None for ports of GPUs."""
    start, end = link
    if isinstance(network, Nodes) or isinstance(start, str):
        return None
    return next(d for d, (a, b) in enumerate(zip(start, end, strict=True)) if a != b)


def _port_seconds(payload: int, transfers: Sequence[Ends], network: Nodes) -> dict[Link, float]:
    """A GPU sends all that it sends through one port, and receives through another."""
    seconds: dict[Link, float] = {}
    for start, end in transfers:
        took = _transfer_seconds(payload, start, end, network)
        for port in (("sends", start), ("receives", end)):
            seconds[port] = seconds.get(port, 0.0) + took
    return seconds


def _transfer_seconds(payload: int, start: Coordinates, end: Coordinates, network: Nodes) -> float:
    if start[0] != end[0]:
        # Each device has its share of what leaves its node.
        return payload / (network.node_bandwidth / network.size)
    if network.measured:
        return nccl.seconds("collective-permute", payload, network.size)
    return payload / network.device_bandwidth


def _route(start: Coordinates, end: Coordinates, network: Torus) -> Iterator[Link]:
    """The links of a shortest way: one dimension after the other, each the shorter way round.

    Links between chips belong to the chip; the last link goes to the device on it.
    """
    rank = len(network.shape)
    here, goal = start[:rank], end[:rank]
    for d, (size, wraps) in enumerate(zip(network.shape, network.wraps, strict=True)):
        distance = goal[d] - here[d]
        if wraps and abs(distance) > size / 2:
            distance -= math.copysign(size, distance)
        for _ in range(abs(int(distance))):
            step = 1 if distance > 0 else -1
            there = (*here[:d], (here[d] + step) % size, *here[d + 1 :])
            yield here, there
            here = there
    if start[rank:] != end[rank:]:
        yield (*goal, *start[rank:]), end


def _bandwidth(link: Link, network: Torus) -> float:
    return network.core_bandwidth if len(link[0]) > len(network.shape) else network.link_bandwidth
