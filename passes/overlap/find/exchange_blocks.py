"""Finds all_to_alls with what is computed between them, up to products of what they exchange.

In the gradient of a layer of experts, tokens are exchanged twice, and so are their cotangents.
Weights' gradients are products of both. If chunks are of tokens they sum over what is cut; if
chunks are some of the experts of a device, they give the gradients of some.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from jaxlib.mlir import ir
from jaxlib.mlir.dialects.builtin import ModuleOp

from ...ir.analyses import analysis
from ...ir.body_form import read_body_form
from ...ir.collective_ops import with_whole_axes
from ...ir.dataflow import Dataflow, Node, dataflows
from ...ir.find_ops import find_ops
from ...ir.types import Value, shape_of
from .cuts import Cut
from .exchange_reach import Reached, reached_from_exchanges
from .exchange_segments import Segment, segments
from .exchanges import ALL_TO_ALL, through_all_to_all
from .products import DOT

_EXPERTS = 4
"""A device must have a multiple of so many for chunks to be some of its experts.

As many as the chunks of `passes/cost/overlap_of_exchanges.py`.
"""


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


_Known: TypeAlias = "dict[tuple[ir.Block, Cut, tuple[str, ...]], Reached]"
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
            known[key] = reached_from_exchanges(flow, cut, axes, count)
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


def _block(
    first: Node, axes: tuple[str, ...], count: int, reached: Reached, flow: Dataflow
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
