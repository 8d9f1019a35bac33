"""Merges equal collectives on the same operands.

A mean and a variance both need the sum of x; a library and its caller both gather the same weights.
MLIR's own cse does not compare the regions that combine values.

Before:  %1 = "stablehlo.all_reduce"(%0) <{... axes = ["j"]}> ({ add })
         %2 = "stablehlo.all_reduce"(%0) <{... axes = ["j"]}> ({ add })
         return %1, %2
After:   %1 = "stablehlo.all_reduce"(%0) <{... axes = ["j"]}> ({ add })
         return %1, %1
Needs:   what shmap-verify accepts.
Leaves:  no two equal collectives on the same operands in one block.

Collectives in different blocks are not merged: only one of two branches runs.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

from jaxlib.mlir import ir
from jaxlib.mlir.dialects.builtin import ModuleOp

from ..base import Pass
from ..ir.collective_ops import collectives_of, reduction


@dataclass(frozen=True)
class MergeEqualCollectives(Pass):
    """Merges equal collectives on the same operands."""

    name = "shmap-merge-equal-collectives"
    code = "SHM-P05"
    keeps_bits = True
    needs_body_form = True

    def run(self, module: ModuleOp) -> bool:
        first: dict[Hashable, ir.Operation] = {}
        merged = False
        for op in collectives_of(module):
            other = first.setdefault(tuple(op.operands), op)
            if other is op:  # the first on these operands, as most are
                continue
            first.setdefault(_key(other), other)
            key = _key(op)
            if key is None:
                continue
            earlier = first.setdefault(key, op)
            if earlier is not op:
                for result, same in zip(op.results, earlier.results, strict=True):
                    result.replace_all_uses_with(same)
                op.erase()
                merged = True
        return merged


def _key(op: ir.Operation) -> Hashable | None:
    """Equal for ops with equal results; None if the region cannot be compared."""
    combine = reduction(op) if len(op.regions) else ""
    if combine is None:
        return None
    attributes = frozenset((name, op.attributes[name]) for name in op.attributes)
    types = tuple(result.type for result in op.results)
    return op.name, op.block, tuple(op.operands), attributes, combine, types
