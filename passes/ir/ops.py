"""Walking over operations and values."""

from __future__ import annotations

from jaxlib.mlir import ir

from .types import Value


def walk(root: ir.Operation) -> list[ir.Operation]:
    """Every operation inside `root`, outer before inner, as a list that may be rewritten freely."""
    found: list[ir.Operation] = []

    def visit(op: ir.Operation) -> ir.WalkResult:
        found.append(op.operation)
        return ir.WalkResult.ADVANCE

    root.walk(visit, ir.WalkOrder.PRE_ORDER)
    return found


def defining_op(value: Value) -> ir.Operation | None:
    """The op whose result `value` is; None for an argument of a block."""
    return None if isinstance(value, ir.BlockArgument) else ir.OpResult(value).owner.operation


def terminator(block: ir.Block) -> ir.Operation:
    return block.operations[len(block.operations) - 1].operation


def is_token(type_: ir.Type) -> bool:
    # Printing a type takes long, and nearly all are tensors.
    return not isinstance(type_, ir.RankedTensorType) and str(type_) == "!stablehlo.token"
