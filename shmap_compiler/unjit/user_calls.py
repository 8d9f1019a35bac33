"""Calls in the user's files, by the place at which they begin."""

from __future__ import annotations

import ast
import linecache
from functools import cache

SOURCE = "{}"
"""Stands in a call for an argument that is not a literal."""
_SHOWN = {
    "jax.lax": "lax",
    "jax.nn": "jax.nn",
    "jax.numpy": "jnp",
    "jax.numpy.linalg": "jnp.linalg",
    "jax.scipy.special": "jax.scipy.special",
}
_METHODS = {"mean", "std", "var"}


@cache
def library_call_at(path: str, line: int, column: int) -> str | None:
    """The call of the library that begins at a place, with `{}` for arguments but literals."""
    node = call_at(path, line, column)
    return None if node is None else _text(node, path)


def call_at(path: str, line: int, column: int) -> ast.Call | None:
    """The one call that begins at a place."""
    calls = _calls(path).get((line, column), [])
    return calls[0] if len(calls) == 1 else None


def full_name(path: str, function: ast.expr) -> str:
    """A function by the module that a file imports it from; "" if it is of another kind."""
    first, _, rest = _dotted(function).partition(".")
    modules = _modules(path)
    return f"{modules[first]}.{rest}".rstrip(".") if first in modules else ""


def _text(node: ast.Call, path: str) -> str | None:
    whole = full_name(path, node.func)
    module, _, function = whole.rpartition(".")
    arguments = [_argument(each) for each in node.args]
    if module in _SHOWN:
        name = f"{_SHOWN[module]}.{function}"
    elif not whole and isinstance(node.func, ast.Attribute) and node.func.attr in _METHODS:
        name = f"jnp.{node.func.attr}"
        arguments.insert(0, SOURCE)
    else:
        return None
    if any(each.arg is None for each in node.keywords):
        return None
    arguments += [f"{each.arg}={_argument(each.value)}" for each in node.keywords]
    return f"{name}({', '.join(arguments)})"


def _argument(node: ast.expr) -> str:
    try:
        value = ast.literal_eval(node)
    except ValueError:
        return SOURCE
    shown = repr(value)
    if isinstance(value, str) and '"' not in value:
        shown = f'"{value}"'
    return shown.replace("{", "{{").replace("}", "}}")


def _dotted(node: ast.expr) -> str:
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        inner = _dotted(node.value)
        return f"{inner}.{node.attr}" if inner else ""
    return ""


@cache
def _tree(path: str) -> ast.Module:
    try:
        return ast.parse("".join(linecache.getlines(path)))
    except SyntaxError:
        return ast.Module([], [])


@cache
def _calls(path: str) -> dict[tuple[int, int], list[ast.Call]]:
    found: dict[tuple[int, int], list[ast.Call]] = {}
    for node in ast.walk(_tree(path)):
        if isinstance(node, ast.Call):
            found.setdefault((node.lineno, node.col_offset), []).append(node)
    return found


@cache
def _modules(path: str) -> dict[str, str]:
    """What the names that a file imports stand for."""
    found: dict[str, str] = {}
    for node in ast.walk(_tree(path)):
        if isinstance(node, ast.Import):
            for each in node.names:
                found[each.asname or each.name.partition(".")[0]] = (
                    each.name if each.asname else each.name.partition(".")[0]
                )
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for each in node.names:
                found[each.asname or each.name] = f"{node.module}.{each.name}"
    return found
