"""How devices reach each other: the figures that the time of a collective follows from."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Torus:
    """Chips on a grid; each has a link to each of its neighbors.

    Attributes:
      shape: chips along each dimension.
      wraps: for each dimension, whether its last chip is linked to its first: then data can go
        round it both ways at once.
      link_bandwidth: bytes per second over one link in one direction.
      other_link_bandwidth: a second published figure for the same, None if both agree.
      hop_latency: seconds that a message takes over one link at least; about a microsecond
        according to https://jax-ml.github.io/scaling-book/sharding, "A note on ICI latency".
      cores: devices on one chip, which share its links. If there are several, coordinates of a
        device end with its number on the chip.
      core_bandwidth: bytes per second between two devices of a chip in one direction.
    """

    shape: tuple[int, ...]
    wraps: tuple[bool, ...]
    link_bandwidth: float
    hop_latency: float = 1e-6
    other_link_bandwidth: float | None = None
    cores: int = 1
    core_bandwidth: float = float("inf")


@dataclass(frozen=True)
class Nodes:
    """Nodes of devices; inside a node, as between nodes, every device reaches every other alike.

    Attributes:
      count: nodes.
      size: devices in a node.
      device_bandwidth: bytes per second that one device sends within its node, one direction.
      node_bandwidth: bytes per second that one node sends to others, one direction.
      hop_latency: seconds that a message takes at least; none is published.
      measured: whether `nccl` has measured the collectives of such a node; else they are taken to
        reach `device_bandwidth`.
    """

    count: int
    size: int
    device_bandwidth: float
    node_bandwidth: float
    hop_latency: float = 0.0
    measured: bool = False


Coordinates = tuple[int, ...]
"""Where a device is: its position on the grid, or its node and its number there."""

Network = Torus | Nodes
