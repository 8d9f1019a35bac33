"""Reads the variables of Python functions."""

from __future__ import annotations

import dis
import functools
from collections.abc import Iterator
from types import CellType, CodeType, FunctionType

from shmap_compiler.base.untyped import Unchecked


def contents(cell: CellType) -> Unchecked:
    """The value of a variable that a function closes over; the cell itself if it has none yet."""
    try:
        return cell.cell_contents
    except ValueError:
        return cell


def named_globals(fun: FunctionType) -> Iterator[str]:
    """The names that a function, or one written in it, looks up in its module or as attributes."""
    return (name for code in codes(fun.__code__) for name in code.co_names)


@functools.lru_cache(maxsize=4096)
def assigned_globals(code: CodeType) -> frozenset[str]:
    """The globals that a function, or one written in it, assigns or deletes."""
    instructions = (each for inside in codes(code) for each in dis.get_instructions(inside))
    return frozenset(i.argval for i in instructions if i.opname in _ASSIGNMENTS)


_ASSIGNMENTS = frozenset({"STORE_GLOBAL", "DELETE_GLOBAL"})


def codes(code: CodeType) -> Iterator[CodeType]:
    """A function's code, and that of the functions written in it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from codes(constant)


@functools.lru_cache(maxsize=4096)
def attribute_paths(code: CodeType) -> frozenset[tuple[str, ...]]:
    """The variables that a function, or one written in it, reads, with attributes read of them.

    `jax.numpy.sin` is ("jax", "numpy", "sin"), of which the beginnings are found, too.
    """
    found: set[tuple[str, ...]] = set()
    for inside in codes(code):
        path: tuple[str, ...] = ()
        for each in dis.get_instructions(inside):
            if each.opname in _OF_ATTRIBUTES:
                path = (*path, each.argval) if path else ()
            elif each.opname.startswith(_OF_VARIABLES):
                path = (each.argval if isinstance(each.argval, str) else each.argval[-1],)
            elif each.opname not in _BETWEEN:
                path = ()
            found.add(path)
    return frozenset(found - {()})


_OF_ATTRIBUTES = frozenset({"LOAD_ATTR", "LOAD_METHOD"})
_OF_VARIABLES = ("LOAD_GLOBAL", "LOAD_DEREF", "LOAD_FAST", "LOAD_NAME")
_BETWEEN = frozenset({"CACHE", "PUSH_NULL", "NOP", "EXTENDED_ARG"})
