"""Lets all_to_alls split and concatenate along one dimension, where that is a reshape.

If the split dimension has one index for each device, or the dimension of concatenation has one
index, the parts of the devices are contiguous before or after the exchange. XLA exchanges along one
dimension, and otherwise moves the data in memory before and after: on a TPU v5e, that took 60% of
the time of a layer of experts.

Before:  %y = "stablehlo.all_to_all"(%x) <{split_dimension = 0, concat_dimension = 1, ...}>
             : (tensor<8x2x4xf32>) -> tensor<1x16x4xf32>
After:   %0 = "stablehlo.all_to_all"(%x) <{split_dimension = 0, concat_dimension = 0, ...}>
             : (tensor<8x2x4xf32>) -> tensor<8x2x4xf32>
         %y = stablehlo.reshape %0 : (tensor<8x2x4xf32>) -> tensor<1x16x4xf32>
Before:  %y = "stablehlo.all_to_all"(%x) <{split_dimension = 1, concat_dimension = 0, ...}>
             : (tensor<1x16x4xf32>) -> tensor<8x2x4xf32>
After:   %0 = stablehlo.reshape %x : (tensor<1x16x4xf32>) -> tensor<8x2x4xf32>
         %y = "stablehlo.all_to_all"(%0) <{split_dimension = 0, concat_dimension = 0, ...}>
             : (tensor<8x2x4xf32>) -> tensor<8x2x4xf32>
Needs:   what shmap-verify accepts.
Leaves:  no all_to_all of either kind; others, such as those after which parts of devices
         alternate in memory, as they are.

If some axes are automatic, nothing is rewritten, as one of the dimensions may be split over them.
"""

from __future__ import annotations

from dataclasses import dataclass

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo
from jaxlib.mlir.dialects.builtin import ModuleOp

from ..base import Pass
from ..ir.body_form import read_body_form
from ..ir.collective_ops import over_whole_axes


@dataclass(frozen=True)
class NormalizeAllToAll(Pass):
    """Lets all_to_alls split and concatenate along one dimension, where that is a reshape."""

    name = "shmap-normalize-all-to-all"
    code = "SHM-P20"
    keeps_bits = True
    needs_body_form = True

    def run(self, module: ModuleOp) -> bool:
        found = over_whole_axes(module, "stablehlo.all_to_all")
        if not found or read_body_form(module).is_partly_manual:
            return False
        for op, _ in found:
            split, concat, count = (
                _integer(op, name)
                for name in ("split_dimension", "concat_dimension", "split_count")
            )
            operand = list(ir.RankedTensorType(op.operands[0].type).shape)
            between = operand[min(split, concat) + 1 : max(split, concat)]
            if any(size != 1 for size in between):
                continue
            if split < concat and operand[split] == count:
                _exchange(op, split, operand)
            elif concat < split and operand[concat] == 1:
                shape = list(operand)
                shape[concat], shape[split] = count, operand[split] // count
                _exchange(op, concat, shape)
        return True


def _integer(op: ir.Operation, name: str) -> int:
    return ir.IntegerAttr(op.attributes[name]).value


def _exchange(op: ir.Operation, dimension: int, shape: list[int]) -> None:
    """Exchanges along one dimension of an array of another shape."""
    operand, result = op.operands[0], op.results[0]
    type_ = ir.RankedTensorType.get(shape, ir.RankedTensorType(operand.type).element_type)
    attribute = ir.IntegerAttr.get(ir.IntegerType.get_signless(64), dimension)
    both = {"split_dimension": attribute, "concat_dimension": attribute}
    with ir.InsertionPoint(op), op.location:
        exchange = ir.Operation.create(
            op.name,
            results=[type_],
            operands=[operand if operand.type == type_ else stablehlo.reshape(type_, operand)],
            attributes={**{name: op.attributes[name] for name in op.attributes}, **both},
        )
        exchanged = exchange.results[0]
        if exchanged.type != result.type:
            exchanged = stablehlo.reshape(result.type, exchanged)
    result.replace_all_uses_with(exchanged)
    op.erase()
