"""A pass with a mistake, for `shmap validate --load-pass`."""

from dataclasses import dataclass

from jaxlib.mlir import ir
from shmap_passes import Pass, find_ops


@dataclass(frozen=True)
class WrongReduction(Pass):
    """Makes sums maxima."""

    name = "test-wrong-reduction"

    def run(self, module):
        for op in find_ops(module.operation, ["stablehlo.all_reduce"]):
            block = op.regions[0].blocks[0]
            combine = block.operations[0].operation
            with ir.InsertionPoint(combine), op.location:
                new = ir.Operation.create(
                    "stablehlo.maximum", [combine.results[0].type], list(block.arguments)
                )
            combine.results[0].replace_all_uses_with(new.results[0])
            combine.erase()
