"""Remembers, while a pipeline runs, what its passes read of MLIR's attributes and types.

These never change, and equal ones are one object in their context: what has been read of one stays
true. Each pass reads for itself; reading a gradient's hundreds of shardings once is enough.
They keep their context alive, so what is memoized is forgotten at the end of the run.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Hashable, Iterator
from contextvars import ContextVar
from typing import Any, TypeVar

_Result = TypeVar("_Result")

_memory: ContextVar[dict[Hashable, Any] | None] = ContextVar("memory", default=None)


@contextlib.contextmanager
def memoizing() -> Iterator[None]:
    """What `memoized` functions return is kept inside this context."""
    token = _memory.set({})
    try:
        yield
    finally:
        _memory.reset(token)


def memoized(function: Callable[..., _Result]) -> Callable[..., _Result]:
    """`function`, whose results depend on its hashable arguments only and are not changed."""

    @functools.wraps(function)
    def read(*args: Any) -> _Result:
        memory = _memory.get()
        if memory is None:
            return function(*args)
        key = function, args
        if key not in memory:
            memory[key] = function(*args)
        return memory[key]

    return read
