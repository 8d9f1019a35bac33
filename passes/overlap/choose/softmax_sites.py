"""Softmax as sites, which communicate nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from jaxlib.mlir import ir

from ...ir.body_form import BodyForm
from ...ir.dataflow import Dataflows
from ...ir.types import element_bytes, element_of
from ..find.softmax import softmaxes
from .site import Site
from .sizes import shaped


def softmax_sites(ops: Sequence[ir.Operation], form: BodyForm, flows: Dataflows) -> Iterator[Site]:
    """A site for each softmax whose maximum is one of some reductions."""
    for each in softmaxes(ops):
        element = element_of(each.op.operands[0])
        products = [each.product] if each.product is not None else []
        found = list(map(shaped, products))
        yield Site(
            "softmax",
            each.op,
            products=tuple(op for op, _ in found),
            shapes=tuple(shape for _, shape in found),
            axes=(),
            count=1,
            element=str(element),
            element_bytes=element_bytes(element),
            received=0,
            cut=each.row,
            exponentials=each.numbers,
            heads=sum(len(product.batch[0]) for product in products),
            queries=sum(max(map(len, product.free)) for product in products),
            masks=each.masks,
        )
