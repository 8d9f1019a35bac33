"""Rings of devices: the order in which each is a neighbor of the next, and the time of a turn.

A permute along a mesh axis follows the order of the mesh, in which neighbors may be several links
apart. The order of a ring is therefore found from the coordinates of the chips.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

from .collective_time import cost_of_pairs
from .networks import Coordinates, Network, Torus

Order = tuple[int, ...]
"""The place on the ring of each member of a group."""

_LARGEST = 256
"""Devices of the largest group for which an order is searched."""

MOST_UNROLLED = 16
"""On a larger ring the steps are a loop, so that modules do not grow with it."""
STEPS_OF_SUMS = 8
"""Steps of a large ring that are one step of a loop, if partial sums go round."""


def ring_order(
    groups: Sequence[Sequence[int]], places: Sequence[Coordinates], network: Network
) -> Order:
    """The order in which a block goes round fastest in all groups at once.

    Args:
      groups: positions in the mesh; members are numbered alike in all groups.
      places: coordinates by position in the mesh.
    """
    return _ring_order(tuple(map(tuple, groups)), tuple(places), network)


@lru_cache(maxsize=256)
def _ring_order(
    groups: tuple[tuple[int, ...], ...], places: tuple[Coordinates, ...], network: Network
) -> Order:
    count = len(groups[0])
    in_mesh_order = tuple(range(count))
    if not isinstance(network, Torus) or not 2 < count <= _LARGEST:
        return in_mesh_order
    found = _cycle([places[device] for device in groups[0]], network)
    if found is None:
        return in_mesh_order
    by_chips = tuple(found.index(member) for member in range(count))
    return min(
        (in_mesh_order, by_chips),
        key=lambda order: hop_seconds(2**20, order, groups, places, network),
    )


def hop_seconds(
    payload: int,
    order: Order,
    groups: Sequence[Sequence[int]],
    places: Sequence[Coordinates],
    network: Network,
) -> float:
    """The time in which each device sends `payload` bytes to the next and to the previous one."""
    pairs = [pair for group in groups for pair in _both_ways(group, order)]
    return cost_of_pairs(payload, pairs, places, network).seconds


def _both_ways(group: Sequence[int], order: Order) -> list[tuple[int, int]]:
    ring = [device for _, device in sorted(zip(order, group, strict=True))]
    ahead = list(zip(ring, [*ring[1:], ring[0]], strict=True))
    return [*ahead, *((b, a) for a, b in ahead)]


def _cycle(members: Sequence[Coordinates], network: Torus) -> list[int] | None:
    """A way along links through all members and back, as their numbers; None if there is none."""
    near = [
        [b for b in range(len(members)) if _distance(members[a], members[b], network) == 1]
        for a in range(len(members))
    ]
    steps = 0

    def extend(path: list[int], seen: set[int]) -> bool:
        nonlocal steps
        steps += 1
        if len(path) == len(members):
            return path[0] in near[path[-1]]
        # Those with the fewest ways on come first; the search then hardly ever turns back.
        onward = [b for b in near[path[-1]] if b not in seen]
        for b in sorted(onward, key=lambda b: (sum(c not in seen for c in near[b]), b)):
            if steps > 10_000:
                return False
            if extend([*path, b], {*seen, b}):
                result.append(b)
                return True
        return False

    result: list[int] = []
    return [0, *reversed(result)] if extend([0], {0}) else _around_grid(members)


def _around_grid(members: Sequence[Coordinates]) -> list[int] | None:
    """The way through a whole grid: row by row to and fro, and back along a side.

    Of more dimensions than two, a row is a place on the way to and fro through all but the last.
    """
    extends = [sorted(set(along)) for along in zip(*members, strict=True)]
    sizes = [len(along) for along in extends if len(along) > 1]
    if len(sizes) < 2 or math.prod(sizes) != len(members) or len(members) % 2:
        return None
    numbers: dict[tuple[int, int], int] = {}
    for number, place in enumerate(members):
        pairs = [(a, x) for a, x in zip(extends, place, strict=True) if len(a) > 1]
        *rows, column = [along.index(x) for along, x in pairs]
        numbers[_to_and_fro(rows, sizes), column] = number
    rows, columns = math.prod(sizes[:-1]), sizes[-1]
    if rows % 2:
        numbers = {(column, row): number for (row, column), number in numbers.items()}
        rows, columns = columns, rows
    inside = [
        (row, column)
        for row in range(rows)
        for column in (range(1, columns) if row % 2 == 0 else range(columns - 1, 0, -1))
    ]
    way = [numbers[place] for place in [*inside, *((row, 0) for row in reversed(range(rows)))]]
    begin = way.index(0)
    return [*way[begin:], *way[:begin]]


def _to_and_fro(place: Sequence[int], sizes: Sequence[int]) -> int:
    """The number of a place on a way on which each is a neighbor of the next."""
    number = 0
    for x, size in zip(place, sizes, strict=False):
        number = number * size + (x if number % 2 == 0 else size - 1 - x)
    return number


def _distance(a: Coordinates, b: Coordinates, network: Torus) -> int:
    """Links on a shortest way; two devices of one chip are one link apart."""
    total = sum(
        x != y for x, y in zip(a[len(network.shape) :], b[len(network.shape) :], strict=True)
    )
    for x, y, size, wraps in zip(a, b, network.shape, network.wraps, strict=False):
        direct = abs(x - y)
        total += min(direct, size - direct) if wraps else direct
    return total
