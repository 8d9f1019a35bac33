"""Inlines what the steps of loops call, where these steps gather or scatter.

JAX 0.10 lowers the step of a scan as a function, and what it reads of an array as another.
"""

from __future__ import annotations

from jaxlib.mlir import ir
from jaxlib.mlir.dialects.builtin import ModuleOp

from ...ir.body_form import read_body_form
from ...ir.collective_ops import ALL_GATHER, REDUCE_SCATTER
from ...ir.find_ops import find_ops
from ...ir.inline_calls import callee, erase_uncalled, functions_of, inline_calls
from ..find.loops import WHILE

_CALL = "func.call"


def inline_steps(module: ModuleOp) -> None:
    """Leaves no call in a loop of @main that gathers or scatters, in itself or in a function."""
    loops = [op for op in find_ops(module.operation, [WHILE]) if _communicates(op, module)]
    if not loops:
        return
    inline_calls(module, read_body_form(module).main, lambda call: _is_in(call, loops))
    # They have sites of their own, which would be counted twice.
    erase_uncalled(module)


def _communicates(op: ir.Operation, module: ModuleOp) -> bool:
    functions = functions_of(module)
    seen: set[str] = set()
    pending = [op]
    while pending:
        inside = pending.pop()
        if find_ops(inside, [ALL_GATHER, REDUCE_SCATTER]):
            return True
        called = {callee(call) for call in find_ops(inside, [_CALL])} - seen
        seen |= called
        pending += [functions[name].operation for name in sorted(called) if name in functions]
    return False


def _is_in(op: ir.Operation, loops: list[ir.Operation]) -> bool:
    parent = op.parent
    while parent is not None:
        if parent.operation in loops:
            return True
        parent = parent.operation.parent
    return False
