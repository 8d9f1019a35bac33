"""Which products of a gather can run beside it, and in which way.

A gathered array can be an operand of several products. In the gradient of a product with gathered
weights, one sums over the gathered dimension, and another keeps it and needs results of the first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from ..ir.types import array_bytes, shape_of
from .cuts import Cut
from .gather_chunks import is_cut_by
from .gather_plan import plan
from .gathers import Gather, GatheredOperand

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
    size = shape_of(gather.op.operands[0])[gather.dimension]
    cut = Cut(gather.dimension, size * gather.count)
    found = [_computed("gather-product", gather, gather.multiplied, cut)]
    most = sum(each.product.flops for each in gather.contracted)
    dimension = columns_of(gather) if found[0] is None or most > found[0].flops else None
    if dimension is not None:
        cut = Cut(dimension, shape_of(gather.op.operands[0])[dimension])
        columns = [each for each in gather.contracted if is_cut_by(each, cut)]
        found.append(_computed("gather-contraction", gather, columns, cut))
    possible = [each for each in found if each is not None]
    return max(possible, key=lambda each: each.flops, default=None)


def columns_of(gather: Gather) -> int | None:
    """The largest dimension along which a product over the gathered one can be cut."""
    shape = shape_of(gather.op.operands[0])
    for dimension in sorted(range(len(shape)), key=lambda d: -shape[d]):
        cut = Cut(dimension, shape[dimension])
        others = dimension != gather.dimension
        if others and any(is_cut_by(operand, cut) for operand in gather.contracted):
            return dimension
    return None


def _computed(
    pattern: Pattern, gather: Gather, operands: Sequence[GatheredOperand], cut: Cut
) -> Rewritable | None:
    """What a plan computes in pieces."""
    found = plan(gather, operands, cut) if operands else None
    if found is None:
        return None
    computed = tuple(each for each in operands if each.product.op in found.ops)
    gathered = {gather.op.results[0], *(op.results[0] for each in operands for op in each.chain)}
    kept = sum(array_bytes(out) for out in found.outs if out in gathered)
    return Rewritable(pattern, computed, kept)
