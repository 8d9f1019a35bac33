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
        element, product = element_of(each.op.operands[0]), each.product
        op, shape = shaped(product) if product is not None else (None, None)
        yield Site(
            "softmax",
            each.op,
            products=() if op is None else (op,),
            shapes=() if shape is None else (shape,),
            axes=(),
            count=1,
            element=str(element),
            element_bytes=element_bytes(element),
            received=0,
            cut=each.row,
            exponentials=each.numbers,
            heads=len(product.batch[0]) if product is not None else 0,
            queries=max(map(len, product.free)) if product is not None else 0,
        )
