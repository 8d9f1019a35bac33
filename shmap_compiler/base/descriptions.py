"""How errors name what the user wrote: functions with their lines, values and files."""

from __future__ import annotations

import functools
import inspect
import os
import reprlib
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from shmap_compiler.base.untyped import Function

_STANDS_FOR, _DESCRIBED_AS = "_stands_for", "_described_as"

_F = TypeVar("_F", bound=Callable[..., Any])


def update_wrapper(
    made: _F, fun: Function, updated: Sequence[str] = functools.WRAPPER_UPDATES
) -> _F:
    """`made` with the attributes of `fun`, as of `functools.update_wrapper`, and with a name.

    A `functools.partial` and most objects have none.
    """
    functools.update_wrapper(made, fun, updated=updated)
    made.__name__ = function_name(fun)
    made.__qualname__ = getattr(fun, "__qualname__", made.__name__)
    return made


def standing_for(made: _F, fun: Function, who: str | None = None) -> _F:
    """`made`, which runs a traced program, described in errors as the user's function `fun`.

    Unlike `update_wrapper`, it does not say that calls of `made` run the code of `fun`.

    Args:
      who: how it is described; by default as any function.
    """
    made.__name__ = made.__qualname__ = function_name(fun)
    setattr(made, _STANDS_FOR, fun)
    if who is not None:
        setattr(made, _DESCRIBED_AS, who)
    return made


def runs_traced_program(fun: Function) -> bool:
    """Whether `fun` was made by `standing_for`: what types mean in it was decided before."""
    return hasattr(fun, _STANDS_FOR)


def describe(fun: Function) -> str:
    """Name and place of a user's function: "`f` (train.py:12)"."""
    if hasattr(fun, _DESCRIBED_AS):
        return getattr(fun, _DESCRIBED_AS)
    name = function_name(fun)
    inner: Any = inspect.unwrap(getattr(fun, _STANDS_FOR, fun))
    while isinstance(inner, functools.partial):
        inner = inner.func
    code = getattr(inner, "__code__", None) or getattr(type(inner).__call__, "__code__", None)
    if code is None:
        return f"`{name}`"
    return f"`{name}` ({shown_path(code.co_filename)}:{code.co_firstlineno})"


def function_name(fun: Function) -> str:
    """Name of a callable, looking through functools.partial."""
    while isinstance(fun, functools.partial):
        fun = fun.func
    return getattr(fun, "__name__", type(fun).__name__)


def show_value(value: object) -> str:
    """A value other than an array, in a few words: `'adam', a str`."""
    return f"{reprlib.repr(value)}, {show_type_of(value)}"


def show_type_of(value: object) -> str:
    """The name of a value's type with its article: "an int"."""
    return with_article(type(value).__name__)


def show_axes(axes: Sequence[str]) -> str:
    """Axes in a sentence: `axis 'i'`, `axes 'i', 'j'`."""
    return ("axis " if len(axes) == 1 else "axes ") + ", ".join(map(repr, axes))


def show_names(axes: Sequence[str]) -> str:
    """Axes as an argument of a collective: `'i'`, `('i', 'j')`."""
    return repr(axes[0]) if len(axes) == 1 else repr(tuple(axes))


def with_article(word: str) -> str:
    """A word after "a", or after "an" if it begins with a vowel: "an int", "a str"."""
    return f"{'an' if word[:1].lower() in tuple('aeiou') else 'a'} {word}"


def shown_path(path: str) -> str:
    """A source file as errors name it: relative to the working directory if it lies below it."""
    return _shown_from(os.getcwd(), path) if path else ""


@functools.lru_cache(maxsize=256)
def _shown_from(folder: str, path: str) -> str:
    relative = os.path.relpath(path, folder)
    return path if relative.startswith(os.pardir) else relative
