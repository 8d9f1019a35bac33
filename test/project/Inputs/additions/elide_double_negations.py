"""Removes pairs of negations.

Before:  %1 = stablehlo.negate %0
         %2 = stablehlo.negate %1
After:   uses of %2 use %0
Needs:   any module.
Leaves:  no negation of a negation.
"""

from __future__ import annotations

from dataclasses import dataclass

from jaxlib.mlir.dialects.builtin import ModuleOp

from ..base import Pass
from ..ir.find_ops import find_ops


@dataclass(frozen=True)
class ElideDoubleNegations(Pass):
    """Removes pairs of negations."""

    name = "shmap-elide-double-negations"

    def run(self, module: ModuleOp) -> None:
        for op in find_ops(module.operation, ["stablehlo.negate"]):
            inner = op.operands[0].owner
            if getattr(inner, "name", None) == "stablehlo.negate":
                op.results[0].replace_all_uses_with(inner.operands[0])
                op.erase()
                if not list(inner.results[0].uses):
                    inner.erase()
