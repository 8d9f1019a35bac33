"""Replaces a device's slice of a gathered array by its own block, if the two are equal.

Code that works on gathered arrays often ends by slicing out the part of the device. If that part is
the block that the device contributed, no communication is needed for it.

Before:  %i = stablehlo.custom_call @shmap.axis_index() {... axes = ["i"]}
         %1 = "stablehlo.all_gather"(%0) <{all_gather_dim = 0, ... axes = ["i"]}>   // 2x8 -> 8x8
         %2 = stablehlo.dynamic_slice %1, 2 * %i, 0, sizes = [2, 8]
         return %2
After:   return %0
Needs:   what shmap-verify accepts.
Leaves:  no dynamic_slice of a gathered array that takes the device's own block, as far as its index
         is a known constant (passes/analysis/per_device_constants.py); no all_gather that is used
         by such slices only. Gathers with frontend attributes stay (passes/ir/instructions.py).
"""

from __future__ import annotations

from dataclasses import dataclass

from jaxlib.mlir import ir
from jaxlib.mlir.dialects.builtin import ModuleOp

from ..analysis.per_device_constants import slices_of, takes_own_block
from ..base import Pass
from ..ir.body_form import read_body_form
from ..ir.collective_ops import ALL_GATHER, over_whole_axes
from ..ir.instructions import has_instructions


@dataclass(frozen=True)
class ElideGatheredSlices(Pass):
    """Replaces a device's slice of a gathered array by its own block, if the two are equal."""

    name = "shmap-elide-gathered-slices"
    code = "SHM-P06"
    keeps_bits = True
    needs_body_form = True

    def run(self, module: ModuleOp) -> bool:
        gathers = over_whole_axes(module, ALL_GATHER)
        if not gathers:
            return False
        form = read_body_form(module)
        elided = False
        for op, axes in gathers:
            if has_instructions(op):
                continue
            dimension = ir.IntegerAttr(op.attributes["all_gather_dim"]).value
            own = [s for s in slices_of(op) if takes_own_block(s, dimension, axes, form)]
            for slice_ in own:
                slice_.results[0].replace_all_uses_with(op.operands[0])
                slice_.erase()
                elided = True
            if own and not any(op.results[0].uses):
                op.erase()
        return elided
