"""Computes the products of a gathered array one after the other, so that it can be released.

A compiler that hides transfers delays a product that nothing waits for, such as the gradient of a
weight, and computes it beside a later transfer. What it reads stays in memory until then. With an
optimization barrier, what reads one of the products waits for all of them.

Before:  %g = "stablehlo.all_gather"(%dy) <{all_gather_dim = 0, ... axes = ["i"]}>
         %dx = stablehlo.dot_general %g, %w, contracting_dims = [1] x [1]
         %t = stablehlo.dot_general %dx, %v, contracting_dims = [1] x [1]
         %dw = stablehlo.dot_general %x, %g, contracting_dims = [0] x [0]
         return %t, %dw
After:   %g = "stablehlo.all_gather"(%dy) <{all_gather_dim = 0, ... axes = ["i"]}>
         %dx = stablehlo.dot_general %g, %w, contracting_dims = [1] x [1]
         %dw = stablehlo.dot_general %x, %g, contracting_dims = [0] x [0]
         %b:2 = stablehlo.optimization_barrier %dx, %dw
         %t = stablehlo.dot_general %b#0, %v, contracting_dims = [1] x [1]
         return %t, %b#1
Needs:   what shmap-verify accepts. With form=chosen, the attribute `shmap.overlap` on the gathers
         whose products are to be ordered.
Leaves:  gathers that anything but products of their block reads, and those of which a product needs
         what is computed after the first one. If some axes are automatic, nothing is rewritten.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from jaxlib.mlir import ir

from ..ir.body_form import BodyForm
from ..ir.collective_ops import ALL_GATHER
from ..ir.ops import next_op
from .choose.gathered_products import GatheredProducts, gathered_products
from .form import Form
from .rewrite.pieces import barrier
from .rewrite.rewriting import RewritingPass


@dataclass(frozen=True)
class OrderGatheredProducts(RewritingPass[GatheredProducts]):
    """Computes the products of a gathered array one after the other, so that it can be released."""

    name = "shmap-order-gathered-products"
    code = "SHM-P27"
    keeps_bits = True
    needs_body_form = True
    forms = ("together",)
    op_name = ALL_GATHER

    form: Literal["chosen", "together"] = "chosen"

    def sites(self, ops: Sequence[ir.Operation], body: BodyForm) -> Iterator[GatheredProducts]:
        return gathered_products(ops)

    def rewrite(self, site: GatheredProducts, body: BodyForm, form: Form) -> None:
        last = site.products[0]
        for product in site.products[1:]:
            product.move_after(last)
            last = product
        results = [product.results[0] for product in site.products]
        with ir.InsertionPoint(next_op(last)), last.location:
            together = barrier(*results)
        op = ir.OpResult(together[0]).owner.operation
        for before, after in zip(results, together, strict=True):
            before.replace_all_uses_except(after, [op])
