"""Adds products of other devices' blocks while sums are being transferred.

A reduce_scatter of a product waits for the whole product, although each block of the sum needs one
block of the product. This pass sends partial sums around a ring of devices, half of them in each
direction. Each device adds its product to a sum that arrives and sends it on; the last device to
add is the one that keeps the block. With four partial sums for each block, three are being
transferred while a product for the fourth is computed.

Before:  %p = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]
         %y = "stablehlo.reduce_scatter"(%p) <{scatter_dimension = 0, ... axes = ["i"]}> ({ add })
After, form=partial-sums:
         // a function that is called for each device on the ring, and for each of the sums s:
         %r = collective_permute %s                       // forward or backward
         %r1, %x1 = stablehlo.optimization_barrier %r, %x
         %q = stablehlo.dot_general (stablehlo.dynamic_slice %x1, the rows for s), %w : f32
         %s1 = stablehlo.convert (stablehlo.add (stablehlo.convert %r1), %q)
         // at the end each sum of the own block is put in its place before the next one is used
After, form=columns parts=2:
         %p0 = stablehlo.dot_general %x, (stablehlo.slice %w [0:k, 0:c])
         %x1, %q0 = stablehlo.optimization_barrier %x, %p0
         %y0 = "stablehlo.reduce_scatter"(%q0)
         %p1 = stablehlo.dot_general %x1, (stablehlo.slice %w [0:k, c:2*c])
         // and so on: a reduce_scatter beside each product; the columns are joined at the end
Needs:   what shmap-verify accepts. With form=chosen, the attribute `shmap.overlap` on the
         reduce_scatters that are to be rewritten.
Leaves:  reduce_scatters of anything but a product that nothing else uses and that is at most
         transposed, changed by elementwise operations, or added to another such product, before it
         is summed; those whose blocks, or columns, cannot be cut into `parts` equal pieces.

Products that are added, as in the gradient of what several products read, are computed piece by
piece together. Rows of what is transposed and reshaped, such as the heads of attention, are taken
before that. Chunks of columns are summed by the same reduce_scatter, so results do not depend on
the cut. A ring adds in another order. Sums of 16-bit floats are added in 32 bits and rounded before
they are sent; `wide` sends 32 bits. With `ordered`, products that are the last to read large arrays
come before chunks and partial sums, and what chunks and other products read is stored once. On a
ring of more than 16 devices the steps are a loop, eight per iteration. The reduce_scatter is kept
where groups have more than 256 devices or the mesh has more than 4096, because permutations list
all of them, and where only some devices may reach it, as in a branch. If some axes are automatic,
nothing is rewritten.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from jaxlib.mlir import ir

from ..base import Count
from ..ir.body_form import BodyForm
from ..ir.collective_ops import REDUCE_SCATTER
from .find.scatters import ScatteredProducts, scattered_products
from .form import Empty, Form
from .rewrite.released import Ordered
from .rewrite.rewriting import OrderingPass
from .rewrite.scatter_chunks import ordered_chunks, sum_in_chunks
from .rewrite.scatter_ring import ordered_sums, scatter_by_ring


@dataclass(frozen=True)
class OverlapProductScatter(OrderingPass[ScatteredProducts]):
    """Adds products of other devices' blocks while sums are being transferred."""

    name = "shmap-overlap-product-scatter"
    code = "SHM-P17"
    needs_body_form = True
    forms = ("partial-sums", "columns")
    op_name = REDUCE_SCATTER

    form: Literal["chosen", "partial-sums", "columns"] = "chosen"
    parts: Count = 0
    empty: Empty = "zeros"
    wide: bool = False
    ordered: bool = False

    def sites(self, ops: Sequence[ir.Operation], body: BodyForm) -> Iterator[ScatteredProducts]:
        return scattered_products(ops, body)

    def order_around(self, site: ScatteredProducts, body: BodyForm, form: Form) -> Ordered | None:
        if form.name == "columns":
            return ordered_chunks(site, form)
        return ordered_sums(site, body, form)

    def rewrite(self, site: ScatteredProducts, body: BodyForm, form: Form) -> None:
        if form.name == "columns":
            sum_in_chunks(site, form)
        else:
            scatter_by_ring(site, body, form)
