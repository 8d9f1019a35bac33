"""Finds products of gathered arrays."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from jaxlib.mlir import ir

from ...ir.body_form import BodyForm
from ...ir.collective_ops import with_whole_axes
from ...ir.elementwise import ELEMENTWISE
from ...ir.ops import Position
from .cuts import Cut, cut_through
from .products import DOT, Product, Role


@dataclass(frozen=True)
class GatheredOperand:
    """A product one of whose operands is a gathered array.

    Attributes:
      chain: the operations with one operand that are between the gather and the product.
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


def _operands(gather: ir.Operation, dimension: int) -> list[GatheredOperand]:
    block_size = ir.RankedTensorType(gather.operands[0].type).shape[dimension]
    count = ir.RankedTensorType(gather.results[0].type).shape[dimension] // max(block_size, 1)
    # The blocks are contiguous: `outer` says how many there are, for what is taken of each.
    found = list(_products(gather, Cut(dimension, block_size, outer=count)))
    return sorted(found, key=lambda operand: Position(operand.product.op))


def _products(gather: ir.Operation, cut: Cut) -> Iterator[GatheredOperand]:
    chain: tuple[ir.Operation, ...] = ()
    pending = [(use, chain, cut) for use in gather.results[0].uses][::-1]
    while pending:
        use, chain, cut = pending.pop()
        user, number = use.owner.operation, use.operand_number
        if user.block != gather.block:
            continue
        if user.name == DOT:
            yield GatheredOperand(chain, Product.of(user), number, cut)
        elif _is_unary(user):
            through = cut_through(user, number, cut)
            if through is not None:
                uses = [*user.results[0].uses]
                pending += [(each, (*chain, user), through) for each in reversed(uses)]


def _is_unary(op: ir.Operation) -> bool:
    is_one = len(op.operands) == len(op.results) == 1
    return is_one and (op.name in ELEMENTWISE or op.name == "stablehlo.transpose")
