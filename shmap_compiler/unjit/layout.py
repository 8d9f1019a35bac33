"""Python expressions as text, and how long ones are broken into lines, as formatters break them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

WIDTH = 88
_INDENT = 4

# How strongly operators bind, weakest first.
COMPARE, OR, XOR, AND, SHIFT, SUM, PRODUCT, UNARY, ATOM = range(9)


@dataclass(frozen=True)
class Code:
    """An expression.

    Attributes:
      text: on one line.
      level: how strongly its outermost operator binds.
      head: what stands before `items` where they are on lines of their own, with the bracket.
      items: the arguments of a call, or the elements of a display.
      tail: the closing bracket.
      is_display: whether it is a tuple, list or dict, whose elements get a line each.
    """

    text: str
    level: int = ATOM
    head: str = ""
    items: tuple[Code, ...] = ()
    tail: str = ""
    is_display: bool = False

    def at(self, level: int) -> str:
        """The text as an operand of an operator, in parentheses where it binds less strongly."""
        return self.text if self.level >= level else f"({self.text})"


def code(value: Code | str) -> Code:
    return value if isinstance(value, Code) else Code(value)


def call(function: str, *arguments: Code | str, **named: Code | str) -> Code:
    """A call of a function."""
    items = [*map(code, arguments), *(_named(name, code(value)) for name, value in named.items())]
    return bracketed(f"{function}(", items, ")")


def bracketed(head: str, items: Sequence[Code], tail: str, is_display: bool = False) -> Code:
    """An expression that ends with items in brackets."""
    text = f"{head}{', '.join(item.text for item in items)}{tail}"
    return Code(text, ATOM, head, tuple(items), tail, is_display)


def display(opening: str, items: Iterable[Code | str], closing: str) -> Code:
    """A tuple, list or dict."""
    elements = list(map(code, items))
    made = bracketed(opening, elements, closing, is_display=True)
    if opening == "(" and len(elements) == 1:
        return Code(f"({elements[0].text},)", ATOM, opening, tuple(elements), closing, True)
    return made


def numbers(values: Iterable[int]) -> Code:
    """A tuple of integers."""
    return display("(", map(str, values), ")")


def binary(left: Code, operator: str, right: Code, level: int) -> Code:
    """An operator between two expressions; of equal ones the left is applied first."""
    text = f"{left.at(level)} {operator} {right.at(level + 1)}"
    return Code(text, level)


def _named(name: str, value: Code) -> Code:
    head = f"{name}={value.head}" if value.head else ""
    return Code(f"{name}={value.text}", ATOM, head, value.items, value.tail, value.is_display)


def lay_out(indent: int, before: str, expression: Code, after: str = "") -> list[str]:
    """The lines of an expression between two texts."""
    pad = " " * indent
    line = f"{pad}{before}{expression.text}{after}"
    if len(line) <= WIDTH:
        return [line]
    if not expression.items:
        if expression.level == ATOM:
            return [line]
        return [f"{pad}{before}(", f"{pad}{' ' * _INDENT}{expression.text}", f"{pad}){after}"]
    inner = ", ".join(item.text for item in expression.items)
    lines = [f"{pad}{before}{expression.head}"]
    if not expression.is_display and indent + _INDENT + len(inner) <= WIDTH:
        lines.append(f"{pad}{' ' * _INDENT}{inner}")
    else:
        for item in expression.items:
            lines += lay_out(indent + _INDENT, "", item, ",")
    return [*lines, f"{pad}{expression.tail}{after}"]
