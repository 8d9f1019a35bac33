"""Replaces the sum of products over devices by sums of products of chunks.

Columns are cut rather than rows. A reduce_scatter has the columns cut that it does not scatter.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

from jaxlib.mlir import ir

from ...ir import build
from ...ir.slices import put_at, scalar
from ...ir.types import Value, shape_of
from ..find.cuts import Cut
from ..find.scatters import SummedProducts
from ..form import Form
from .pieces import barrier, compute, empty, join, piece_type, take
from .released import Ordered
from .replaced_sums import replace_sum


def sum_in_chunks(summed: SummedProducts, form: Form) -> None:
    """Rewrites the sum, if the products have a free dimension that is that many chunks."""
    found = _chunks(summed, form)
    if found is not None:
        build = functools.partial(_value, summed, found, form)
        with ir.InsertionPoint(summed.op), summed.op.location:
            replace_sum(summed, "shmap_chunks", form, build)


def can_sum_in_chunks(summed: SummedProducts, form: Form) -> bool:
    """Whether `sum_in_chunks` rewrites the sum."""
    return _chunks(summed, form) is not None


def ordered_chunks(summed: SummedProducts, form: Form) -> Ordered | None:
    """The products, if others are ordered around their chunks."""
    found = _chunks(summed, form) if form.ordered else None
    if found is None:
        return None
    products = tuple(product.op for product in summed.products)
    return Ordered(summed.op, products, found.rows, stores=True)


def free_dimensions(summed: SummedProducts, sides: Sequence[int]) -> list[tuple[int, int, int]]:
    """(size, side, dimension) of what is summed by the operand of the first product that has it.

    Only free ones of operands among `sides`, largest first; those of an operand come before those
    of the next. Where libtpu sums chunks of rows, it transposes each of them before and after.
    """
    shape = shape_of(summed.summed)
    found: list[tuple[int, int, int, int]] = []
    for dimension, size in enumerate(shape):
        of_first = summed.operands_with(dimension)[0]
        if len(of_first) == 1 and (side := min(of_first)) in sides:
            found.append((sides.index(side), -size, of_first[side], dimension))
    return [(shape[d], sides[number], d) for number, _, _, d in sorted(found)]


def whole_operands(summed: SummedProducts, dimension: int) -> tuple[int, ...] | None:
    """Of each product, the number of the operand that is not cut if a dimension of the sum is.

    None if the other one is not cut alone, or if it is whole for another product.
    """
    cut = summed.operands_with(dimension)
    if any(len(sides) != 1 for sides in cut):
        return None
    numbers = tuple(map(min, cut))
    rows = tuple(1 - number for number in numbers)
    return None if {*_operands(summed, numbers)} & {*_operands(summed, rows)} else rows


def _operands(summed: SummedProducts, numbers: Sequence[int]) -> list[Value]:
    """One operand of each product, each once."""
    pairs = zip(summed.products, numbers, strict=True)
    return list(dict.fromkeys(product.op.operands[number] for product, number in pairs))


@dataclass(frozen=True)
class _Chunks:
    """How products are cut.

    Attributes:
      cuts: of the products and of what is computed from them.
      rows: of each product, the number of the operand that each chunk reads as a whole.
      parts: the number of chunks.
    """

    cuts: dict[Value, Cut]
    rows: tuple[int, ...]
    parts: int


def _chunks(summed: SummedProducts, form: Form) -> _Chunks | None:
    for size, _, dimension in free_dimensions(summed, summed.sides):
        parts = form.chunks(size)
        cuts, rows = summed.cuts(Cut(dimension, size)), whole_operands(summed, dimension)
        if cuts is not None and rows is not None and parts:
            return _Chunks(cuts, rows, parts)
    return None


def _value(found: SummedProducts, chunks: _Chunks, form: Form) -> Value:
    cuts, parts = chunks.cuts, chunks.parts
    whole = _operands(found, chunks.rows)
    cut = cuts[found.summed]
    size = cut.size // parts

    def computed(part: int, rows: Sequence[Value]) -> Value:
        known = dict(zip(whole, rows, strict=True))

        def piece(value: Value, cut: Cut) -> Value:
            return take(value, cut, part * size, size)

        return compute(found.ops, known, cuts, size, piece)[found.summed]

    type_ = found.op.results[0].type
    # Each piece is put in its place beside the next sum, which does not wait for that.
    buffer = [empty(type_, form.empty)] if form.in_place else []
    rows, following = whole, computed(0, whole)
    pieces: list[Value] = []
    for part in range(parts):
        current = following
        if form.barriers:
            *rows, current = barrier(*rows, current)
        piece = build.like(found.op, piece_type(found.op.results[0], cut, size), [current])
        if part + 1 < parts:
            if form.barriers and buffer and part:
                # A piece is in its place before another product is stored.
                *rows, buffer[0] = barrier(*rows, *buffer)
            following = computed(part + 1, rows)
            if form.barriers:
                piece, following, *buffer = barrier(piece, following, *buffer)
        buffer = [put_at(each, piece, cut.dimension, scalar(part * size)) for each in buffer]
        pieces.append(piece)
    return buffer[0] if buffer else join(pieces, cut, type_, None)
