"""When the arrays of a block are in memory, and how much they take together at the peak.

The arrays of a block are taken to be in memory from the operation that computes them to the last
one that reads them. What is computed element by element, or only moved, is taken to be computed
where it is read, unless a product, a communication or a loop reads it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from jaxlib.mlir import ir

from ...ir.dataflow import Dataflow, Dataflows, Node
from ...ir.elementwise import ELEMENTWISE
from ...ir.types import Value, array_bytes
from ..find.stored import FEW_BYTES, is_fused

SHARE = 0.02
"""A form may need this share of the arrays of the plain program more. `measure` allows the same."""


class Life(NamedTuple):
    """An array of a block.

    Attributes:
      first, last: the numbers of the operations that compute it and read it last.
      is_fused: whether it takes the place of what it is computed from.
      is_returned: whether it is a result, and nothing else reads it.
      becomes_result: whether only results are computed from it, element by element, or moved.
    """

    value: Value
    bytes_: int
    first: int
    last: int
    is_fused: bool
    is_returned: bool
    becomes_result: bool


class Lives:
    """The arrays of each block that is asked for."""

    def __init__(self, flows: Dataflows) -> None:
        self._flows = flows
        self._known: dict[ir.Block, list[Life]] = {}
        self._timelines: dict[ir.Block, Timeline] = {}
        self._peaks: dict[ir.Block, int] = {}
        self._given: dict[ir.Block, int] = {}
        self._most: dict[ir.Block, tuple[int, int]] = {}

    def of(self, block: ir.Block) -> list[Life]:
        """Those that its operations store."""
        if block not in self._known:
            self._known[block] = _lives(self._flows.of(block))
        return self._known[block]

    def timeline(self, block: ir.Block) -> Timeline:
        """That of what its operations store."""
        if block not in self._timelines:
            self._timelines[block] = Timeline.of(self.of(block))
        return self._timelines[block]

    def computed(self, block: ir.Block) -> list[Life]:
        """Those of them that are not returned."""
        return [life for life in self.of(block) if not life.is_returned]

    def most(self, block: ir.Block) -> tuple[int, int]:
        """Of what its operations compute and do not return, (bytes at the peak, of the largest)."""
        if block not in self._most:
            computed = self.computed(block)
            largest = max((life.bytes_ for life in computed), default=0)
            self._most[block] = Timeline.of(computed).peak(), largest
        return self._most[block]

    def allowed(self, block: ir.Block, plain: int) -> float:
        """How much more than in the plain program a block with forms may need.

        A loop may need as much as another part of its function does at the peak.

        Args:
          plain: the peak of the block in the plain program, without what is around it.
        """
        if block not in self._given:
            self._given[block] = given_bytes(block)
        least = allowed(self._given[block], plain)
        function, around = self._around(block)
        if function == block:
            return least
        if function not in self._peaks:
            self._peaks[function] = self._peak(function)
        return max(least, self._peaks[function] - around - self.timeline(block).peak())

    def _around(self, block: ir.Block) -> tuple[ir.Block, int]:
        """The function that a block is in, and the bytes of other blocks meanwhile."""
        total = 0
        while (op := block.owner.operation).name != "func.func":
            block = op.block
            total += self._beside(block, self._flows.of(block).node(op))
        return block, total

    def _beside(self, block: ir.Block, node: Node) -> int:
        """The bytes of a block while an operation with blocks of its own runs.

        A loop computes in the place of what it is given, where that is not needed any more.
        """
        given = set(node.operands)
        return sum(
            life.bytes_
            for life in self.computed(block)
            if life.first <= node.number <= life.last
            if life.last > node.number or life.value not in given
        )

    def _peak(self, block: ir.Block) -> int:
        """The most bytes at any time of a block, with those inside of its operations.

        Results of the program have their places all the time.
        """
        peaks = [self.most(block)[0]]
        for node in self._flows.of(block).nodes:
            for region in node.op.regions if node.inner or node.name == "stablehlo.while" else ():
                inside = max((self._peak(each) for each in region.blocks), default=0)
                peaks.append(inside + self._beside(block, node))
        return max(peaks)


def _lives(flow: Dataflow) -> list[Life]:
    fused = [is_fused(node.name) for node in flow.nodes]
    # When the results of each operation are read, if it stores none, and else its operands.
    reads = [*range(len(flow.nodes))]
    returned = {node.number for node in flow.nodes if node.name == "func.return"}
    only_returned = {*returned}  # and what is fused, and read by nothing else
    lives: list[Life] = []
    for node in reversed(flow.nodes):
        number = node.number
        for value, users in zip(node.results, node.users, strict=True):
            last, is_read, is_returned, becomes_result = number, False, bool(users), bool(users)
            for user in users:
                reader = user.number
                # What is not stored is computed where it is read, from what it is computed from.
                last = max(last, reads[reader])
                # What is fused reads nothing in memory.
                is_read = is_read or not fused[reader]
                is_returned = is_returned and reader in returned
                becomes_result = becomes_result and reader in only_returned
            if not fused[number] or (is_read and node.name in ELEMENTWISE):
                size, in_place = array_bytes(value), fused[number]
                lives.append(Life(value, size, number, last, in_place, is_returned, becomes_result))
            else:
                reads[number] = last
                if becomes_result:
                    only_returned.add(number)
    return lives


@dataclass(frozen=True)
class Timeline:
    """The arrays of a block over the time that its operations take.

    Attributes:
      places: of the arrays in what follows.
      starts, ends: when arrays begin and cease to be there, by four times for each operation.
      sizes: their bytes.
    """

    places: Mapping[Value, int]
    starts: npt.NDArray[np.int64]
    ends: npt.NDArray[np.int64]
    sizes: npt.NDArray[np.int64]

    @classmethod
    def of(cls, lives: Sequence[Life]) -> Timeline:
        # What is fused is there when its operands are not needed any more.
        starts = [4 * life.first + 2 * life.is_fused for life in lives]
        ends = [4 * life.last + 1 for life in lives]
        columns = starts, ends, [life.bytes_ for life in lives]
        places = {life.value: place for place, life in enumerate(lives)}
        return cls(places, *(np.array(each, np.int64) for each in columns))

    def peak(
        self, sizes: Mapping[Value, int] | None = None, lasts: Mapping[Value, int] | None = None
    ) -> int:
        """The most bytes at any time.

        Args:
          sizes: the bytes of some arrays, if they are others.
          lasts: the numbers of the operations that read some arrays last, if they are others.
        """
        bytes_ = self._with(self.sizes, sizes or {})
        ends = self._with(self.ends, {value: 4 * last + 1 for value, last in (lasts or {}).items()})
        changes = np.zeros(1 + max(self.starts.max(initial=0), ends.max(initial=0)), np.int64)
        np.add.at(changes, self.starts, bytes_)
        np.subtract.at(changes, ends, bytes_)
        return int(changes.cumsum().max(initial=0))

    def _with(
        self, column: npt.NDArray[np.int64], others: Mapping[Value, int]
    ) -> npt.NDArray[np.int64]:
        """A column with other numbers for some values, of which it may not have all."""
        if not others:
            return column
        column = column.copy()
        for value, number in others.items():
            if value in self.places:
                column[self.places[value]] = number
        return column


def allowed(given: int, plain: int) -> float:
    """How much more than the plain program a function with forms may need.

    Args:
      given: the bytes of its arguments.
      plain: those of what it computes at the peak.
    """
    return max(SHARE * (plain + given), FEW_BYTES)


def given_bytes(block: ir.Block) -> int:
    """The bytes of the arguments of a block."""
    return sum(map(array_bytes, block.arguments))
