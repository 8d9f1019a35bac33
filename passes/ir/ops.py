"""Walking over operations and values.

The hash of an `ir.Operation` depends on its attributes and operands: sets and dicts lose what is
changed after it was put in. That of a value stays.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from jaxlib.mlir import ir

from .types import Value

PARTITIONS, REPLICAS = "mhlo.num_partitions", "mhlo.num_replicas"
"""Attributes of a module: on how many devices it runs."""


def walk(root: ir.Operation) -> list[ir.Operation]:
    """`root` and every operation inside, outer before inner, as a list; they may be rewritten."""
    if not len(root.regions):
        return [root]
    found: list[ir.Operation] = []

    def visit(op: ir.Operation) -> ir.WalkResult:
        found.append(op.operation)
        return ir.WalkResult.ADVANCE

    root.walk(visit, ir.WalkOrder.PRE_ORDER)
    return found


def defining_op(value: Value) -> ir.Operation | None:
    """The op whose result `value` is; None for an argument of a block."""
    return None if isinstance(value, ir.BlockArgument) else ir.OpResult(value).owner.operation


def needed_first(
    values: Iterable[Value], needed: Callable[[Value], Iterable[Value]]
) -> list[Value]:
    """Values and all that they need, directly or not, each after what it needs.

    Args:
      needed: what a value needs directly.
    """
    found = dict[Value, None]()
    pending = list(values)[::-1]
    while pending:
        missing = [each for each in needed(pending[-1]) if each not in found]
        if missing:
            pending += reversed(missing)
        else:
            found[pending.pop()] = None
    return list(found)


class Position:
    """Orders the operations of a block by their places."""

    def __init__(self, op: ir.Operation) -> None:
        self.op = op

    def __lt__(self, other: Position) -> bool:
        return self.op != other.op and self.op.is_before_in_block(other.op)


def next_op(op: ir.Operation) -> ir.Operation:
    """The one after an operation that is not the last of its block."""
    following = ir.InsertionPoint.after(op).ref_operation
    assert following is not None, f"{op.name} ends its block"
    return following.operation


def terminator(block: ir.Block) -> ir.Operation:
    return block.operations[len(block.operations) - 1].operation


def function_around(op: ir.Operation) -> ir.Operation:
    """The function of the module in which an operation is."""
    while (parent := op.parent) is not None and parent.operation.parent is not None:
        op = parent.operation
    return op


def partition_count(module: ir.Operation) -> int:
    """The number of devices on which a module says that it runs; 0 if it does not say."""
    return _count(module, PARTITIONS)


def replica_count(module: ir.Operation) -> int:
    """The number of replicas that a module says it runs as; 0 if it does not say."""
    return _count(module, REPLICAS)


def _count(module: ir.Operation, name: str) -> int:
    count = module.attributes.get(name)
    return max(0, count.value) if isinstance(count, ir.IntegerAttr) else 0


def is_token(type_: ir.Type) -> bool:
    # Printing a type takes long, and nearly all are tensors.
    return not isinstance(type_, ir.RankedTensorType) and str(type_) == "!stablehlo.token"


def free_values(ops: Iterable[ir.Operation]) -> list[Value]:
    """The values that ops and their regions use and do not define, in the order of first use."""
    inside: set[Any] = set()
    used: dict[Any, None] = {}
    for op in ops:
        for each in walk(op):
            for operand in each.operands:
                if operand not in inside:
                    used.setdefault(operand)
            inside.update(each.results)
            for region in each.regions:
                for block in region.blocks:
                    inside.update(block.arguments)
    return list(used)


def replace_operands(op: ir.Operation, mapping: Mapping[Value, Value]) -> None:
    """Replaces operands of `op` and of the operations in its regions."""
    for each in walk(op):
        for number, operand in enumerate(each.operands):
            if operand in mapping:
                each.operands[number] = mapping[operand]
