"""Passes with a mistake, and one without."""

from dataclasses import dataclass

from jaxlib.mlir import ir
from shmap_passes import Pass, find_ops
from shmap_passes.ir.collective_ops import name_group_axes


@dataclass(frozen=True)
class WrongAxis(Pass):
    """Gives the second all_reduce the axis of the first."""

    name = "my-wrong-axis"
    keeps_bits = True

    def run(self, module):
        name_group_axes(find_ops(module.operation, ["stablehlo.all_reduce"])[1], ["i"])


@dataclass(frozen=True)
class WrongOrder(Pass):
    """Promises bitwise equal results, and adds in another order."""

    name = "my-wrong-order"
    keeps_bits = True

    def run(self, module):
        op = find_ops(module.operation, ["stablehlo.all_reduce"])[2]
        name_group_axes(op, ["j", "i"])


@dataclass(frozen=True)
class RightOrder(WrongOrder):
    """Adds in another order, and promises no more."""

    name = "my-right-order"
    keeps_bits = False


@dataclass(frozen=True)
class FirstOperand(Pass):
    """Takes the first operand for sums and negatives."""

    name = "my-first-operand"
    keeps_bits = True

    def run(self, module):
        for op in find_ops(module.operation, ["stablehlo.add", "stablehlo.negate"]):
            op.results[0].replace_all_uses_with(op.operands[0])
            op.erase()


@dataclass(frozen=True)
class Cosine(Pass):
    """Takes the cosine for the sine."""

    name = "my-cosine"
    keeps_bits = True

    def run(self, module):
        for op in find_ops(module.operation, ["stablehlo.sine"]):
            with op.location, ir.InsertionPoint(op):
                new = ir.Operation.create(
                    "stablehlo.cosine", results=[op.results[0].type], operands=[op.operands[0]]
                )
            op.results[0].replace_all_uses_with(new.results[0])
            op.erase()


@dataclass(frozen=True)
class Detour(WrongAxis):
    """Also negates twice what is summed, which is right."""

    name = "my-detour"

    def run(self, module):
        for op in find_ops(module.operation, ["stablehlo.all_reduce"]):
            with op.location, ir.InsertionPoint(op):
                for _ in range(2):
                    value = op.operands[0]
                    new = ir.Operation.create(
                        "stablehlo.negate", results=[value.type], operands=[value]
                    )
                    op.operands[0] = new.results[0]
        super().run(module)


@dataclass(frozen=True)
class Hang(Pass):
    """Moves the first all_reduce behind a branch that half of the devices take."""

    name = "my-hang"

    def run(self, module):
        op = find_ops(module.operation, ["stablehlo.all_reduce"])[0]
        with ir.InsertionPoint(op), op.location:
            index = ir.Operation.parse(
                "stablehlo.custom_call @shmap.axis_index() "
                '{api_version = 4 : i32, backend_config = {axes = ["i"]}} : () -> tensor<i32>'
            )
            ir.InsertionPoint(op).insert(index)
            case = ir.Operation.create(
                "stablehlo.case",
                results=[op.results[0].type],
                operands=[index.results[0]],
                regions=2,
            )
            ir.InsertionPoint(op).insert(case) if case.parent is None else None
        op.results[0].replace_all_uses_with(case.results[0])
        with op.location:
            for region, value in zip(case.regions, [None, op.operands[0]], strict=True):
                block = region.blocks.append()
                with ir.InsertionPoint(block):
                    given = value
                    if given is None:
                        given = op.clone().results[0]
                    ir.Operation.create("stablehlo.return", operands=[given])
        op.erase()
