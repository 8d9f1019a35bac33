"""Reads the variables of Python functions."""

from __future__ import annotations

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


def codes(code: CodeType) -> Iterator[CodeType]:
    """A function's code, and that of the functions written in it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from codes(constant)
