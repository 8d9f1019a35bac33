"""Replaces the sum of a product over devices by sums of products of chunks.

Columns are cut rather than rows. A reduce_scatter has the columns cut that it does not scatter.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

from jaxlib.mlir import ir

from ..ir import build
from ..ir.slices import put_at, scalar
from ..ir.types import Value, shape_of
from .cuts import Cut
from .form import Form
from .pieces import barrier, compute, empty, join, piece_type, take
from .released import Ordered
from .scatters import SummedProduct

_USUAL = 4
"""Chunks, if the form does not say how many."""


def sum_in_chunks(summed: SummedProduct, form: Form) -> None:
    """Rewrites the sum, if the product has a free dimension that is that many chunks."""
    found = _chunks(summed, form)
    if found is not None:
        build = functools.partial(_value, summed, found, form)
        with ir.InsertionPoint(summed.op), summed.op.location:
            summed.replace_by("shmap_chunks", form, build)


def ordered_chunks(summed: SummedProduct, form: Form) -> Ordered | None:
    """The product, if others are ordered around its chunks."""
    found = _chunks(summed, form) if form.ordered else None
    if found is None:
        return None
    return Ordered(summed.op, summed.product.op, found.rows, stores=True)


def free_dimensions(summed: SummedProduct, sides: Sequence[int]) -> list[tuple[int, int, int]]:
    """(size, side, dimension of the product) of the free ones of some operands, largest first.

    Those of an operand come before those of the next. Where libtpu sums chunks of rows, it
    transposes each of them before and after.
    """
    product = summed.product
    shape = shape_of(product.result)
    found = [
        (side, product.result_dimension(side, dimension))
        for side in sides
        for dimension in product.free[side]
    ]
    sizes = [(shape[d], side, d) for side, d in found]
    return sorted(sizes, key=lambda each: (sides.index(each[1]), -each[0]))


@dataclass(frozen=True)
class _Chunks:
    """How a product is cut.

    Attributes:
      cuts: of the product and of what is computed from it.
      rows: the number of the operand that each chunk reads as a whole.
      parts: the number of chunks.
    """

    cuts: dict[Value, Cut]
    rows: int
    parts: int


def _chunks(summed: SummedProduct, form: Form) -> _Chunks | None:
    parts = form.parts or _USUAL
    left, right = summed.product.op.operands
    if parts < 2 or left == right:
        return None
    for size, side, dimension in free_dimensions(summed, summed.sides):
        cuts = summed.cuts(Cut(dimension, size))
        if cuts is not None and size % parts == 0:
            return _Chunks(cuts, 1 - side, parts)
    return None


def _value(found: SummedProduct, chunks: _Chunks, form: Form) -> Value:
    cuts, parts = chunks.cuts, chunks.parts
    whole = found.product.op.operands[chunks.rows]
    summed = found.op.operands[0]
    cut = cuts[summed]
    size = cut.size // parts
    ops = (found.product.op, *found.chain)

    def product(part: int, operand: Value) -> Value:
        known = compute(
            ops, {whole: operand}, cuts, size, lambda v, c: take(v, c, part * size, size)
        )
        return known[summed]

    type_ = found.op.results[0].type
    # Each piece is put in its place beside the next sum, which does not wait for that.
    buffer = [empty(type_, form.empty)] if form.in_place else []
    operand, following = whole, product(0, whole)
    pieces: list[Value] = []
    for part in range(parts):
        computed = following
        if form.barriers:
            operand, computed = barrier(operand, computed)
        piece = build.like(found.op, piece_type(found.op.results[0], cut, size), [computed])
        if part + 1 < parts:
            if form.barriers and buffer and part:
                # A piece is in its place before another product is stored.
                operand, *buffer = barrier(operand, *buffer)
            following = product(part + 1, operand)
            if form.barriers:
                piece, following, *buffer = barrier(piece, following, *buffer)
        buffer = [put_at(each, piece, cut.dimension, scalar(part * size)) for each in buffer]
        pieces.append(piece)
    return buffer[0] if buffer else join(pieces, cut, type_, None)
