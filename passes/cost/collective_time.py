"""How long a collective takes on the network of a target: a model, not a measurement.

Formulas are those of https://jax-ml.github.io/scaling-book/sharding, "Cost of our Four Comm
Primitives", written for networks that need not wrap around. With `n` devices in a group, of which
each holds or receives `s` bytes, and bandwidth `B` into a device over the links of the group:

  all-gather, reduce-scatter, broadcast   (n - 1) / n * s / B
  all-reduce                              twice that: a reduce-scatter and an all-gather
  all-to-all                              what crosses the middle of the group, over the links there
  collective-permute                      the bytes over the link that carries most of them

`s` is of the larger side: the result of an all-gather, the operand of a reduce-scatter. Nothing is
shorter than the time for one message over the hops it needs. Inside a node of GPUs whose
collectives were measured, `nccl` gives the time instead.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from . import nccl
from .networks import Coordinates, Network, Nodes, Torus
from .routes import Link, link_seconds

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
      links: of a permute, how long it keeps each link busy; None for others.
      dimensions: of others, the dimensions of a torus whose links it keeps busy all the time; None
        stands for the whole network.
      hops: how many links a transfer of a permute goes over, at most.
    """

    seconds: float
    links: Mapping[Link, float] | None = None
    dimensions: frozenset[int] | None = None
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
    rings: int | None = None,
) -> Cost:
    """A collective other than a permute.

    Args:
      payload: bytes on one device, of the operand or the result, whichever is larger.
      places: coordinates in the network by position in the mesh.
      rings: over how many rings, each in one direction, the compiler sends it; None if it does not
        say, and all links of the group are taken to be used.
    """
    located = [[places[d] for d in group] for group in groups]
    seconds = max(_group_seconds(kind, payload, group, network, rings) for group in located)
    used: frozenset[int] | None = None
    if isinstance(network, Torus):
        extents = [_extent(group, network) for group in located]
        used = frozenset(dimension for extent in extents for dimension in extent)
    return Cost(seconds, dimensions=used)


def cost_of_pairs(
    payload: int, pairs: Sequence[tuple[int, int]], places: Sequence[Coordinates], network: Network
) -> Cost:
    """A collective-permute: all transfers at once, each on a shortest way.

    Args:
      payload: bytes that one device sends.
    """
    ends = [(places[a], places[b]) for a, b in pairs if a != b]
    links, hops = link_seconds(payload, ends, network)
    if not links:
        return Cost(0.0, {})
    seconds = max(*links.values(), hops * network.hop_latency)
    return Cost(seconds, links, hops=hops)


# ----------------------------------------------------------------------------------------- groups


def _group_seconds(
    kind: str, payload: int, group: Sequence[Coordinates], network: Network, rings: int | None
) -> float:
    if len(group) == 1:
        return 0.0
    lower = _hops(group, network) * network.hop_latency
    if isinstance(network, Nodes):
        return max(lower, _nodes_seconds(kind, payload, group, network))
    if kind in ("all-to-all", "ragged-all-to-all"):
        return max(lower, _exchange_seconds(payload, group, network))
    return max(lower, _torus_seconds(kind, payload, group, network, rings))


def _extent(group: Sequence[Coordinates], network: Torus) -> list[int]:
    """The dimensions along which a group extends; that of the devices of a chip comes last."""
    count = len(network.shape) + (network.cores > 1)
    return [d for d in range(count) if len({place[d] for place in group}) > 1]


def _dimensions(group: Sequence[Coordinates], network: Torus) -> Iterator[tuple[int, int, float]]:
    """(chips, links into the last one, bandwidth) for each dimension a group extends along.

    Where a group takes every k-th chip, k groups share the links.
    """
    for dimension, (size, wraps) in enumerate(zip(network.shape, network.wraps, strict=True)):
        there = sorted({place[dimension] for place in group})
        if len(there) > 1:
            stride = (there[-1] - there[0]) / (len(there) - 1)
            around = wraps and size > 2 and len(there) * stride >= size
            yield len(there), 2 if around else 1, network.link_bandwidth / stride


def _torus_seconds(
    kind: str, payload: int, group: Sequence[Coordinates], network: Torus, rings: int | None
) -> float:
    """Between the chips of a group and on its chips, whichever takes longer; the two overlap.

    What a chip receives serves all of its devices in the group; those of other groups share its
    links.
    """
    share = sent_bytes(kind, payload, len(group))
    members = _members(group, network)
    on_chip = share / network.core_bandwidth if members > 1 else 0.0
    if len(group) == members:
        return on_chip
    others = network.cores / members
    return max(on_chip, share * others / _torus_bandwidth(group, network, rings))


def _members(group: Sequence[Coordinates], network: Torus) -> int:
    """Devices of a group on one chip."""
    return len(group) // len({place[: len(network.shape)] for place in group})


def _torus_bandwidth(group: Sequence[Coordinates], network: Torus, rings: int | None) -> float:
    """Bytes per second into the chip of a group that has the fewest links to others.

    A group that is no block of the grid is taken to use one of its dimensions at a time.
    """
    dimensions = list(_dimensions(group, network))
    slowest = min(bandwidth for _, _, bandwidth in dimensions)
    chips = len(group) // _members(group, network)
    if math.prod(count for count, _, _ in dimensions) != chips:
        return slowest
    links = sum(links * bandwidth for _, links, bandwidth in dimensions)
    return links if rings is None else min(links, rings * slowest)


def _exchange_seconds(payload: int, group: Sequence[Coordinates], network: Torus) -> float:
    """Of an all-to-all: half of the group sends half of its bytes to the other half."""
    members = _members(group, network)
    chips = len(group) / members
    crossing = len(group) / 2 * payload / 2 * network.cores / members
    on_chip = payload / 2 / network.core_bandwidth if members > 1 else 0.0
    return max(
        on_chip,
        *(
            crossing / (max(1, chips / count) * links * bandwidth)
            for count, links, bandwidth in _dimensions(group, network)
        ),
        0.0,
    )


def _nodes_seconds(kind: str, payload: int, group: Sequence[Coordinates], network: Nodes) -> float:
    """Inside nodes and between them, whichever takes longer; the two overlap.

    The other groups of a node use its way out at the same time.
    """
    share = sent_bytes(kind, payload, len(group))
    nodes = len({place[0] for place in group})
    members = len(group) / nodes
    if network.measured and members > 1:
        inside = nccl.seconds(kind, payload, math.ceil(members))
    else:
        inside = share / network.device_bandwidth
    if nodes == 1:
        return inside
    factor = share / ((len(group) - 1) / len(group) * payload) if payload else 0.0
    into_node = factor * (nodes - 1) / nodes * payload
    return max(inside, into_node * (network.size / members) / network.node_bandwidth)


def _hops(group: Sequence[Coordinates], network: Network) -> int:
    if isinstance(network, Nodes):
        return 1
    return sum(
        count // 2 if links == 2 else count - 1 for count, links, _ in _dimensions(group, network)
    )
