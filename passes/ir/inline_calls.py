"""Inlines the calls through which @main reaches manual regions."""

from __future__ import annotations

import contextlib
import graphlib
from collections.abc import Callable

from jaxlib.mlir import ir, passmanager
from jaxlib.mlir.dialects import func
from jaxlib.mlir.dialects.builtin import ModuleOp

from ..base import PassRefused, Violation
from .find_ops import find_ops
from .ops import terminator

# If each function calls the next one twice, a module doubles with every function.
_MOST_INLINED = 20_000


def functions_of(module: ModuleOp) -> dict[str, func.FuncOp]:
    """The functions of a module that have a body, by name."""
    return {
        op.name.value: op
        for op in module.body.operations
        if isinstance(op, func.FuncOp) and not op.is_external
    }


def callee(call: ir.Operation) -> str:
    return ir.FlatSymbolRefAttr(call.attributes["callee"]).value


def inline_calls(
    module: ModuleOp, main: func.FuncOp, must_inline: Callable[[ir.Operation], bool]
) -> None:
    """Inlines calls in @main, and in what is inlined, until `must_inline` holds for none.

    Raises:
      PassRefused: a function calls itself, or there are too many calls.
    """
    inlined = 0
    while True:
        functions = functions_of(module)
        calls = [
            call
            for call in find_ops(main.operation, ["func.call"])
            if callee(call) in functions and must_inline(call)
        ]
        if not calls:
            return
        if not inlined:
            _check_recursion(module)
        for call in calls:
            inlined += 1
            if inlined > _MOST_INLINED:
                text = f"more than {_MOST_INLINED:,} calls would be inlined; call fewer functions"
                raise PassRefused([Violation(call.location, text)])
            inline(call, functions[callee(call)])


def inline(call: ir.Operation, function: func.FuncOp) -> list[ir.Operation]:
    """Replaces a call by a copy of what it calls; returns the ops that are in its place now."""
    copy = function.operation.clone()
    block = copy.regions[0].blocks[0]
    for argument, operand in zip(list(block.arguments), list(call.operands), strict=True):
        argument.replace_all_uses_with(operand)
    end = terminator(block)
    ops = [op.operation for op in block.operations if op.operation != end]
    for op in ops:
        op.move_before(call)
    for result, value in zip(list(call.results), list(end.operands), strict=True):
        result.replace_all_uses_with(value)
    call.erase()
    copy.erase()
    return ops


def reaches(module: ModuleOp, names: set[str]) -> set[str]:
    """The functions that call one of `names`, in some steps, and `names` themselves."""
    calls = _called(module)
    found = set(names)
    while more := {name for name, called in calls.items() if called & found} - found:
        found |= more
    return found


def _check_recursion(module: ModuleOp) -> None:
    """Raises PassRefused if a function calls itself, in some steps."""
    calls = {name: sorted(called) for name, called in _called(module).items()}
    try:
        graphlib.TopologicalSorter(calls).prepare()
    except graphlib.CycleError as error:
        name = min(error.args[1])
        text = f"@{name} calls itself, which XLA does not take; write a loop instead"
        raise PassRefused([Violation(functions_of(module)[name].location, text)]) from None


def _called(module: ModuleOp) -> dict[str, set[str]]:
    """The names that each function calls."""
    return {
        name: {callee(call) for call in find_ops(function.operation, ["func.call"])}
        for name, function in functions_of(module).items()
    }


def erase_uncalled(module: ModuleOp) -> None:
    """Erases the private functions that nothing refers to.

    None if an unregistered operation has a region: MLIR does not know what that refers to.
    """
    manager = passmanager.PassManager.parse("builtin.module(symbol-dce)", module.context)
    manager.enable_verifier(False)
    with contextlib.suppress(ir.MLIRError):
        manager.run(module.operation)
