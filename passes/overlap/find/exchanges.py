"""Finds what is computed between two all_to_alls, and the dimension in which it can be cut."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from jaxlib.mlir import ir
from jaxlib.mlir.dialects.builtin import ModuleOp

from ...ir.analyses import analysis
from ...ir.body_form import read_body_form
from ...ir.collective_ops import whole_axes, with_whole_axes
from ...ir.dataflow import Dataflow, Node, dataflows
from ...ir.find_ops import find_ops
from ...ir.types import Value, shape_of
from .cuts import Cut, cut_of_operand, cut_through
from .products import DOT, Product

ALL_TO_ALL = "stablehlo.all_to_all"


@dataclass(frozen=True)
class Exchange:
    """An all_to_all, products of what it gives, and the all_to_all that returns their results.

    Attributes:
      op, back: the two all_to_alls.
      axes: the group of both, first axis major.
      ops: what is computed between the two, in program order.
      sent: the cut of the operand of `op`.
      cuts: of every other value that is cut, from the result of `op` to that of `back`.
    """

    op: ir.Operation
    back: ir.Operation
    axes: tuple[str, ...]
    count: int
    ops: tuple[ir.Operation, ...]
    sent: Cut
    cuts: dict[Value, Cut]

    @property
    def size(self) -> int:
        """The indices that are cut."""
        return self.sent.size

    @property
    def all_ops(self) -> tuple[ir.Operation, ...]:
        """In program order, with both all_to_alls."""
        return (self.op, *self.ops, self.back)

    @property
    def touched(self) -> tuple[ir.Operation, ...]:
        return self.all_ops

    @property
    def products(self) -> tuple[Product, ...]:
        return tuple(Product.of(op) for op in self.ops if op.name == DOT)


@analysis
def exchanges_of(module: ModuleOp) -> tuple[Exchange, ...]:
    """The pairs of all_to_alls of a module in body form, over several devices, in program order.

    There are products between those of a pair, and none ends where another begins. When one is
    rewritten, those that have other operations are still as they were found.
    """
    form, flows = read_body_form(module), dataflows(module)
    found: list[Exchange] = []
    ends: set[ir.Operation] = set()
    for op, axes in with_whole_axes(find_ops(module.operation, [ALL_TO_ALL])):
        count = form.mesh.product(axes)
        if op in ends or count == 1:
            continue
        pair = next(_pairs(op, axes, count, flows.of(op.block)), None)
        if pair is not None:
            ends.add(pair.back)
            found.append(pair)
    return tuple(found)


def _pairs(
    op: ir.Operation, axes: tuple[str, ...], count: int, flow: Dataflow
) -> Iterator[Exchange]:
    """One for each dimension that can be cut, that with the largest size first."""
    shape = shape_of(op.operands[0])
    for dimension in sorted(range(len(shape)), key=lambda d: -shape[d]):
        cut = Cut(dimension, shape[dimension])
        exchange = _followed(op, cut, axes, count, flow)
        if exchange is not None and exchange.products:
            yield exchange


def through_all_to_all(op: ir.Operation, cut: Cut, count: int) -> Cut | None:
    """The cut of the result of an all_to_all whose operand is cut."""
    split, concat = (
        ir.IntegerAttr(op.attributes[name]).value
        for name in ("split_dimension", "concat_dimension")
    )
    if cut.dimension == split:
        # The first indices say to which device, so what is cut must be inside of them.
        if cut.outer % count:
            return None
        return cut if split == concat else cut.of(cut.outer // count)
    return cut.of(cut.outer * count) if cut.dimension == concat else cut


def _followed(
    op: ir.Operation, cut: Cut, axes: tuple[str, ...], count: int, flow: Dataflow
) -> Exchange | None:
    received = through_all_to_all(op, cut, count)
    if received is None:
        return None
    sent, first = op.operands[0], op.results[0]
    cuts = {sent: cut, first: received}
    inside: list[Node] = []
    for node in flow.nodes[flow.node(op).number + 1 :]:
        numbers = [k for k, operand in enumerate(node.operands) if operand in cuts]
        if not numbers or node.operands[numbers[0]] == sent:
            continue
        operand_cut = cuts[node.operands[numbers[0]]]
        if node.name == ALL_TO_ALL:
            returned = through_all_to_all(node.op, operand_cut, count)
            if returned is None or whole_axes(node.op) != axes:
                return None
            cuts[node.result] = returned
            if not _is_closed(first, inside, node, flow):
                return None
            del cuts[sent]  # It is another value when what computes it is rewritten.
            ops = tuple(each.op for each in inside)
            return Exchange(op, node.op, axes, count, ops, cut, cuts)
        result = cut_through(node.op, numbers[0], operand_cut)
        if result is None or any(
            cut_of_operand(node.op, k, result) != cuts[node.operands[k]] for k in numbers[1:]
        ):
            return None
        cuts[node.result] = result
        inside.append(node)
    return None


def _is_closed(first: Value, inside: Sequence[Node], back: Node, flow: Dataflow) -> bool:
    """Whether nothing outside uses what is computed in pieces, but the last result."""
    results = [first, *(node.result for node in inside)]
    return all(user is back or user in inside for value in results for user in flow.users(value))
