"""Cuts an exchange, the computation on its result, and the exchange back into chunks.

In a layer of experts each device sends tokens to the devices of their experts and receives the
results. Nothing is computed while tokens are being transferred. If the tokens that two devices
exchange are cut into chunks, one chunk is transferred while another is computed.

Before:  %1 = "stablehlo.all_to_all"(%x) <{split_dimension = 0, concat_dimension = 0, ...}>
         %2 = stablehlo.dot_general (stablehlo.reshape %1), %w
         %y = "stablehlo.all_to_all"(stablehlo.reshape %2) <{...}>
After, parts=2:
         // a function that is called for each half of dimension 1 of %x:
         %a = "stablehlo.all_to_all"(stablehlo.slice %x [0:n, 0:c])
         %b = stablehlo.dot_general (stablehlo.reshape %a), %w
         %c = "stablehlo.all_to_all"(stablehlo.reshape %b)
         // is written in place in a buffer, or concatenated
Needs:   what shmap-verify accepts. With form=chosen, the attribute `shmap.overlap` on the first of
         the two.
Leaves:  an all_to_all that does not lead, through products, elementwise operations, transposes and
         reshapes alone, to one over the same axes; one that has other uses; one without a
         dimension that can be cut into `parts` equal chunks.

Each token is computed as before. If some axes are automatic, nothing is rewritten.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from jaxlib.mlir import ir

from ..base import Count
from ..ir.body_form import BodyForm
from ..ir.types import Value
from .find.cuts import Cut
from .find.exchanges import ALL_TO_ALL, Exchange, exchanges_of
from .form import Empty, Form
from .rewrite.called import Alike
from .rewrite.pieces import barrier, compute, empty, join, take
from .rewrite.rewriting import RewritingPass, apart


@dataclass(frozen=True)
class OverlapAllToAll(RewritingPass[Exchange]):
    """Cuts an exchange, the computation on its result, and the exchange back into chunks."""

    name = "shmap-overlap-all-to-all"
    code = "SHM-P18"
    keeps_bits = True
    needs_body_form = True
    forms = ("chunks",)
    op_name = ALL_TO_ALL

    form: Literal["chosen", "chunks"] = "chosen"
    parts: Count = 0
    empty: Empty = "zeros"
    barriers: bool = False

    def sites(self, ops: Sequence[ir.Operation], body: BodyForm) -> Iterator[Exchange]:
        return apart(exchanges_of(body.module), ops)

    def rewrite(self, site: Exchange, body: BodyForm, form: Form) -> None:
        parts = form.chunks(site.size)
        if parts:
            _rewrite(site, parts, form)


def _rewrite(exchange: Exchange, parts: int, form: Form) -> None:
    result = exchange.back.results[0]
    with ir.InsertionPoint(exchange.back), exchange.op.location:
        type_ = result.type
        buffer = empty(type_, form.empty) if form.in_place else None
        pieces = _pieces(exchange, parts, form)
        joined = join(pieces, exchange.cuts[result], type_, buffer)
    result.replace_all_uses_with(joined)
    for op in reversed(exchange.all_ops):
        op.erase()


def _pieces(exchange: Exchange, parts: int, form: Form) -> list[Value]:
    sent = exchange.op.operands[0]
    own = sent, exchange.sent
    result = exchange.back.results[0]
    size = exchange.size // parts

    def computed(known: dict[tuple[Value, Cut], Value]) -> list[Value]:
        def take_piece(value: Value, cut: Cut) -> Value:
            if (value, cut) not in known:
                with ir.InsertionPoint(exchange.back):  # outside of the function of a chunk
                    known[value, cut] = take(value, cut, 0, size)
            return known[value, cut]

        pieces = {sent: known[own]}
        return [compute(exchange.all_ops, pieces, exchange.cuts, size, take_piece)[result]]

    compute_chunk = Alike("shmap_chunk", computed)
    known: dict[tuple[Value, Cut], Value] = {}
    pieces: list[Value] = []
    for part in range(parts):
        known = {(value, cut): take(value, cut, part * size, size) for value, cut in known or [own]}
        if form.barriers and pieces:
            known[own], pieces[-1] = barrier(known[own], pieces[-1])
        pieces += compute_chunk(known)
    return pieces
