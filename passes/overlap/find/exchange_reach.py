"""Follows chunks of what is exchanged through what is computed from them.

A product that sums over what is cut ends the way: its results of all chunks are added up.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from functools import cached_property

from ...ir.collective_ops import whole_axes
from ...ir.dataflow import Dataflow, Node
from ...ir.types import Value, shape_of
from .cuts import Cut, cut_of_operand, cut_through
from .exchanges import ALL_TO_ALL, through_all_to_all
from .products import DOT, Product


def reached_from_exchanges(flow: Dataflow, cut: Cut, axes: tuple[str, ...], count: int) -> Reached:
    """What is reached from the all_to_alls of a block, in program order."""
    reached = Reached()
    pending = [node.number for node in flow.nodes if node.name == ALL_TO_ALL]
    seen = set(pending)
    while pending:
        node = flow.nodes[heapq.heappop(pending)]
        reached.add(node, cut, axes, count)
        if node.results and node.result in reached.cuts:
            users = {user.number for user in flow.users(node.result)} - seen
            seen |= users
            for number in users:
                heapq.heappush(pending, number)
    return reached


class Reached:
    """What is computed from chunks of what is exchanged, of several independent parts.

    Attributes:
      parts: the part to which each operation belongs, in program order.
      cuts: of their results, but those of sums.
      taken: see `ExchangeBlock`.
    """

    def __init__(self) -> None:
        self.parts: dict[Node, int] = {}
        self.cuts: dict[Value, Cut] = {}
        self.taken: dict[tuple[Value, int], Cut] = {}
        self._part_of: dict[Value, int] = {}
        self._joined: dict[int, int] = {}  # the part that has become one with an earlier one
        # What is exchanged back, and what is computed from it before the next exchange.
        self._returned: set[Value] = set()

    def connected(self, node: Node) -> list[Node]:
        """The operations of the part to which one belongs."""
        if node not in self.parts:
            return [node]
        return self._connected[self._part(self.parts[node])]

    @cached_property
    def _connected(self) -> dict[int, list[Node]]:
        """The operations of each part, when all are added."""
        found: dict[int, list[Node]] = {}
        for node, number in self.parts.items():
            found.setdefault(self._part(number), []).append(node)
        return found

    def add(self, node: Node, cut: Cut, axes: tuple[str, ...], count: int) -> None:
        """Adds an operation that can be computed in chunks.

        Args:
          cut: of what is exchanged first.
        """
        numbers = [k for k, value in enumerate(node.operands) if value in self.cuts]
        is_exchange = node.name == ALL_TO_ALL
        if not numbers and not is_exchange:
            return
        is_returned = not self._returned.isdisjoint(node.operands)
        if is_exchange:
            if whole_axes(node.op) != axes:
                return
            sent = node.operands[0]
            if not numbers and shape_of(sent)[cut.dimension :][:1] != [cut.outer * cut.size]:
                return
            own = self.cuts[sent] if numbers else cut
            result = through_all_to_all(node.op, own, count)
            if result is None:
                return
            taken = {} if numbers else {0: own}
            is_returned = bool(numbers) and not is_returned
        else:
            taken = {} if is_returned else _summed(node, self.cuts)
            result = None if taken else _result(node, numbers[0], self.cuts)
            if result is None and not taken:
                return
            taken = taken or _taken(node, result, self.cuts)
        self._join(node, [self._part(self._part_of[node.operands[k]]) for k in numbers])
        self.taken.update({(node.result, k): of_operand for k, of_operand in taken.items()})
        if is_returned:
            self._returned.add(node.result)
        if result is not None:
            self.cuts[node.result] = result

    def _join(self, node: Node, parts: Sequence[int]) -> None:
        """Adds an operation to the first of the parts that it reads, and the others to this one."""
        part = min(parts, default=len(self.parts))
        self._joined.update({each: part for each in parts if each != part})
        self.parts[node] = self._part_of[node.result] = part

    def _part(self, number: int) -> int:
        while number in self._joined:
            number = self._joined[number]
        return number


def _summed(node: Node, cuts: Mapping[Value, Cut]) -> dict[int, Cut]:
    """The cuts of both operands of a product that sums over what is cut; else nothing."""
    if node.name != DOT:
        return {}
    for pair in zip(*Product.of(node.op).contracted, strict=True):
        known = [cuts.get(value) for value in node.operands]
        for cut, dimension in zip(known, pair, strict=True):
            if cut is not None and cut.dimension == dimension:
                both = {k: cut.along(pair[k]) for k in (0, 1)}
                return both if all(c in (None, both[k]) for k, c in enumerate(known)) else {}
    return {}


def _result(node: Node, number: int, cuts: Mapping[Value, Cut]) -> Cut | None:
    """The cut of the result of an operation; None if it cannot be computed in chunks."""
    result = cut_through(node.op, number, cuts[node.operands[number]])
    if result is None:
        return None
    for k, value in enumerate(node.operands):
        if k != number and value in cuts and cut_of_operand(node.op, k, result) != cuts[value]:
            return None
    return result


def _taken(node: Node, result: Cut | None, cuts: Mapping[Value, Cut]) -> dict[int, Cut]:
    """The cuts of operands of which chunks are taken."""
    if result is None:
        return {}
    others = [k for k, value in enumerate(node.operands) if value not in cuts]
    found = {k: cut_of_operand(node.op, k, result) for k in others}
    return {k: cut for k, cut in found.items() if cut is not None}
