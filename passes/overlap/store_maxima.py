"""Stores the maximum that a softmax subtracts, so that nothing else is in its kernel.

libtpu computes the maximum of a row and what is subtracted from it in one kernel, if it can, which
stores the exponentials as f32, and may read broadcast constants from memory. With an optimization
barrier, the maximum comes with the product before it, and exponentials are computed where they are
read.

Before:  %m = stablehlo.reduce(%x init: %c) applies stablehlo.maximum across dimensions = [1]
         %b = stablehlo.broadcast_in_dim %m, dims = [0]
         %d = stablehlo.subtract %x, %b
         %e = stablehlo.exponential %d
After:   %m = stablehlo.reduce(%x init: %c) applies stablehlo.maximum across dimensions = [1]
         %s = stablehlo.optimization_barrier %m
         %b = stablehlo.broadcast_in_dim %s, dims = [0]
         %d = stablehlo.subtract %x, %b
         %e = stablehlo.exponential %d
Needs:   what shmap-verify accepts. With form=chosen, the attribute `shmap.overlap` on the
         reductions whose results are to be stored.
Leaves:  maxima that are not subtracted from their own numbers, or not for exponentials. If some
         axes are automatic, nothing is rewritten.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from jaxlib.mlir import ir

from ..ir.body_form import BodyForm
from ..ir.ops import next_op
from .find.row_sums import REDUCE
from .find.softmax import Softmax, softmaxes
from .form import Form
from .rewrite.pieces import barrier
from .rewrite.rewriting import RewritingPass


@dataclass(frozen=True)
class StoreMaxima(RewritingPass[Softmax]):
    """Stores the maximum that a softmax subtracts, so that nothing else is in its kernel."""

    name = "shmap-store-maxima"
    code = "SHM-P29"
    keeps_bits = True
    needs_body_form = True
    forms = ("stored-maximum",)
    op_name = REDUCE

    form: Literal["chosen", "stored-maximum"] = "chosen"

    def sites(self, ops: Sequence[ir.Operation], body: BodyForm) -> Iterator[Softmax]:
        return softmaxes(ops)

    def rewrite(self, site: Softmax, body: BodyForm, form: Form) -> None:
        (maximum,) = site.op.results
        with ir.InsertionPoint(next_op(site.op)), site.op.location:
            (stored,) = barrier(maximum)
        maximum.replace_all_uses_except(stored, [ir.OpResult(stored).owner.operation])
