"""Memoizes what passes read from MLIR's attributes and types, for the duration of a pipeline run.

Attributes and types are immutable, and equal ones are one object in their context. Each pass reads
the module itself, but a gradient has hundreds of shardings, and reading each once is enough. Since
attributes keep their context alive, the memory is cleared at the end of the run. Emission knows
what passes would read, and can leave it in the memory of the run that follows.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Generator, Hashable
from contextvars import ContextVar
from typing import Any, ParamSpec, TypeVar

from jaxlib.mlir import ir

_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")

_memory: ContextVar[tuple[ir.Context, dict[Hashable, Any]] | None] = ContextVar(
    "memory", default=None
)


@contextlib.contextmanager
def memoizing(context: ir.Context) -> Generator[None]:
    """What `memoized` functions return is kept inside this, and inside what it surrounds.

    Args:
      context: where all attributes are. In another one, such as that of a program which is lowered
        while this one is, nothing that is kept for this one is returned.
    """
    before = _memory.get()
    if before is not None and before[0] == context:
        yield
        return
    token = _memory.set((context, {}))
    try:
        yield
    finally:
        _memory.reset(token)


def memoized(function: Callable[_Parameters, _Result]) -> Callable[_Parameters, _Result]:
    """Memoizes a function of hashable positional arguments, inside `memoizing`.

    The result must depend on the arguments only, and must not be modified.
    """

    @functools.wraps(function)
    def read(*args: _Parameters.args, **kwargs: _Parameters.kwargs) -> _Result:
        found = _memory.get()
        if found is None or kwargs:
            return function(*args, **kwargs)
        memory, key = found[1], (function, args)
        try:  # hashes the key once
            return memory[key]
        except KeyError:
            pass
        result = memory[key] = function(*args, **kwargs)
        return result

    return read


def remember(function: Callable[..., object], args: tuple[Hashable, ...], result: object) -> None:
    """Lets a memoized function return a result that is known, inside `memoizing`.

    Args:
      args: all arguments of the function, in order.
    """
    found = _memory.get()
    if found is not None:
        found[1][getattr(function, "__wrapped__"), args] = result  # noqa: B009
