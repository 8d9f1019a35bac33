"""Gathers an operand in chunks of columns, each beside the product with the previous chunk.

If a product sums over the gathered dimension, as that of activations with gathered weights does,
every element of the result needs the blocks of all devices. But columns of the result need only
columns of the operand. Each chunk of columns is gathered separately and multiplied over the whole
gathered dimension, so no sum is split and results are bitwise equal.

Before:  %g = "stablehlo.all_gather"(%w) <{all_gather_dim = 0, ... axes = ["i"]}>
         %y = stablehlo.dot_general %x, %g, contracting_dims = [1] x [0]
After, parts=2:
         %g0 = "stablehlo.all_gather"(stablehlo.slice %w [0:k, 0:c])
         %g1 = "stablehlo.all_gather"(stablehlo.slice %w [0:k, c:2*c])
         %y0 = stablehlo.dot_general %x, %g0
         %y1 = stablehlo.dot_general %x, %g1
         // both are written in place in a buffer, or concatenated
Needs:   what shmap-verify accepts. With form=chosen, the attribute `shmap.overlap` on the gathers
         that are to be rewritten.
Leaves:  gathers without a product over the gathered dimension, those whose operand has no other
         free dimension that `parts` divides, and those whose results are needed too early.

With `barriers`, optimization barriers keep the compiler from merging the chunks again and let only
one gather run at a time. If some axes are automatic, nothing is rewritten.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from jaxlib.mlir import ir

from ..base import Count
from ..ir.body_form import BodyForm
from ..ir.collective_ops import ALL_GATHER
from .choose.gather_sites import columns_of
from .find.gathers import Gather, gathers
from .form import Empty, Form
from .rewrite.gather_chunks import gather_in_chunks
from .rewrite.rewriting import RewritingPass


@dataclass(frozen=True)
class OverlapGatherContraction(RewritingPass[Gather]):
    """Gathers an operand in chunks of columns, each beside the product with the previous chunk."""

    name = "shmap-overlap-gather-contraction"
    code = "SHM-P16"
    keeps_bits = True
    needs_body_form = True
    forms = ("columns",)
    op_name = ALL_GATHER

    form: Literal["chosen", "columns"] = "chosen"
    parts: Count = 0
    empty: Empty = "zeros"
    barriers: bool = False

    def sites(self, ops: Sequence[ir.Operation], body: BodyForm) -> Iterator[Gather]:
        return (gather for gather in gathers(ops, body) if gather.contracted)

    def rewrite(self, site: Gather, body: BodyForm, form: Form) -> None:
        dimension = columns_of(site)
        if dimension is not None:
            gather_in_chunks(site, dimension, form)
