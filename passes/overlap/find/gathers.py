"""Finds products of gathered arrays."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from jaxlib.mlir import ir

from ...ir.body_form import BodyForm
from ...ir.collective_ops import with_whole_axes
from ...ir.elementwise import ELEMENTWISE
from ...ir.ops import Position, defining_op
from ...ir.types import Value, shape_of
from .consumers import cut_of_consumer, users_of
from .cuts import TRANSPOSE, Cut, cut_through
from .products import DOT, Product, Role

MOST_COMBINED = 32
"""Operations with several operands after a gather that are looked at, and for each of these, those
that compute the others of its operands after the gather."""


@dataclass(frozen=True)
class GatheredOperand:
    """A product one of whose operands is a gathered array.

    Attributes:
      chain: the operations between the gather and the product, in program order. They are computed
        element by element, or transpose.
      side: which operand; 0 is the left one.
      cut: the gathered dimension of the operand; its `size` is that of one block.
    """

    chain: tuple[ir.Operation, ...]
    product: Product
    side: int
    cut: Cut

    @property
    def role(self) -> Role:
        return self.product.role(self.side, self.cut.dimension)


@dataclass(frozen=True)
class Gather:
    """An all_gather over mesh axes, and the products of its block that it is an operand of.

    Attributes:
      axes: the group, first axis major.
      count: the number of devices in the group.
      dimension: the gathered one.
      operands: the uses as an operand of a product, of all roles, in program order.
    """

    op: ir.Operation
    axes: tuple[str, ...]
    count: int
    dimension: int
    operands: tuple[GatheredOperand, ...]

    @property
    def multiplied(self) -> tuple[GatheredOperand, ...]:
        """The products that can be computed block by block."""
        return tuple(each for each in self.operands if each.role != "contracted")

    @property
    def contracted(self) -> tuple[GatheredOperand, ...]:
        """The products that sum over the gathered dimension."""
        return tuple(each for each in self.operands if each.role == "contracted")


def gathers(ops: Sequence[ir.Operation], form: BodyForm) -> Iterator[Gather]:
    """Those of some all_gathers that are over several devices, each with its products.

    The products are looked for when a gather is asked for, so those before may be rewritten.
    """
    for op, axes in with_whole_axes(ops):
        count = form.mesh.product(axes)
        if count > 1:
            dimension = ir.IntegerAttr(op.attributes["all_gather_dim"]).value
            yield Gather(op, axes, count, dimension, tuple(_operands(op, dimension)))


def _operands(gather: ir.Operation, dimension: int) -> Iterator[GatheredOperand]:
    """The uses as an operand of a product, in program order."""
    whole = gather.results[0]
    size = shape_of(gather.operands[0])[dimension]
    # The blocks are contiguous: `outer` says how many there are, for what is taken of each.
    cut = Cut(dimension, size, outer=shape_of(whole)[dimension] // max(size, 1))
    cuts: dict[Value, Cut] = {whole: cut}
    chains: dict[Value, tuple[ir.Operation, ...]] = {whole: ()}
    reached = users_of(whole)
    pending = [Position(op) for op in reached if op.block == gather.block]
    heapq.heapify(pending)
    combined = 0
    while pending:
        user = heapq.heappop(pending).op
        known = [number for number, value in enumerate(user.operands) if value in cuts]
        if user.name == DOT:
            for number in known:
                value = user.operands[number]
                yield GatheredOperand(chains[value], Product.of(user), number, cuts[value])
            continue
        combined += len(user.operands) > 1
        through = _through(user, cuts, gather) if combined <= MOST_COMBINED else None
        if through is None:
            continue
        result = user.results[0]
        cuts[result] = through
        chains[result] = (*_joined([chains[user.operands[number]] for number in known]), user)
        new = {op for op in users_of(result) if op.block == gather.block} - reached
        reached |= new
        for op in new:
            heapq.heappush(pending, Position(op))


def _joined(chains: Sequence[tuple[ir.Operation, ...]]) -> Sequence[ir.Operation]:
    """Each operation of some chains once, in program order."""
    if len(chains) == 1:
        return chains[0]
    return sorted({op for chain in chains for op in chain}, key=Position)


def _through(op: ir.Operation, cuts: Mapping[Value, Cut], gather: ir.Operation) -> Cut | None:
    """The cut of what is computed element by element of a gathered array, or a transposed one.

    Args:
      cuts: of the gathered array, and of what is computed of it.
    """
    if op.name == TRANSPOSE:
        return cut_through(op, 0, cuts[op.operands[0]])
    if op.name not in ELEMENTWISE:
        return None
    others = [value for value in op.operands if value not in cuts]
    return cut_of_consumer(op, cuts) if all(_is_apart(each, gather) for each in others) else None


def _is_apart(value: Value, gather: ir.Operation) -> bool:
    """Whether few operations compute a value, and none of a gathered array."""
    pending, seen = [value], {value}
    while pending:
        source = defining_op(pending.pop())
        if source is None or source.block != gather.block or source.is_before_in_block(gather):
            continue
        if source == gather or len(source.regions) or len(seen) > MOST_COMBINED:
            return False
        pending += {*source.operands} - seen
        seen.update(source.operands)
    return True
