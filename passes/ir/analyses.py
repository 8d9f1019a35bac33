"""Keeps what passes find in a module, until one of them changes the module.

Most passes leave most modules as they are. What one has found, the next would find again: the body
form, the collectives. As in MLIR's analysis manager, a pass says when analyses still hold, and only
then is anything kept. A pass asks before it changes the module.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Generator
from contextvars import ContextVar
from typing import Any, TypeVar

from jaxlib.mlir import ir
from jaxlib.mlir.dialects.builtin import ModuleOp

_Result = TypeVar("_Result")

_found: ContextVar[dict[tuple[Callable[..., object], ir.Operation], Any] | None] = ContextVar(
    "found", default=None
)


@contextlib.contextmanager
def keeping_analyses() -> Generator[None]:
    """Analyses of a module are kept inside this, until `forget_analyses`."""
    token = _found.set({})
    try:
        yield
    finally:
        _found.reset(token)


def forget_analyses() -> None:
    found = _found.get()
    if found:
        found.clear()


def analysis(find: Callable[[ModuleOp], _Result]) -> Callable[[ModuleOp], _Result]:
    """Keeps the results of a function of a module, inside `keeping_analyses`.

    They must not be modified. What the function raises is not kept.
    """

    @functools.wraps(find)
    def found_or_kept(module: ModuleOp) -> _Result:
        found = _found.get()
        if found is None:
            return find(module)
        key = find, module.operation
        if key not in found:
            found[key] = find(module)
        return found[key]

    return found_or_kept
