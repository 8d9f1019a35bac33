"""Room for the frames of deep calls.

CPython keeps the frames of Python functions in chunks of 16 KiB, which it maps when a call does not
fit and unmaps when that call returns. A loop whose calls cross the end of a chunk does both in each
iteration. Tracing and lowering are a hundred calls deep and loop there, so the time that they took
varied by up to 50% with the number of frames around them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, TypeVar

_P = ParamSpec("_P")
_R = TypeVar("_R")

_SLOTS = 2**15 + 2**10
"""The operands that the frame has room for, 8 bytes each: a chunk of 512 KiB is made for it, and
the half that it leaves holds the frames of all calls in it."""


def with_room(fun: Callable[_P, _R], *args: _P.args, **kwargs: _P.kwargs) -> _R:
    """Calls a function with a chunk of its own for the frames of the calls in it."""
    return fun(*args, **kwargs)


with_room.__code__ = with_room.__code__.replace(co_stacksize=_SLOTS)
