"""Finds all_to_alls with what is computed between them, up to sums over what is exchanged.

In the gradient of a layer of experts, tokens are exchanged twice, and so are their cotangents.
Weights' gradients are products that sum over the tokens of both.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

from jaxlib.mlir import ir
from jaxlib.mlir.dialects.builtin import ModuleOp

from ...ir.analyses import analysis
from ...ir.body_form import read_body_form
from ...ir.collective_ops import whole_axes, with_whole_axes
from ...ir.dataflow import Dataflow, Node, dataflows
from ...ir.find_ops import find_ops
from ...ir.types import Value, shape_of
from .cuts import Cut, cut_of_operand, cut_through
from .exchange_segments import Segment, segments
from .exchanges import ALL_TO_ALL, through_all_to_all
from .products import DOT, Product

_EXPERTS = 4
"""A device must have a multiple of so many for chunks to be some of its experts."""


@dataclass(frozen=True)
class ExchangeBlock:
    """Operations on what is exchanged, of which nothing else reads what is between exchanges.

    Attributes:
      op: the first all_to_all.
      axes: the group, first axis major.
      count: the number of devices in the group.
      size: the indices that are cut.
      segments: the all_to_alls and the sums, in the order in which they can be computed.
      ops: what is computed in chunks, in program order, with all_to_alls and sums.
      kept: those of `ops` that others read, too; they are computed again from whole arrays.
      cuts: of every value that is computed in chunks.
      joined: the cuts of results of products that sum over nothing that is cut, and that only
        others read; they are in the segments' sums.
      taken: the cuts of operands of which chunks are taken, by result of the operation and number.
    """

    op: ir.Operation
    axes: tuple[str, ...]
    count: int
    size: int
    segments: tuple[Segment, ...]
    ops: tuple[ir.Operation, ...]
    kept: tuple[ir.Operation, ...]
    cuts: dict[Value, Cut]
    joined: dict[Value, Cut]
    taken: dict[tuple[Value, int], Cut]

    @property
    def all_ops(self) -> tuple[ir.Operation, ...]:
        return self.ops

    @property
    def touched(self) -> tuple[ir.Operation, ...]:
        return (*self.ops, *(op for segment in self.segments for op in segment.late))

    @property
    def exchanges(self) -> tuple[ir.Operation, ...]:
        return tuple(op for segment in self.segments for op in segment.exchanges)


@analysis
def exchange_blocks_of(module: ModuleOp) -> tuple[ExchangeBlock, ...]:
    """The blocks of a module in body form, in program order.

    They begin with an all_to_all, and have products of what is exchanged that only others read.
    """
    form, flows = read_body_form(module), dataflows(module)
    known: _Known = {}
    found: list[ExchangeBlock] = []
    exchanged: set[ir.Operation] = set()
    for op, axes in with_whole_axes(find_ops(module.operation, [ALL_TO_ALL])):
        count = form.mesh.product(axes)
        if op in exchanged or count == 1:
            continue
        block = _found(op, axes, count, flows.of(op.block), known)
        if block is not None:
            exchanged.update(block.exchanges)
            found.append(block)
    return tuple(found)


_Known: TypeAlias = "dict[tuple[ir.Block, Cut, tuple[str, ...]], _Reached]"
"""What is reached in a block, by the cut of what is exchanged first and the axes of its group."""


def _found(
    op: ir.Operation, axes: tuple[str, ...], count: int, flow: Dataflow, known: _Known
) -> ExchangeBlock | None:
    """The block for the first of `_cuts` that all of it can be computed in."""
    first = flow.node(op)
    if not any(node.name == ALL_TO_ALL for node in flow.nodes[first.number + 1 :]):
        return None
    for cut in _cuts(op, count):
        if through_all_to_all(op, cut, count) is None:
            continue
        key = op.block, cut, axes
        if key not in known:
            known[key] = _reached(flow, cut, axes, count)
        found = _block(first, axes, count, known[key], flow)
        if found is not None:
            return found
    return None


def _cuts(op: ir.Operation, count: int) -> Iterator[Cut]:
    """How what is exchanged can be cut: between experts of a device, else along its dimensions.

    Chunks of experts read each weight once, and add nothing up.
    """
    shape = shape_of(op.operands[0])
    split = ir.IntegerAttr(op.attributes["split_dimension"]).value
    experts = shape[split] // count
    if experts % _EXPERTS == 0:
        yield Cut(split, experts, outer=count)
    for dimension in sorted(range(len(shape)), key=lambda d: -shape[d]):
        yield Cut(dimension, shape[dimension])


def _reached(flow: Dataflow, cut: Cut, axes: tuple[str, ...], count: int) -> _Reached:
    """What is reached from the all_to_alls of a block, in program order."""
    reached = _Reached()
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


def _block(
    first: Node, axes: tuple[str, ...], count: int, reached: _Reached, flow: Dataflow
) -> ExchangeBlock | None:
    """The block that begins with an operation, of what is reached in its block."""
    cuts, connected = reached.cuts, reached.connected(first)
    if connected[0] is not first:
        return None
    exchanged = [node for node in connected if node.name == ALL_TO_ALL]
    sums = {node for node in connected if node.result not in cuts}
    needed, ends = {*sums, *exchanged}, set[Node]()
    for node in reversed(connected):
        if not needed.isdisjoint(flow.users(node.result)):
            needed.add(node)
        elif node not in needed and node.name == DOT and cuts.keys() >= {*node.operands}:
            ends.add(node)
            needed.add(node)
    if len(exchanged) < 2 or not sums | ends:
        return None
    ops = [node for node in connected if node in needed]
    kept = _kept(ops, sums | ends, flow)
    if kept is None:
        return None
    inside = {node.result: cuts[node.result] for node in ops if node not in sums | ends}
    found = segments(ops, kept, inside, flow)
    if found is None:
        return None
    return ExchangeBlock(
        first.op,
        axes,
        count,
        cuts[first.result].size,
        found,
        tuple(node.op for node in ops),
        tuple(node.op for node in kept),
        inside,
        {node.result: cuts[node.result] for node in ends},
        reached.taken,
    )


def _kept(ops: Sequence[Node], sums: set[Node], flow: Dataflow) -> list[Node] | None:
    """The operations whose results others read; None if those cannot be computed again.

    Results of exchanges are joined, but what arrives first is as large as what is exchanged.
    """
    inside, results, kept = {*ops}, {node.result for node in ops}, list[Node]()
    for node in reversed(ops):
        if node in sums or inside.issuperset(flow.users(node.result)):
            continue
        if node.name == DOT or (node.name == ALL_TO_ALL and node.operands[0] not in results):
            return None
        if node.name != ALL_TO_ALL:
            kept.insert(0, node)
            inside.remove(node)  # what it reads is computed whole, too
    return kept


class _Reached:
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
