"""Inlines one MLIR module into another, at the insertion point of a lowering rule."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import cast

from jax.interpreters.mlir import ir

from shmap_compiler.base.untyped import LoweringContext, OpView


def merge(module: ir.Module, ctx: LoweringContext, args: Sequence[ir.Value]) -> list[ir.Value]:
    """The results of `@main` of `module`, applied to `args` at the insertion point of `ctx`.

    Consumes `module`. Its other functions join those of the module that is being lowered. XLA
    combines collectives of different graphs only within one function, so `@main` is not called.
    """
    main, *others = _main_first(module)
    table = ctx.module_context.symbol_table
    _rename(others, module, table)
    for function in others:
        function.attributes["sym_visibility"] = ir.StringAttr.get("private", module.context)
        ctx.module_context.module.body.append(function)
        table.insert(function)
    return _inline(main, args)


def _main_first(module: ir.Module) -> list[OpView]:
    """The functions of a module, in order but for `@main`."""
    return sorted(module.body.operations, key=lambda op: op.sym_name.value != "main")


def _rename(functions: Sequence[OpView], module: ir.Module, taken: ir.SymbolTable) -> None:
    """Gives other names to those of the functions of a module whose names are `taken`."""
    own = ir.SymbolTable(module.operation)
    for function in functions:
        name = function.sym_name.value
        if name in taken:
            numbered = (f"{name}_{number}" for number in itertools.count())
            new = next(each for each in numbered if each not in taken and each not in own)
            own.replace_all_symbol_uses(name, new, module.operation)
            own.set_symbol_name(function, new)


def _inline(main: OpView, args: Sequence[ir.Value]) -> list[ir.Value]:
    """Moves the operations of a function to the insertion point, and erases the function."""
    block = main.regions[0].blocks[0]
    for parameter, value in zip(block.arguments, args, strict=True):
        parameter.replace_all_uses_with(value)
    *operations, terminator = block.operations
    here = cast("ir.InsertionPoint", ir.InsertionPoint.current)
    for operation in operations:
        here.insert(operation.detach_from_parent())
    results = list(terminator.operands)
    terminator.erase()
    main.erase()
    return results
