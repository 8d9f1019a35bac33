"""Computes attention some sequences at a time, with gathers and sums beside that of others.

Attention has few products with the rows that are gathered, and with those that are summed, but it
takes long to compute its scores. This pass gathers chunks of sequences, computes each of them up to
the sum over devices beside the gather of the next chunk, and scatters it beside all that is
computed of the next one. Scores of one chunk are in memory at a time.

Before:  %g = "stablehlo.all_gather"(%x) <{all_gather_dim = 1, ... axes = ["i"]}>
         %q = stablehlo.dot_general %g, %v, contracting_dims = [2] x [0]   // %k as well
         %s = stablehlo.dot_general %q, %k, batching_dims = [0] x [0], contracting_dims = [2] x [2]
         %a = stablehlo.dot_general (stablehlo.exponential %s), %k, batching_dims = [0] x [0], ...
         %z = stablehlo.dot_general %a, %w, contracting_dims = [2] x [0]
         %y = "stablehlo.reduce_scatter"(%z) <{scatter_dimension = 1, ... axes = ["i"]}> ({ add })
After, parts=2:
         %g0 = "stablehlo.all_gather"(stablehlo.slice %x [0:b])
         %x1, %c0 = stablehlo.optimization_barrier (stablehlo.slice %x [b:2*b]), %g0
         %g1 = "stablehlo.all_gather"(%x1)                      // beside all of the first chunk
         %a0 = call @shmap_sequences(%c0, ...)                  // %q, %k, %s and %a of the chunk
         %r0, %c1 = stablehlo.optimization_barrier %a0, %g1
         %y0 = "stablehlo.reduce_scatter"(stablehlo.dot_general %r0, %w)
         %a1 = call @shmap_sequences(%c1, ...)                  // beside %y0
         %r1, %d0 = stablehlo.optimization_barrier %a1, %y0
         %y1 = "stablehlo.reduce_scatter"(stablehlo.dot_general %r1, %w)
         // %d0 and %y1 are put in place in a buffer, or concatenated
Needs:   what shmap-verify accepts. With form=chosen, the attribute `shmap.overlap` on the gathers.
Leaves:  a gather that does not lead to one reduce_scatter over the same axes, through a product of
         two arrays that have its sequences; one whose rows, or what is computed of them, anything
         else reads, such as a gradient; devices whose sequences cannot be cut into `parts` equal
         chunks.

If devices have rows of each sequence, as in an array of (sequences, rows, columns), a chunk has
some sequences. If they have whole sequences, which a reshape takes apart, a chunk has some of each
device.

Products of what is gathered are stored before scores are computed, after their heads are taken
apart or, with `ordered`, before that. Each sequence is computed and summed as before. With
form=sequence-sums, the sums of chunks get the form "partial-sums" of
shmap-overlap-product-scatter, which runs later, and rounds them. If some axes are automatic,
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
from .find.sequence_blocks import sequence_blocks_of
from .form import Empty, Form
from .rewrite.rewriting import RewritingPass, apart
from .rewrite.sequences import compute_sequences


@dataclass(frozen=True)
class OverlapSequenceBlock(RewritingPass[RowBlock]):
    """Computes attention some sequences at a time, with gathers and sums beside that of others."""

    name = "shmap-overlap-sequence-block"
    code = "SHM-P28"
    keeps_bits = True
    needs_body_form = True
    forms = ("sequences", "sequence-sums")
    op_name = ALL_GATHER

    form: Literal["chosen", "sequences", "sequence-sums"] = "chosen"
    parts: Count = 0
    empty: Empty = "zeros"
    ordered: bool = False

    def sites(self, ops: Sequence[ir.Operation], body: BodyForm) -> Iterator[RowBlock]:
        return apart(sequence_blocks_of(body.module), ops)

    def rewrite(self, site: RowBlock, body: BodyForm, form: Form) -> None:
        compute_sequences(site, form)
