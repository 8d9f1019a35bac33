"""Finds what is computed between two all_to_alls, and the dimension in which it can be cut."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from jaxlib.mlir import ir

from ..ir.body_form import BodyForm
from ..ir.collective_ops import whole_axes, with_whole_axes
from ..ir.types import Value, shape_of
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
      cuts: of every value that is cut, from the operand of `op` to the result of `back`.
    """

    op: ir.Operation
    back: ir.Operation
    axes: tuple[str, ...]
    count: int
    ops: tuple[ir.Operation, ...]
    cuts: dict[Value, Cut]

    @property
    def size(self) -> int:
        """The indices that are cut."""
        return self.cuts[self.op.operands[0]].size

    @property
    def products(self) -> tuple[Product, ...]:
        return tuple(Product.of(op) for op in self.ops if op.name == DOT)


def exchanges(ops: Sequence[ir.Operation], form: BodyForm) -> Iterator[Exchange]:
    """The pairs of all_to_alls, over several devices, with products between them.

    Each is looked for when it is asked for, so those before may be rewritten.

    Args:
      ops: all_to_alls, in program order; no pair begins with another.
    """
    found = with_whole_axes(ops)
    numbers = {op: number for number, (op, _) in enumerate(found)}
    taken: set[int] = set()
    for number, (op, axes) in enumerate(found):
        count = form.mesh.product(axes)
        pair = next(_pairs(op, axes, count), None) if number not in taken and count > 1 else None
        if pair is not None:
            taken.update(numbers[each] for each in [pair.back] if each in numbers)
            yield pair


def _pairs(op: ir.Operation, axes: tuple[str, ...], count: int) -> Iterator[Exchange]:
    """One for each dimension that can be cut, that with the largest size first."""
    shape = shape_of(op.operands[0])
    for dimension in sorted(range(len(shape)), key=lambda d: -shape[d]):
        cut = Cut(dimension, shape[dimension])
        exchange = _followed(op, cut, axes, count)
        if exchange is not None and exchange.products:
            yield exchange


def through_all_to_all(op: ir.Operation, cut: Cut, count: int) -> Cut | None:
    """The cut of the result of an all_to_all whose operand is cut."""
    split, concat = (
        ir.IntegerAttr(op.attributes[name]).value
        for name in ("split_dimension", "concat_dimension")
    )
    if split == concat:
        return None if cut.dimension == split else cut
    if cut.dimension == split:
        # The first indices say to which device, so what is cut must be inside of them.
        return replace(cut, outer=cut.outer // count) if cut.outer % count == 0 else None
    return replace(cut, outer=cut.outer * count) if cut.dimension == concat else cut


def _followed(op: ir.Operation, cut: Cut, axes: tuple[str, ...], count: int) -> Exchange | None:
    received = through_all_to_all(op, cut, count)
    if received is None:
        return None
    cuts = {op.operands[0]: cut, op.results[0]: received}
    inside: list[ir.Operation] = []
    for user in _after(op):
        numbers = [k for k, operand in enumerate(user.operands) if operand in cuts]
        if not numbers or user.operands[numbers[0]] == op.operands[0]:
            continue
        operand_cut = cuts[user.operands[numbers[0]]]
        if user.name == ALL_TO_ALL:
            returned = through_all_to_all(user, operand_cut, count)
            if returned is None or whole_axes(user) != axes:
                return None
            cuts[user.results[0]] = returned
            found = Exchange(op, user, axes, count, tuple(inside), cuts)
            return found if _is_closed(found) else None
        result = cut_through(user, numbers[0], operand_cut)
        if result is None or any(
            cut_of_operand(user, k, result) != cuts[user.operands[k]] for k in numbers[1:]
        ):
            return None
        cuts[user.results[0]] = result
        inside.append(user)
    return None


def _after(op: ir.Operation) -> Iterator[ir.Operation]:
    ops = [each.operation for each in op.block.operations]
    yield from ops[ops.index(op) + 1 :]


def _is_closed(exchange: Exchange) -> bool:
    """Whether nothing outside uses what is computed in pieces, but the last result."""
    inside = {exchange.back, *exchange.ops}
    results = [exchange.op.results[0], *(op.results[0] for op in exchange.ops)]
    return all(use.owner.operation in inside for result in results for use in result.uses)
