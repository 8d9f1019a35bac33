"""Replaces a gather, and products of it, by gathers of chunks and products of these."""

from __future__ import annotations

from jaxlib.mlir import ir

from ...ir import build
from ...ir.types import Value, shape_of
from ..find.cuts import Cut, cut_through
from ..find.gathers import Gather, GatheredOperand
from ..form import Form
from .gather_plan import Plan, cut_of_result, plan
from .pieces import barrier, compute, empty, join, piece_type, put, take


def gather_in_chunks(gather: Gather, dimension: int, form: Form) -> None:
    """Rewrites the products of a gather that can be computed in chunks along a dimension of it.

    Nothing is rewritten if the dimension is not that many chunks.
    """
    size = shape_of(gather.op.operands[0])[dimension]
    parts = form.chunks(size)
    if not parts:
        return
    # Of each block the same rows: they are not contiguous in the gathered array.
    outer = gather.count if dimension == gather.dimension else 1
    cut = Cut(dimension, size, outer)
    operands = [each for each in gather.operands if is_cut_by(gather, each, cut)]
    found = plan(gather, operands, cut) if operands else None
    if found is None:
        return
    with ir.InsertionPoint(found.before), gather.op.location:
        own = Cut(dimension, size)
        found.replace_by("shmap_chunks", form, lambda: _values(found, gather, own, parts, form))


def is_cut_by(gather: Gather, operand: GatheredOperand, cut: Cut) -> bool:
    """Whether a product can be computed on chunks of what is gathered."""
    cuts = {gather.op.results[0]: cut}
    for op in operand.chain:
        through = cut_of_result(op, cuts)
        if through is None:
            return False
        cuts[op.results[0]] = through
    product = operand.product.op
    return cut_through(product, operand.side, cuts[product.operands[operand.side]]) is not None


def _values(found: Plan, gather: Gather, own: Cut, parts: int, form: Form) -> list[Value]:
    """What takes the place of the plan's outs; `own` is the cut of what a device gathers."""
    size = own.size // parts
    block = gather.op.operands[0]
    gathered = _gather(gather.op, take(block, own, 0, size), found, size)
    pieces: list[list[Value]] = []
    whole = found.replaced if form.in_place else None
    for part in range(parts):
        following: Value | None = None
        if part + 1 < parts:
            chunk = take(block, own, (part + 1) * size, size)
            if form.barriers:
                chunk, gathered = barrier(chunk, gathered)
            following = _gather(gather.op, chunk, found, size)
        outs = _computed(found, gathered, part, size, whole)
        if following is not None:
            if form.barriers:
                *outs, following = barrier(*outs, following)
            gathered = following
        if whole is not None:
            whole = put(whole, outs[0], found.cuts[found.outs[0]], part * size, size)
        pieces.append(outs)
    if whole is not None:
        return [whole]
    return [
        join(
            each,
            found.cuts[out],
            out.type,
            empty(out.type, form.empty) if form.in_place else None,
        )
        for out, *each in zip(found.outs, *pieces, strict=True)
    ]


def _gather(gather: ir.Operation, chunk: Value, found: Plan, size: int) -> Value:
    result = gather.results[0]
    return build.like(gather, piece_type(result, found.cuts[result], size), [chunk])


def _computed(
    found: Plan, gathered: Value, part: int, size: int, whole: Value | None
) -> list[Value]:
    """The pieces of the plan's outs.

    Args:
      whole: what has the pieces before in the place of an array; None if no array is replaced.
    """

    def take_piece(value: Value, cut: Cut) -> Value:
        if whole is not None and found.is_replaced(value):
            value = whole
        return take(value, cut, part * size, size)

    known = compute(found.ops, {found.gather.results[0]: gathered}, found.cuts, size, take_piece)
    return [known[out] for out in found.outs]
