"""Which products of a gather can run beside it, and in which way.

A gathered array can be an operand of several products. In the gradient of a product with gathered
weights, one sums over the gathered dimension, and another keeps it and needs results of the first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from ...ir.elementwise import ELEMENTWISE
from ...ir.types import Value, array_bytes, shape_of
from ..find.cuts import Cut
from ..find.gathers import Gather, GatheredOperand
from ..rewrite.gather_chunks import is_cut_by
from ..rewrite.gather_plan import Plan, plan, plan_of_all

Pattern = Literal["gather-product", "gather-contraction"]


@dataclass(frozen=True)
class Rewritable:
    """Products that can be computed in pieces of what is gathered.

    Attributes:
      pattern: which pass rewrites them.
      operands: at least one, in program order.
      kept: the bytes of what is gathered that is put together from its pieces, because other
        operations read it.
    """

    pattern: Pattern
    operands: tuple[GatheredOperand, ...]
    kept: int

    @property
    def flops(self) -> int:
        return sum(each.product.flops for each in self.operands)


def rewritable(gather: Gather) -> Rewritable | None:
    """The products of one pattern, the one with more operations if both are possible."""
    shape = shape_of(gather.op.operands[0])
    cut = Cut(gather.dimension, shape[gather.dimension] * gather.count)
    found = [_computed("gather-product", gather, gather.multiplied, cut)]
    most = sum(each.product.flops for each in gather.contracted)
    dimension = columns_of(gather) if found[0] is None or most > found[0].flops else None
    if dimension is not None:
        cut = Cut(dimension, shape[dimension])
        columns = [each for each in gather.contracted if is_cut_by(gather, each, cut)]
        found.append(_computed("gather-contraction", gather, columns, cut))
    possible = [each for each in found if each is not None]
    return max(possible, key=lambda each: each.flops, default=None)


def columns_of(gather: Gather) -> int | None:
    """The largest dimension along which a product over the gathered one can be cut."""
    shape = shape_of(gather.op.operands[0])
    for dimension in sorted(range(len(shape)), key=lambda d: -shape[d]):
        cut = Cut(dimension, shape[dimension])
        others = dimension != gather.dimension
        if others and any(is_cut_by(gather, operand, cut) for operand in gather.contracted):
            return dimension
    return None


def _computed(
    pattern: Pattern, gather: Gather, operands: Sequence[GatheredOperand], cut: Cut
) -> Rewritable | None:
    """What a plan computes in pieces."""
    if not operands:
        return None
    gathered = [gather.op.results[0], *(op.results[0] for each in operands for op in each.chain)]
    found = plan_of_all(gather, operands, cut, with_consumers=False)
    # With what is computed from the products, it is the same plan here, unless that reads what is
    # gathered, or comes before what a product needs.
    if found is None or any(_may_consume(found, value) for value in gathered):
        found = plan(gather, operands, cut)
    if found is None:
        return None
    computed = tuple(each for each in operands if each.product.op in found.ops)
    kept = sum(array_bytes(out) for out in {*gathered}.intersection(found.outs))
    return Rewritable(pattern, computed, kept)


def _may_consume(found: Plan, value: Value) -> bool:
    """Whether an elementwise operation that a plan does not have reads a value."""
    users = [use.owner.operation for use in value.uses] if value in found.outs else []
    return any(user.name in ELEMENTWISE and user not in found.ops for user in users)
