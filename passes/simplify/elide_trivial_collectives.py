"""Removes collectives over groups of one device.

A program written for a 4x2 mesh is often first run on a 4x1 mesh. Over axes whose sizes multiply to
one, every collective is the identity. So is a permutation that sends each device its own block.

Before:  %1 = "stablehlo.all_reduce"(%0) <{replica_groups = ...axes = ["j"]}> ...   // j has size 1
         return %1
After:   return %0
Needs:   what shmap-verify accepts.
Leaves:  no collective over groups of one device, unless it promotes its operand to another type.
"""

from __future__ import annotations

from dataclasses import dataclass

from jaxlib.mlir import ir
from jaxlib.mlir.dialects.builtin import ModuleOp

from ..base import Pass
from ..ir.body_form import read_body_form
from ..ir.collective_ops import GROUPS, PAIRS, PERMUTE, collectives_of, device_ids, group_axes
from ..ir.mesh import Mesh


@dataclass(frozen=True)
class ElideTrivialCollectives(Pass):
    """Removes collectives over groups of one device."""

    name = "shmap-elide-trivial-collectives"
    code = "SHM-P03"
    keeps_bits = True
    needs_body_form = True

    def run(self, module: ModuleOp) -> bool:
        mesh = read_body_form(module).mesh
        trivial = [
            op for op in collectives_of(module) if _keeps_types(op) and _is_identity(op, mesh)
        ]
        for op in trivial:
            for result, operand in zip(op.results, op.operands, strict=True):
                result.replace_all_uses_with(operand)
            op.erase()
        return bool(trivial)


def _keeps_types(op: ir.Operation) -> bool:
    """Whether the results have the types of the operands; a reduction may promote elements."""
    return [value.type for value in op.operands] == [value.type for value in op.results]


def _is_identity(op: ir.Operation, mesh: Mesh) -> bool:
    if op.name == PERMUTE:
        pairs = device_ids(op, PAIRS)
        return len(pairs) == mesh.size and all(source == target for source, target in pairs)
    axes = group_axes(op)
    if axes is None:
        return all(len(group) == 1 for group in device_ids(op, GROUPS))
    return mesh.product(axes) == 1
