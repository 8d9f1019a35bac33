"""Replaces a reduce_scatter of a product by reduce_scatters of products of chunks of columns."""

from __future__ import annotations

from jaxlib.mlir import ir

from ..ir.types import Value, shape_of
from .cuts import Cut, cut_through
from .form import Form
from .pieces import barrier, compute, empty, join, piece_type, take
from .scatters import ScatteredProduct

_USUAL = 4
"""Chunks, if the form does not say how many."""


def scatter_in_chunks(scattered: ScatteredProduct, form: Form) -> None:
    """Rewrites the reduce_scatter, if it has columns that are that many chunks."""
    parts = form.parts or _USUAL
    sides = scattered.product.operand_dimensions(scattered.cut.dimension)
    left, right = scattered.product.op.operands
    if len(sides) != 1 or parts < 2 or left == right:
        return
    (rows,) = sides
    shape = shape_of(scattered.product.result)
    columns = [
        scattered.product.result_dimension(1 - rows, dimension)
        for dimension in scattered.product.free[1 - rows]
    ]
    for dimension in sorted(columns, key=lambda d: -shape[d]):
        cuts = _cuts(scattered, Cut(dimension, shape[dimension]))
        if cuts is not None and shape[dimension] % parts == 0:
            with ir.InsertionPoint(scattered.op), scattered.op.location:
                scattered.replace(_value(scattered, cuts, rows, parts, form))
            return


def _cuts(scattered: ScatteredProduct, cut: Cut) -> dict[Value, Cut] | None:
    """The cuts of the product and of what is computed from it."""
    cuts = {scattered.product.result: cut}
    for op in scattered.chain:
        through = cut_through(op, 0, cuts[op.operands[0]])
        if through is None:
            return None
        cuts[op.results[0]] = through
    return cuts


def _value(
    scattered: ScatteredProduct, cuts: dict[Value, Cut], rows: int, parts: int, form: Form
) -> Value:
    whole = scattered.product.op.operands[rows]
    summed = scattered.op.operands[0]
    cut = cuts[summed]
    size = cut.size // parts
    ops = (scattered.product.op, *scattered.chain)

    def product(part: int, operand: Value) -> Value:
        known = compute(
            ops, {whole: operand}, cuts, size, lambda v, c: take(v, c, part * size, size)
        )
        return known[summed]

    operand, following = whole, product(0, whole)
    pieces: list[Value] = []
    for part in range(parts):
        computed = following
        if form.barriers:
            operand, computed = barrier(operand, computed)
        piece = _scatter(scattered.op, computed, cut, size)
        if part + 1 < parts:
            following = product(part + 1, operand)
            if form.barriers:
                piece, following = barrier(piece, following)
        pieces.append(piece)
    type_ = scattered.op.results[0].type
    return join(pieces, cut, type_, empty(type_, form.empty) if form.in_place else None)


def _scatter(op: ir.Operation, value: Value, cut: Cut, size: int) -> Value:
    copy = ir.Operation.create(
        op.name,
        results=[piece_type(op.results[0], cut, size)],
        operands=[value],
        attributes={name: op.attributes[name] for name in op.attributes},
        regions=1,
    )
    copy_reduction(op, copy)
    return copy.results[0]


def copy_reduction(op: ir.Operation, to: ir.Operation) -> None:
    """Gives a collective the region, of one operation, with which another combines values."""
    old = op.regions[0].blocks[0]
    arguments = list(old.arguments)
    block = ir.Block.create_at_start(
        to.regions[0], [each.type for each in arguments], [op.location] * len(arguments)
    )
    new = dict(zip(arguments, block.arguments, strict=True))
    with ir.InsertionPoint(block):
        for each in old.operations:
            clone = each.operation.clone()
            for number, operand in enumerate(each.operation.operands):
                clone.operation.operands[number] = new.get(operand, operand)
            for result, copied in zip(each.operation.results, clone.operation.results, strict=True):
                new[result] = copied
