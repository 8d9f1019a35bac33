"""Multiplies gathered blocks while others are being transferred.

A product with a gathered operand waits for the last block, although each block of the result needs
one block of the operand. This pass passes the blocks around a ring of devices and multiplies each
one when it arrives. Both directions of the links are used: one half of each block travels one way,
the other half the other way. Elementwise operations on the product are computed on the pieces, too.

Before:  %g = "stablehlo.all_gather"(%x) <{all_gather_dim = 0, ... axes = ["i"]}>     // i has 8
         %y = stablehlo.dot_general %g, %w, contracting_dims = [1] x [0]
         %z = stablehlo.tanh %y
After, form=ring:
         %buffer = stablehlo.custom_call @AllocateBuffer()
         %u, %l = stablehlo.slice %x [0:h], %x [h:2*h]
         %u1, %l1 = collective_permute %u, %l                    // one backward, one forward
         %p = stablehlo.tanh (stablehlo.dot_general %x, %w)
         %z1 = stablehlo.dynamic_update_slice %buffer, %p, the start of the own block
         %z2, %u2, %l2 = stablehlo.optimization_barrier %z1, %u1, %l1
         %z3, %u3, %l3 = call @shmap_step(%z2, %u2, %l2, the numbers of two members, %w)
         // and 5 more steps, each of which sends the halves on, multiplies them and puts the
         // results in place; in the last one, nothing is sent
After, form=rows parts=2:
         %g0 = "stablehlo.all_gather"(stablehlo.slice %x [0:h])
         %x1, %h0 = stablehlo.optimization_barrier (stablehlo.slice %x [h:2*h]), %g0
         %g1 = "stablehlo.all_gather"(%x1)
         %z0 = stablehlo.tanh (stablehlo.dot_general %h0, %w)
         // and so on: a gather beside each product; the rows are put in order at the end
Needs:   what shmap-verify accepts. With form=chosen, the attribute `shmap.overlap` on the gathers
         that are to be rewritten.
Leaves:  gathers of which no product has the gathered dimension as a free or batch dimension; those
         whose results are needed too early; those whose blocks cannot be cut into two halves, or
         into `parts` equal chunks.

On a ring of more than 16 devices the steps are a loop, two per iteration. The gather is
kept where groups have more than 256 devices or the mesh has more than 4096, because permutations
list all of them, and where only some devices may reach it, as in a branch. Other uses of the
gathered array read an array assembled from the pieces. If some axes are
automatic, nothing is rewritten.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from jaxlib.mlir import ir

from ..base import Count
from ..ir.body_form import BodyForm
from ..ir.collective_ops import ALL_GATHER
from .find.gathers import Gather, gathers
from .form import Empty, Form
from .rewrite.gather_chunks import gather_in_chunks
from .rewrite.gather_ring import gather_by_ring
from .rewrite.rewriting import RewritingPass


@dataclass(frozen=True)
class OverlapGatherProduct(RewritingPass[Gather]):
    """Multiplies gathered blocks while others are being transferred."""

    name = "shmap-overlap-gather-product"
    code = "SHM-P15"
    keeps_bits = True
    needs_body_form = True
    forms = ("ring", "rows")
    op_name = ALL_GATHER

    form: Literal["chosen", "ring", "rows"] = "chosen"
    parts: Count = 0
    empty: Empty = "zeros"

    def sites(self, ops: Sequence[ir.Operation], body: BodyForm) -> Iterator[Gather]:
        return (gather for gather in gathers(ops, body) if gather.multiplied)

    def rewrite(self, site: Gather, body: BodyForm, form: Form) -> None:
        if form.name == "rows":
            gather_in_chunks(site, site.dimension, form)
        else:
            gather_by_ring(site, body, form)
