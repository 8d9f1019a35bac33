"""Passes that are easy to see: what computes a sine computes a cosine, is rejected, or fails."""

from dataclasses import dataclass

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo
from shmap_passes import Pass, PassRefused, Violation, find_ops


def sines(module):
    return find_ops(module.operation, ["stablehlo.sine"])


@dataclass(frozen=True)
class CosineForSine(Pass):
    """Replaces each sine by a cosine."""

    name = "my-cosine-for-sine"
    needs_body_form = True

    def run(self, module):
        for op in sines(module):
            with ir.InsertionPoint(op), op.location:
                op.results[0].replace_all_uses_with(stablehlo.cosine(op.operands[0]))
            op.erase()


@dataclass(frozen=True)
class DoubleCosines(Pass):
    """Doubles each cosine."""

    name = "my-double-cosines"

    def run(self, module):
        for op in find_ops(module.operation, ["stablehlo.cosine"]):
            users = [use.owner for use in op.results[0].uses]
            with ir.InsertionPoint.after(op), op.location:
                doubled = stablehlo.add(op.results[0], op.results[0])
            for user in users:
                user.operation.replace_uses_of_with(op.results[0], doubled)


@dataclass(frozen=True)
class RejectSines(Pass):
    """Rejects sines."""

    name = "my-reject-sines"

    word: str = "no"

    def run(self, module):
        if found := sines(module):
            raise PassRefused([Violation(op.location, f"{self.word} sine, please") for op in found])


@dataclass(frozen=True)
class FailOnSines(Pass):
    """Has a mistake: it raises a KeyError where there is a sine."""

    name = "my-fail-on-sines"

    def run(self, module):
        for op in sines(module):
            op.attributes["half-done"] = ir.UnitAttr.get()
            raise KeyError("sine")


@dataclass(frozen=True)
class ProductForSum(Pass):
    """Multiplies where an all_reduce adds."""

    name = "my-product-for-sum"

    def run(self, module):
        for all_reduce in find_ops(module.operation, ["stablehlo.all_reduce"]):
            for op in find_ops(all_reduce, ["stablehlo.add"]):
                with ir.InsertionPoint(op), op.location:
                    op.results[0].replace_all_uses_with(stablehlo.multiply(*op.operands))
                op.erase()
