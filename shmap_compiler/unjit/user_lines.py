"""The user's lines that operations come from, and the variables that these lines assign."""

from __future__ import annotations

import ast
import linecache
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import NamedTuple

import jax
from jaxlib.mlir import ir

from shmap_compiler.base.descriptions import shown_path

_FRAME = re.compile(r'"([^"]*)"\("([^"]+)":(\d+)(?::(\d+))?')
_NAME = re.compile(r'^loc\("([^"]*)"')
_LAMBDA = "<lambda>"
_INTERNAL = (str(Path(jax.__file__).parent), str(Path(__file__).parents[1]))


class Frame(NamedTuple):
    """A place in a function of the user's; `column` counts from 0."""

    function: str
    path: str
    line: int
    column: int


@dataclass(frozen=True)
class UserLine:
    """Where an operation comes from.

    Attributes:
      place: `train.py:12`; "" if the module does not tell.
      text: the line.
      variable: the variable that its statement assigns; "" if it assigns none.
      statement: what operations of one statement share.
      is_backward: whether the operation belongs to a derivative, in reverse.
    """

    place: str
    text: str
    variable: str
    statement: tuple[str, int]
    is_backward: bool


NOWHERE = UserLine("", "", "", ("", 0), False)


def user_line(op: ir.Operation, outermost: str) -> UserLine:
    """The user's line of an operation.

    Args:
      outermost: the jitted function; its callers have nothing to do with the operation. "" if
        locations do not name it.
    """
    return _read(str(op.location), outermost)


@cache
def frames_of(location: str, outermost: str) -> tuple[Frame, ...]:
    """The frames of the user's functions that a location names, inner ones first.

    Args:
      outermost: as for `user_line`.
    """
    frames = tuple(
        Frame(function.rpartition(".")[2], path, int(line), int(column or -1))
        for function, path, line, column in _FRAME.findall(location)
        if not path.startswith(_INTERNAL) and "site-packages" not in path
    )
    is_outside = bool(outermost) and all(frame.function != outermost for frame in frames)
    return () if is_outside else frames


def is_backward(location: str) -> bool:
    """Whether a location is that of a derivative, in reverse."""
    name = _NAME.match(location)
    return name is not None and "transpose(" in name[1]


@cache
def _read(location: str, outermost: str) -> UserLine:
    frames = frames_of(location, outermost)
    if not frames:
        return NOWHERE
    backward = is_backward(location)
    inner, path, line, _ = frames[0]
    statement = None if inner == _LAMBDA else _statement(path, line)
    variable = ""
    for function, file, number, _ in frames:
        # What a function returns is what its caller assigns it to.
        is_lambda = function == _LAMBDA
        found = None if is_lambda else _statement(file, number)
        variable = "" if found is None else _assigned(found)
        returns = is_lambda or isinstance(found, ast.Return)
        if variable or function == outermost or not returns:
            if function == outermost and returns:
                variable = "result"
            break
    first = line if statement is None else statement.lineno
    text = linecache.getline(path, first).strip()
    return UserLine(f"{shown_path(path)}:{first}", text, variable, (path, first), backward)


def _assigned(statement: ast.stmt) -> str:
    if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
        target = statement.targets[0]
    elif isinstance(statement, (ast.AugAssign, ast.AnnAssign)):
        target = statement.target
    else:
        return ""
    return target.id if isinstance(target, ast.Name) else ""


def _statement(path: str, line: int) -> ast.stmt | None:
    return _statements(path).get(line)


@cache
def _statements(path: str) -> dict[int, ast.stmt]:
    """The simple statement on each line of a file."""
    try:
        tree = ast.parse("".join(linecache.getlines(path)))
    except SyntaxError:
        return {}
    found: dict[int, ast.stmt] = {}
    simple = (ast.Assign, ast.AugAssign, ast.AnnAssign, ast.Return, ast.Expr)
    for node in ast.walk(tree):
        if isinstance(node, simple):
            for line in range(node.lineno, (node.end_lineno or node.lineno) + 1):
                found.setdefault(line, node)
    return found
