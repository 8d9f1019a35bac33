"""Folds an all_reduce of an all_reduce over other axes into one.

Before:  %1 = "stablehlo.all_reduce"(%0) <{... axes = ["i"]}> ({ add })
         %2 = "stablehlo.all_reduce"(%1) <{... axes = ["j"]}> ({ add })
After:   %2 = "stablehlo.all_reduce"(%0) <{... axes = ["i", "j"]}> ({ add })
Needs:   shmap-elide-invariant-reductions, which removes axes that both name.
Leaves:  no all_reduce in the block of, and used only by, an all_reduce of the same kind over other
         axes, unless one has frontend attributes (passes/ir/instructions.py).

One all_reduce over a*b devices sends at most as many bytes as two, over a and over b devices. It
may add in another order.
"""

from __future__ import annotations

from dataclasses import dataclass

from jaxlib.mlir import ir
from jaxlib.mlir.dialects.builtin import ModuleOp

from ..base import Pass
from ..ir.collective_ops import (
    ALL_REDUCE,
    collectives_of,
    name_group_axes,
    reduction,
    whole_axes,
)
from ..ir.instructions import has_instructions
from ..ir.ops import defining_op

_ASSOCIATIVE = frozenset(
    {"stablehlo.add", "stablehlo.maximum", "stablehlo.minimum", "stablehlo.and", "stablehlo.or"}
)


@dataclass(frozen=True)
class FoldAllReduces(Pass):
    """Folds an all_reduce of an all_reduce over other axes into one."""

    name = "shmap-fold-all-reduces"
    code = "SHM-P08"
    needs_body_form = True

    def run(self, module: ModuleOp) -> bool:
        folded = False
        # Inner before outer, so that a chain folds into its last.
        for outer in collectives_of(module):
            inner = _inner(outer)
            if inner is not None:
                _fold(inner, outer)
                folded = True
        return folded


def _fold(inner: ir.Operation, outer: ir.Operation) -> None:
    name_group_axes(outer, (*(whole_axes(inner) or ()), *(whole_axes(outer) or ())))
    inner.results[0].replace_all_uses_with(inner.operands[0])
    inner.erase()


def _foldable(op: ir.Operation) -> tuple[str, ...] | None:
    """The axes of an all_reduce that may be done together with another."""
    if op.name != ALL_REDUCE or reduction(op) not in _ASSOCIATIVE or has_instructions(op):
        return None
    return whole_axes(op)


def _inner(outer: ir.Operation) -> ir.Operation | None:
    """The all_reduce whose only use is `outer` and that can be done together with it."""
    outer_axes = _foldable(outer)
    inner = defining_op(outer.operands[0]) if outer_axes else None
    if inner is None or outer_axes is None or inner.block != outer.block:
        return None
    axes = _foldable(inner)
    if axes is None or set(axes) & set(outer_axes) or len(list(inner.results[0].uses)) > 1:
        return None
    return inner if reduction(inner) == reduction(outer) else None
