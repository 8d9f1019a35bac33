"""Replaces sums of products over devices, with what they are computed from."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from jaxlib.mlir import ir

from ...ir.types import Value
from ..find.scatters import SummedProducts
from ..form import Form
from .equal_sites import shared


def replace_sum(
    site: SummedProducts,
    name: str,
    form: Form,
    build: Callable[[], Value],
    before: Sequence[ir.Operation] = (),
) -> None:
    """Replaces a sum, and erases it with what it is computed from.

    Args:
      name: of a function, if equal sites share one.
      build: builds, in a form, what takes its place.
      before: what is computed before, in program order, and has no other use.
    """
    ops = (*before, *site.ops, site.op)
    (value,) = shared(name, ops, site.op.results, form, lambda: [build()])
    site.op.results[0].replace_all_uses_with(value)
    for op in reversed(ops):
        op.erase()
