"""The module of a program as it is emitted and as each pass leaves it, printed when asked for.

Printing a module after each of eleven passes takes as long as lowering it, and most programs are
never looked at. Passes are deterministic: a copy of the emitted module is enough to run them again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

import shmap_passes
from jax.interpreters.mlir import ir
from shmap_passes import Pass


class Snapshots:
    """The modules of one program; of nested programs only the outermost, which comes last."""

    def __init__(self) -> None:
        self._emitted: Any = None
        self._passes: tuple[Pass | str, ...] = ()

    def emitted(self, module: ir.Module, passes: Sequence[Pass | str]) -> None:
        """Takes a copy of a module in body form, before the passes run over it."""
        self._emitted, self._passes = module.operation.clone(ip=False), tuple(passes)

    @cached_property
    def body(self) -> str:
        """The text of the emitted module."""
        return str(self._emitted)

    @cached_property
    def texts(self) -> tuple[tuple[str, str], ...]:
        """The module at "body" and after each pass, as (name, text). MLIR verifies each."""
        return tuple((name, str(module)) for name, module in self._stages())

    @cached_property
    def texts_with_lines(self) -> tuple[tuple[str, str], ...]:
        """The same with the source line of every operation."""
        return tuple(
            (name, module.operation.get_asm(enable_debug_info=True))
            for name, module in self._stages()
        )

    def _stages(self) -> Iterator[tuple[str, Any]]:
        """One module, in each of its states."""
        module = self._emitted.operation.clone(ip=False)
        yield "body", module
        for each in self._passes:
            shmap_passes.run(module, (each,))
            yield str(each).partition("{")[0], module
