"""Replaces a gather, and products of it, by a ring: pieces are sent on and multiplied."""

from __future__ import annotations

from collections.abc import Sequence

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from ..ir.body_form import BodyForm
from ..ir.slices import put_at, take_at
from ..ir.types import Value, shape_of
from .cuts import Cut
from .form import Form
from .gather_plan import Plan, plan
from .gathers import Gather
from .pieces import barrier, compute, element_of, empty, take, tensor
from .products import DOT, has_default_precision
from .rings import can_go_round, place_in, ring

Places = Sequence[tuple[Value, int]]
"""The first index and the size of each part of a piece, in the whole array."""


def gather_by_ring(gather: Gather, body: BodyForm, form: Form) -> None:
    """Rewrites the products of a gather that can be computed block by block.

    Nothing is rewritten if blocks cannot be halved or cannot go round.
    """
    block = gather.op.operands[0]
    size = shape_of(block)[gather.dimension]
    if size < 2 or not can_go_round(gather.op, body, gather.count):
        return
    found = plan(gather, gather.multiplied, Cut(gather.dimension, size * gather.count))
    if found is None:
        return
    with ir.InsertionPoint(found.before), gather.op.location:
        found.replace(_values(found, gather, body, form))


def _values(found: Plan, gather: Gather, body: BodyForm, form: Form) -> dict[Value, Value]:
    """What takes the place of the plan's outs."""
    around = ring(body, gather.axes, form.order)
    block = gather.op.operands[0]
    size = shape_of(block)[gather.dimension]
    half, whole = size // 2, size * around.count
    starts = around.starts(size)
    narrow = form.narrow and _can_narrow(found)
    wholes = [empty(out.type, form.empty) for out in found.outs]
    cut = Cut(gather.dimension, size)
    halves = [take(block, cut, 0, half), take(block, cut, half, size - half)]
    if narrow:
        halves = [_convert(each, ir.BF16Type.get()) for each in halves]
    for step in range(around.count):
        is_last = step == around.count - 1
        sent = (
            []
            if is_last
            else [around.shift(half_, by) for half_, by in zip(halves, (1, -1), strict=True)]
        )
        if step == 0:
            # The whole own block is one product.
            pieces = [(block, [(place_in(whole, starts[0]), size)])]
        else:
            if narrow:
                halves = [_convert(each, element_of(block)) for each in halves]
            places = [
                (place_in(whole, starts[step]), half),
                (place_in(whole, starts[-step], half), size - half),
            ]
            pieces = [(each, [place]) for each, place in zip(halves, places, strict=True)]
            if form.stacked:
                pieces = [(stablehlo.concatenate(halves, gather.dimension), places)]
        for piece, where in pieces:
            wholes = _put(found, wholes, piece, where)
        halves = sent
        if sent and form.barriers:
            *wholes, first, second = barrier(*wholes, *sent)
            halves = [first, second]
    return dict(zip(found.outs, wholes, strict=True))


def _put(found: Plan, wholes: Sequence[Value], piece: Value, where: Places) -> list[Value]:
    """Computes with a piece of the gathered array, and puts the results in their places."""

    def take_piece(value: Value, cut: Cut) -> Value:
        parts = [take_at(value, cut.dimension, start, size) for start, size in where]
        return parts[0] if len(parts) == 1 else stablehlo.concatenate(parts, cut.dimension)

    size = sum(each for _, each in where)
    gathered = found.gather.results[0]
    known = compute(found.ops, {gathered: piece}, found.cuts, size, take_piece)
    put: list[Value] = []
    for out, whole in zip(found.outs, wholes, strict=True):
        dimension, first = found.cuts[out].dimension, 0
        for start, each in where:
            part = take(known[out], Cut(dimension, size), first, each)
            whole = put_at(whole, part, dimension, start)
            first += each
        put.append(whole)
    return put


def _can_narrow(found: Plan) -> bool:
    """Whether products round what is gathered to bf16 in any case, on chips that do so."""
    gathered = found.gather.results[0]
    products = [op for op in found.ops if op.name == DOT]
    return (
        isinstance(element_of(gathered), ir.F32Type)
        and gathered not in found.outs
        and all(use.owner.operation in products for use in gathered.uses)
        and all(has_default_precision(op) for op in products)
    )


def _convert(value: Value, element: ir.Type) -> Value:
    return stablehlo.convert(tensor(shape_of(value), element), value)
