"""Computes gradients of blocks of layers in chunks of rows.

In the gradient of a block that begins with a gather and ends with a reduce-scatter, rows and their
cotangents are gathered, and products sum over the rows of both. This pass gathers chunks of rows
and never joins them: each product is computed chunk by chunk beside the gather of the next chunk,
products over the rows add up one product for each chunk, and the partial sums over devices, one
for each chunk, go round as in shmap-overlap-product-scatter. In stages, which are for GPUs, each
chunk is scattered beside the last products of the next one, as in shmap-overlap-gather-scatter.

Before:  %g = "stablehlo.all_gather"(%x) <{all_gather_dim = 0, ... axes = ["i"]}>
         %h = stablehlo.dot_general %g, %v, contracting_dims = [1] x [0]
         %y = "stablehlo.reduce_scatter"(stablehlo.dot_general %h, %w)     // its gradient below
         %e = "stablehlo.all_gather"(%dy) <{all_gather_dim = 0, ... axes = ["i"]}>
         %dw = stablehlo.dot_general %h, %e, contracting_dims = [0] x [0]
After, parts=2:
         %g0 = "stablehlo.all_gather"(the first half of the rows of %x)
         %g1 = "stablehlo.all_gather"(the other half)
         %h0 = stablehlo.dot_general %g0, %v           // beside the second gather
         %h1 = stablehlo.dot_general %g1, %v
         // two partial sums, one of %h0, one of %h1, go round the ring in opposite directions
         // %e0, %e1: as %g0, %g1
         %dw0 = stablehlo.dot_general %h0, %e0 : f32
         %dw = stablehlo.convert (stablehlo.add %dw0, (stablehlo.dot_general %h1, %e1 : f32))
In stages, for %y:
         %y0 = "stablehlo.reduce_scatter"(stablehlo.dot_general %h0, %w)
         %y1 = "stablehlo.reduce_scatter"(stablehlo.dot_general %h1, %w)   // beside %y0
         %y = stablehlo.concatenate %y0, %y1
Needs:   what shmap-verify accepts. With form=chosen, the attribute `shmap.overlap` on the first
         gather of each block that is to be rewritten.
Leaves:  gathers without a product that sums over their rows, or without a reduce_scatter of
         products of them; those whose rows anything else reads; devices whose rows, or sequences,
         cannot be cut into `parts` equal chunks; a block that waits for one that is rewritten
         before it.

In attention the rows of a sequence are multiplied by each other, so they stay in one chunk. If
devices have whole sequences, which a reshape takes apart, a chunk has some sequences of each
device. If they have rows of each sequence, as in an array of (sequences, rows, columns), it has
some sequences.

If sums go round, what is computed of a chunk between two gathers is a function that is called for
each chunk. In stages, products of a chunk that read the same array wait for each other, because XLA
for GPUs would merge them, with concatenated weights and sliced results.

What is computed element by element from arrays that are stored, or only moved, such as the halves
of a product, is computed again where it is needed. Sums over the rows of one array, such as the
gradient of a bias, are added up like products, and both in another order. Partial sums are rounded
before they are sent; what is scattered in stages is summed as before. If some axes are automatic,
nothing is rewritten.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from jaxlib.mlir import ir

from ..base import Count
from ..ir.body_form import BodyForm
from ..ir.collective_ops import ALL_GATHER
from .find.row_block import RowBlock
from .find.row_blocks import row_blocks_of
from .form import Empty, Form
from .rewrite.rewriting import RewritingPass, apart
from .rewrite.rings import can_go_round
from .rewrite.row_chunks import compute_in_chunks
from .rewrite.row_stages import compute_in_stages


@dataclass(frozen=True)
class OverlapRowBlock(RewritingPass[RowBlock]):
    """Computes gradients of blocks of layers in chunks of rows."""

    name = "shmap-overlap-row-block"
    code = "SHM-P25"
    needs_body_form = True
    forms = ("row-chunks", "row-stages")
    op_name = ALL_GATHER

    form: Literal["chosen", "row-chunks", "row-stages"] = "chosen"
    parts: Count = 0
    empty: Empty = "zeros"

    def sites(self, ops: Sequence[ir.Operation], body: BodyForm) -> Iterator[RowBlock]:
        return apart(row_blocks_of(body.module), ops)

    def rewrite(self, site: RowBlock, body: BodyForm, form: Form) -> None:
        if form.name == "row-stages":
            compute_in_stages(site, form)
        elif can_go_round(site.op, body, site.count):
            compute_in_chunks(site, body, form)
