"""Programs that occur several times in one module: they are lowered once, and copied."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import cast

from jax.interpreters.mlir import ir

from shmap_compiler.base.jax_compat import kept_with_module
from shmap_compiler.base.untyped import LoweringContext


def repeated(ctx: LoweringContext, key: Hashable, make: Callable[[], ir.Module]) -> ir.Module:
    """A module that `make` returns at the insertion point, or a copy of one for an equal key.

    The caller consumes it. Only from the second on, modules of a key are copied: most programs
    occur once.

    Args:
      key: all on which the module depends, but for the line from which the program is called. Its
        functions, and the operations in `@main`, tell that line.
    """
    kept = kept_with_module(ctx.module_context)
    here = cast("ir.Location", ir.Location.current)
    if key not in kept:
        kept[key] = None
        return make()
    if kept[key] is None:
        module = make()
        kept[key] = _copy(module), here
        return module
    model, there = kept[key]
    module = _copy(model)
    for function in module.body.operations:
        for op in (function, *function.regions[0].blocks[0].operations):
            if op.location == there:
                op.operation.location = here
    return module


def _copy(module: ir.Module) -> ir.Module:
    return cast("ir.Module", module.operation.clone(ip=False).opview)
