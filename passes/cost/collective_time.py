"""How long a collective takes on the network of a target: a model, not a measurement.

Formulas are those of https://jax-ml.github.io/scaling-book/sharding, "Cost of our Four Comm
Primitives", written for networks that need not wrap around. With `n` devices in a group, of which
each holds or receives `s` bytes, and bandwidth `B` into a device over the links of the group:

  all-gather, reduce-scatter, broadcast   (n - 1) / n * s / B
  all-reduce                              twice that: a reduce-scatter and an all-gather
  all-to-all                              what crosses the middle of the group, over the links there
  collective-permute                      the bytes over the link that carries most of them

`s` is of the larger side: the result of an all-gather, the operand of a reduce-scatter. Nothing is
shorter than the time for one message over the hops it needs.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from .networks import Coordinates, Network, Nodes, Torus

Link = tuple[Coordinates, Coordinates]


SENT_SHARES = {
    "all-gather": 1,
    "all-reduce": 2,
    "all-to-all": 1,
    "collective-broadcast": 1,
    "collective-permute": 1,
    "ragged-all-to-all": 1,
    "reduce-scatter": 1,
}
"""How often a device sends what it sends in an all-gather, for each HLO instruction."""


@dataclass(frozen=True)
class Cost:
    """The time of one collective that has its links for itself.

    Attributes:
      seconds: how long it takes.
      links: those it keeps busy; None stands for all.
      hops: how many links a transfer of a permute goes over, at most.
    """

    seconds: float
    links: frozenset[Link] | None = None
    hops: int = 1


def sent_bytes(kind: str, payload: int, size: int) -> float:
    """Bytes that one device of a group of `size` sends; see the formulas above."""
    if kind == "collective-permute":
        return payload
    return SENT_SHARES[kind] * ((size - 1) / size * payload)


def cost_of_groups(
    kind: str,
    payload: int,
    groups: Sequence[Sequence[int]],
    places: Sequence[Coordinates],
    network: Network,
) -> Cost:
    """A collective other than a permute.

    Args:
      payload: bytes on one device, of the operand or the result, whichever is larger.
      places: coordinates in the network by position in the mesh.
    """
    return Cost(max(_group_seconds(kind, payload, [places[d] for d in g], network) for g in groups))


def cost_of_pairs(
    payload: int, pairs: Sequence[tuple[int, int]], places: Sequence[Coordinates], network: Network
) -> Cost:
    """A collective-permute: all transfers at once, each on a shortest way.

    Args:
      payload: bytes that one device sends.
    """
    routes = [list(_route(places[a], places[b], network)) for a, b in pairs if a != b]
    loads = Counter(link for route in routes for link in route)
    if not loads:
        return Cost(0.0, frozenset())
    slowest = max(load * payload / _bandwidth(link, network) for link, load in loads.items())
    hops = max(map(len, routes))
    seconds = max(slowest, hops * network.hop_latency)
    return Cost(seconds, frozenset(loads), hops)


# ----------------------------------------------------------------------------------------- groups


def _group_seconds(
    kind: str, payload: int, group: Sequence[Coordinates], network: Network
) -> float:
    if len(group) == 1:
        return 0.0
    lower = _hops(group, network) * network.hop_latency
    if kind in ("all-to-all", "ragged-all-to-all"):
        return max(lower, _exchange_seconds(payload, group, network))
    share = sent_bytes(kind, payload, len(group))
    if isinstance(network, Torus):
        return max(lower, share / _torus_bandwidth(group, network))
    return max(lower, _nodes_seconds(share, payload, group, network))


def _dimensions(group: Sequence[Coordinates], network: Torus) -> Iterator[tuple[int, int, float]]:
    """(devices, links into the last one, bandwidth) for each dimension a group extends along.

    Where a group takes every k-th device, k groups share the links.
    """
    for dimension, (size, wraps) in enumerate(zip(network.shape, network.wraps, strict=True)):
        there = sorted({place[dimension] for place in group})
        if len(there) > 1:
            stride = (there[-1] - there[0]) / (len(there) - 1)
            around = wraps and size > 2 and len(there) * stride >= size
            yield len(there), 2 if around else 1, network.link_bandwidth / stride


def _torus_bandwidth(group: Sequence[Coordinates], network: Torus) -> float:
    """Bytes per second into the device of a group that has the fewest links to others.

    A group that is no block of the grid is taken to use one of its dimensions at a time.
    """
    dimensions = list(_dimensions(group, network))
    if math.prod(count for count, _, _ in dimensions) == len(group):
        return sum(links * bandwidth for _, links, bandwidth in dimensions)
    return min(bandwidth for _, _, bandwidth in dimensions)


def _exchange_seconds(payload: int, group: Sequence[Coordinates], network: Network) -> float:
    """Of an all-to-all: half of the group sends half of its bytes to the other half."""
    crossing = len(group) / 2 * payload / 2
    if isinstance(network, Nodes):
        return _nodes_seconds(
            sent_bytes("all-to-all", payload, len(group)), payload, group, network
        )
    return max(
        crossing / (max(1, len(group) / count) * links * bandwidth)
        for count, links, bandwidth in _dimensions(group, network)
    )


def _nodes_seconds(
    share: float, payload: int, group: Sequence[Coordinates], network: Nodes
) -> float:
    """Inside nodes and between them, whichever takes longer; the two overlap.

    The other groups of a node use its way out at the same time.
    """
    inside = share / network.device_bandwidth
    nodes = len({place[0] for place in group})
    if nodes == 1:
        return inside
    members = len(group) / nodes
    factor = share / ((len(group) - 1) / len(group) * payload)
    into_node = factor * (nodes - 1) / nodes * payload
    return max(inside, into_node * (network.size / members) / network.node_bandwidth)


def _hops(group: Sequence[Coordinates], network: Network) -> int:
    if isinstance(network, Nodes):
        return 1
    return sum(
        count // 2 if links == 2 else count - 1 for count, links, _ in _dimensions(group, network)
    )


# ----------------------------------------------------------------------------------------- routes


def _route(start: Coordinates, end: Coordinates, network: Network) -> Iterator[Link]:
    """The links of a shortest way: one dimension after the other, each the shorter way round."""
    if isinstance(network, Nodes):
        yield start, end
        return
    here = start
    for dimension, (size, wraps) in enumerate(zip(network.shape, network.wraps, strict=True)):
        distance = end[dimension] - here[dimension]
        if wraps and abs(distance) > size / 2:
            distance -= math.copysign(size, distance)
        for _ in range(abs(int(distance))):
            step = 1 if distance > 0 else -1
            there = (
                *here[:dimension],
                (here[dimension] + step) % size,
                *here[dimension + 1 :],
            )
            yield here, there
            here = there


def _bandwidth(link: Link, network: Network) -> float:
    if isinstance(network, Torus):
        return network.link_bandwidth
    (from_node, *_), (to_node, *_) = link
    # Each device has its share of what leaves its node.
    return (
        network.device_bandwidth if from_node == to_node else network.node_bandwidth / network.size
    )
