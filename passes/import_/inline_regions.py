"""Inlines the functions through which @main reaches manual regions."""

from __future__ import annotations

from collections.abc import Callable, Set

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import func
from jaxlib.mlir.dialects.builtin import ModuleOp

from ..base import PassRefused, Violation
from ..ir.inline_calls import functions_of, inline_calls


def inline_regions(
    module: ModuleOp,
    main: func.FuncOp,
    holds_region: Callable[[func.FuncOp], bool],
    no_region: str,
    to_inline: Callable[[Set[str]], Callable[[ir.Operation], bool]],
) -> None:
    """Inlines calls in @main until the regions are in it.

    Args:
      holds_region: whether a region is in a function itself.
      no_region: what a module without regions does not have, and what is for such modules.
      to_inline: from the functions that hold regions, whether to inline a call.

    Raises:
      PassRefused: there are no regions, or @main does not reach them.
    """
    holders = {name for name, function in functions_of(module).items() if holds_region(function)}
    if not holders:
        text = (
            f"the module has no {no_region}, and a program on full arrays must be partitioned first"
        )
        raise PassRefused([Violation(main.location, text)])
    inline_calls(module, main, to_inline(holders))
    if not holds_region(main):
        where = ", ".join(f"@{name}" for name in sorted(holders))
        text = f"the regions are in {where}, which @main does not call; call it, or name it @main"
        raise PassRefused([Violation(main.location, text)])
