"""Sums a product over devices in chunks, each beside the product of the next chunk.

An all_reduce of a product begins when the whole product is there. A chunk of columns is a product
by itself, and can be summed while the next one is computed.

Before:  %p = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]
         %y = "stablehlo.all_reduce"(%p) <{... axes = ["i"]}> ({ add })
After, form=columns parts=2:
         %p0 = stablehlo.dot_general %x, (stablehlo.slice %w [0:k, 0:c])
         %x1, %q0 = stablehlo.optimization_barrier %x, %p0
         %y0 = "stablehlo.all_reduce"(%q0)
         %p1 = stablehlo.dot_general %x1, (stablehlo.slice %w [0:k, c:2*c])
         %y1 = "stablehlo.all_reduce"(%p1)
         // both are put in place in a buffer, or concatenated; a third product is computed when
         // the first chunk is in its place
Needs:   what shmap-verify accepts. With form=chosen, the attribute `shmap.overlap` on the
         all_reduces that are to be rewritten.
Leaves:  all_reduces of several values, and of anything but a product that nothing else uses, and
         that is at most transposed, changed element by element, or added to another such product,
         before it is summed up; those whose products have no free dimension that `parts` divides,
         or share an operand that would be cut for one of them only.

The largest free dimension of the second operand is cut, or else of the first: libtpu would
transpose chunks of rows. With `ordered`, products that are the last to read large arrays come
before the chunks, and what chunks and other products read is stored once. The same elements are
summed by the same collective, so results do not depend on the cut. If some axes are automatic,
nothing is rewritten.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from jaxlib.mlir import ir

from ..base import Count
from ..ir.body_form import BodyForm
from ..ir.collective_ops import ALL_REDUCE
from .find.scatters import SummedProducts, summed_products
from .form import Empty, Form
from .rewrite.released import Ordered
from .rewrite.rewriting import OrderingPass
from .rewrite.scatter_chunks import ordered_chunks, sum_in_chunks


@dataclass(frozen=True)
class OverlapProductSum(OrderingPass[SummedProducts]):
    """Sums a product over devices in chunks, each beside the product of the next chunk."""

    name = "shmap-overlap-product-sum"
    code = "SHM-P23"
    keeps_bits = True
    needs_body_form = True
    forms = ("columns",)
    op_name = ALL_REDUCE

    form: Literal["chosen", "columns"] = "chosen"
    parts: Count = 0
    empty: Empty = "zeros"
    ordered: bool = False

    def sites(self, ops: Sequence[ir.Operation], body: BodyForm) -> Iterator[SummedProducts]:
        return summed_products(ops, body)

    def order_around(self, site: SummedProducts, body: BodyForm, form: Form) -> Ordered | None:
        return ordered_chunks(site, form)

    def rewrite(self, site: SummedProducts, body: BodyForm, form: Form) -> None:
        sum_in_chunks(site, form)
