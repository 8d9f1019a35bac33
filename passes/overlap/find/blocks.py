"""Finds what is computed between an all_gather and a reduce_scatter, and can be cut along rows.

In a block of two layers, the first of which has a gathered operand, and the second of which is
summed and scattered, a piece of each device's rows goes through all of it by itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from jaxlib.mlir import ir

from ...ir.body_form import BodyForm
from ...ir.collective_ops import REDUCE_SCATTER, reduction, whole_axes, with_whole_axes
from ...ir.types import Value, shape_of
from .cuts import Cut, cut_of_operand, cut_through
from .products import DOT, Product


@dataclass(frozen=True)
class ScatteredBlock:
    """An all_gather, products of what it gives, and the reduce_scatter of the last product.

    Attributes:
      op, back: the all_gather and the reduce_scatter.
      axes: the group of both, first axis major.
      first: what is computed before the last product, in program order.
      second: the last product, and what is computed from it.
      cuts: of every value that is cut, from the operand of `op` to the result of `back`.
    """

    op: ir.Operation
    back: ir.Operation
    axes: tuple[str, ...]
    count: int
    first: tuple[ir.Operation, ...]
    second: tuple[ir.Operation, ...]
    cuts: dict[Value, Cut]

    @property
    def size(self) -> int:
        """The indices that are cut."""
        return self.cuts[self.op.operands[0]].size

    @property
    def products(self) -> tuple[Product, ...]:
        """The last one is that which is summed."""
        return tuple(Product.of(op) for op in (*self.first, *self.second) if op.name == DOT)

    @property
    def between(self) -> tuple[Value, ...]:
        """What `second` needs of the gathered array and of `first`."""
        results = [result for op in (self.op, *self.first) for result in op.results]
        second = set(self.second)
        return tuple(
            value for value in results if any(use.owner.operation in second for use in value.uses)
        )


def scattered_blocks(ops: Sequence[ir.Operation], form: BodyForm) -> Iterator[ScatteredBlock]:
    """The blocks, over several devices, that begin with some all_gathers.

    They have at least two products.

    Each is looked for when it is asked for, so those before may be rewritten.
    """
    for op, axes in with_whole_axes(ops):
        count = form.mesh.product(axes)
        found = _followed(op, axes, count) if count > 1 else None
        if found is not None:
            yield found


def _followed(op: ir.Operation, axes: tuple[str, ...], count: int) -> ScatteredBlock | None:
    dimension = ir.IntegerAttr(op.attributes["all_gather_dim"]).value
    own = Cut(dimension, shape_of(op.operands[0])[dimension])
    cuts = {op.operands[0]: own, op.results[0]: own.of(count)}
    inside: list[ir.Operation] = []
    ops = [each.operation for each in op.block.operations]
    for user in ops[ops.index(op) + 1 :]:
        cut = _cut(user, op, cuts)
        if cut is None:
            continue
        if user.name == REDUCE_SCATTER:
            returned = _scattered(user, cut, count)
            if returned is None or whole_axes(user) != axes or reduction(user) != "stablehlo.add":
                return None
            cuts[user.results[0]] = returned
            return _block(op, user, axes, count, inside, cuts)
        result = _result(user, cuts)
        if result is None:
            return None
        cuts[user.results[0]] = result
        inside.append(user)
    return None


def _cut(user: ir.Operation, gather: ir.Operation, cuts: dict[Value, Cut]) -> Cut | None:
    """The cut of the first operand that is cut; not of what only the gather has."""
    own = gather.operands[0]
    return next((cuts[each] for each in user.operands if each in cuts and each != own), None)


def _result(user: ir.Operation, cuts: dict[Value, Cut]) -> Cut | None:
    numbers = [k for k, operand in enumerate(user.operands) if operand in cuts]
    result = cut_through(user, numbers[0], cuts[user.operands[numbers[0]]])
    if result is None or any(
        cut_of_operand(user, k, result) != cuts[user.operands[k]] for k in numbers[1:]
    ):
        return None
    return result


def _scattered(op: ir.Operation, cut: Cut, count: int) -> Cut | None:
    """The cut of the result of a reduce_scatter whose operand is cut."""
    dimension = ir.IntegerAttr(op.attributes["scatter_dimension"]).value
    if cut.dimension != dimension:
        return cut
    # The first indices say which device keeps it, so what is cut must be inside of them.
    return cut.of(cut.outer // count) if cut.outer % count == 0 else None


def _block(
    op: ir.Operation,
    back: ir.Operation,
    axes: tuple[str, ...],
    count: int,
    inside: list[ir.Operation],
    cuts: dict[Value, Cut],
) -> ScatteredBlock | None:
    products = [number for number, each in enumerate(inside) if each.name == DOT]
    if len(products) < 2:
        return None
    last = products[-1]
    found = ScatteredBlock(op, back, axes, count, tuple(inside[:last]), tuple(inside[last:]), cuts)
    return found if _is_closed(found) else None


def _is_closed(block: ScatteredBlock) -> bool:
    """Whether nothing outside uses what is computed in pieces, but the last result."""
    ops = (*block.first, *block.second)
    inside = {block.back, *ops}
    results = [block.op.results[0], *(op.results[0] for op in ops)]
    return all(use.owner.operation in inside for result in results for use in result.uses)
