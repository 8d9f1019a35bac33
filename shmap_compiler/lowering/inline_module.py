"""Inlines one MLIR module into another, at the insertion point of a lowering rule."""

from __future__ import annotations

from collections.abc import Sequence

from jax.interpreters import mlir
from jax.interpreters.mlir import ir
from jaxlib.mlir.dialects import func as func_dialect

from shmap_compiler.base.untyped import LoweringContext


def merge(
    module: ir.Module, name: str, ctx: LoweringContext, args: Sequence[ir.Value]
) -> list[ir.Value]:
    """The results of `@main` of `module`, applied to `args` at the insertion point of `ctx`.

    Consumes `module`. Its other functions join those of the module that is being lowered.

    Args:
      name: a temporary name for `@main`, which appears in diagnostics only.
    """
    module_context = ctx.module_context
    with module_context.context, ir.Location.unknown():
        symbol = mlir.merge_mlir_modules(
            module_context.module, name, module, dst_symtab=module_context.symbol_table
        )
    # Their location is that of the lowering rule.
    return _inline(symbol, module_context.symbol_table, list(args))


def _inline(symbol: str, symbol_table: ir.SymbolTable, args: list[ir.Value]) -> list[ir.Value]:
    """Moves the operations of function `symbol` to the insertion point, and erases the function.

    XLA combines collectives of different graphs only within one function.
    """
    function = symbol_table[symbol]
    block = function.regions[0].blocks[0]
    for parameter, value in zip(block.arguments, args, strict=True):
        parameter.replace_all_uses_with(value)
    *operations, terminator = block.operations
    marker = func_dialect.CallOp([], ir.FlatSymbolRefAttr.get(symbol), [])
    for operation in operations:
        operation.operation.move_before(marker.operation)
    results = list(terminator.operation.operands)
    terminator.operation.erase()
    marker.operation.erase()
    symbol_table.erase(function)
    return results
