"""Computes gradients of layers of experts in chunks.

In the gradient of a layer of experts, tokens are exchanged twice, their cotangents twice, and
products sum over the tokens that a device has received. This pass exchanges chunks, each while
another is computed, and joins nothing that is between exchanges: products over the tokens add up
one product for each chunk, in f32 if they are shorter. If each device has a multiple of four
experts, a chunk is some of them: each weight is read once, and nothing is added up.

Before:  %e = "stablehlo.all_to_all"(%dy) <{split_dimension = 0, concat_dimension = 0, ...}>
         %f = stablehlo.reshape %e
         %dw = stablehlo.dot_general %h, %f, contracting_dims = [0] x [0]
         %dx = "stablehlo.all_to_all"(stablehlo.reshape (stablehlo.dot_general %f, %w))
After, parts=2:
         %e0 = "stablehlo.all_to_all"(the first half of the tokens for each device)
         %e1 = "stablehlo.all_to_all"(the other half, when %e0 is there)
         %d0 = "stablehlo.all_to_all"(stablehlo.dot_general %e0, %w)    // when %e1 is there
         %dw0 = stablehlo.dot_general (half of %h), %e0 : f32
         %d1 = "stablehlo.all_to_all"(stablehlo.dot_general %e1, %w)    // when %d0 is there
         %dw = stablehlo.convert (stablehlo.add %dw0, (stablehlo.dot_general ... : f32))
         // %dx is %d0 and %d1, written in place in what was sent, if nothing else reads it, or in
         // a buffer, or concatenated
Needs:   what shmap-verify accepts. With form=chosen, the attribute `shmap.overlap` on the first
         all_to_all of each block that is to be rewritten.
Leaves:  all_to_alls without a product of two arrays that they exchange, such as the gradient of a
         weight; those of which anything else reads other products, or what arrives first; those
         without a dimension that can be cut into `parts` equal chunks.

What others read of results that are exchanged back is joined. Sums are added in another order; with
`ordered`, each is stored before the product of the next chunk. If some axes are automatic, nothing
is rewritten.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from jaxlib.mlir import ir

from ..base import Count
from ..ir.body_form import BodyForm
from .find.exchange_blocks import ExchangeBlock, exchange_blocks_of
from .find.exchanges import ALL_TO_ALL
from .form import Empty, Form
from .rewrite.exchange_chunks import exchange_in_chunks
from .rewrite.rewriting import RewritingPass, apart


@dataclass(frozen=True)
class OverlapExchangeBlock(RewritingPass[ExchangeBlock]):
    """Computes gradients of layers of experts in chunks."""

    name = "shmap-overlap-exchange-block"
    code = "SHM-P26"
    needs_body_form = True
    forms = ("summed-chunks",)
    op_name = ALL_TO_ALL

    form: Literal["chosen", "summed-chunks"] = "chosen"
    parts: Count = 0
    empty: Empty = "zeros"
    barriers: bool = True
    ordered: bool = False

    def sites(self, ops: Sequence[ir.Operation], body: BodyForm) -> Iterator[ExchangeBlock]:
        return apart(exchange_blocks_of(body.module), ops)

    def rewrite(self, site: ExchangeBlock, body: BodyForm, form: Form) -> None:
        exchange_in_chunks(site, form)
