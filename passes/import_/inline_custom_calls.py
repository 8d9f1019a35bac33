"""Inlines the functions through which @main reaches regions between custom calls, and bodies."""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from typing import Any

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import func
from jaxlib.mlir.dialects.builtin import ModuleOp

from ..ir.find_ops import find_ops
from ..ir.inline_calls import callee, functions_of, inline, inline_calls, reaches
from ..ir.ops import defining_op, is_token, walk
from .inline_regions import inline_regions
from .name_positions import PARTITION_ID
from .sharding_calls import ENTERS, LEAVES, ShardingCall, read_calls

_INSIDE = "shmap.inside"


def inline_regions_of_calls(module: ModuleOp, main: func.FuncOp) -> None:
    """Inlines the functions through which @main reaches regions between custom calls."""

    def leads_there(holders: Set[str]) -> Callable[[ir.Operation], bool]:
        found = reaches(module, set(holders))
        return lambda call: callee(call) in found

    inline_regions(
        module,
        main,
        lambda function: any(not call.is_nested for call in read_calls(function.operation)),
        f"@{ENTERS} or @{LEAVES} around a region, so there is no region to import; for modules "
        "with sdy.manual_computation use shmap-import-manual-computation",
        leads_there,
    )


def inline_bodies(main: func.FuncOp, module: ModuleOp, outer: Sequence[ShardingCall]) -> None:
    """Inlines the calls that take and return blocks only, and marks what was in them."""
    functions = functions_of(module)
    entering = {call.op for call in outer if call.enters}
    leaving = {source for call in outer if not call.enters and (source := call.before) is not None}
    for call in find_ops(main.operation, ["func.call"]):
        takes = [is_token(value.type) or defining_op(value) in entering for value in call.operands]
        gives = [
            is_token(value.type) or any(use.owner.operation in leaving for use in value.uses)
            for value in call.results
        ]
        if callee(call) in functions and any((*takes, *gives)) and all((*takes, *gives)):
            for op in inline(call, functions[callee(call)]):
                op.attributes[_INSIDE] = ir.UnitAttr.get()
    inline_calls(module, main, lambda call: not _is_inside(call, entering))


def _is_inside(call: ir.Operation, entering: set[ir.Operation]) -> bool:
    """Whether a call is in a body that was inlined, or computes with blocks that enter a region."""
    parent: Any = call
    while parent is not None:
        if _INSIDE in parent.operation.attributes:
            return True
        parent = parent.operation.parent
    queue, seen = [call], set[ir.Operation]()
    while queue:
        op = queue.pop()
        if op in entering or op.name == PARTITION_ID:
            return True
        if op not in seen:
            seen.add(op)
            sources = map(defining_op, op.operands)
            queue += [source for source in sources if source is not None]
    return not any(isinstance(value.type, ir.RankedTensorType) for value in call.operands)


def take_inside(main: func.FuncOp) -> set[ir.Operation]:
    """The marked ops, without their marks."""
    found = [op for op in walk(main.operation) if _INSIDE in op.attributes]
    for op in found:
        del op.attributes[_INSIDE]
    return set(found)  # not before: the hash of an op depends on its attributes
