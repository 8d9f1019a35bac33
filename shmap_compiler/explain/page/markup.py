"""Elements of HTML. What is not one is text, and is escaped: names come from users."""

from __future__ import annotations

import html
from collections.abc import Iterable

_WITHOUT_END = {"input"}


class Markup(str):
    """HTML, as against text that may hold anything."""


def element(name: str, *children: str, **attributes: str | int | bool | None) -> Markup:
    """An element, with a closing tag if it may have one.

    Args:
      children: texts and elements.
      attributes: `class_` stands for "class", `data_row` for "data-row"; True gives an attribute
        without a value; None and False leave it out.
    """
    opened = "".join(_attribute(key, value) for key, value in attributes.items())
    if name in _WITHOUT_END:
        return Markup(f"<{name}{opened}>")
    return Markup(f"<{name}{opened}>{join(*children)}</{name}>")


def join(*children: str) -> Markup:
    """Texts and elements one after another."""
    return Markup(
        "".join(child if isinstance(child, Markup) else _escape(child) for child in children)
    )


def _attribute(key: str, value: str | int | bool | None) -> str:
    if value is None or value is False:
        return ""
    name = key.rstrip("_").replace("_", "-")
    return f" {name}" if value is True else f' {name}="{_escape(str(value))}"'


def _escape(text: str) -> str:
    """Text in ASCII, which a file in any encoding holds alike."""
    return html.escape(text).encode("ascii", "xmlcharrefreplace").decode("ascii")


def bar(shares: Iterable[tuple[str, float]], over: bool = False) -> Markup:
    """Parts of a whole, beside a table that says the same."""
    parts = (
        element("i", class_=name, style=f"width:{100 * share:.2f}%")
        for name, share in shares
        if share
    )
    return element("span", *parts, class_="bar over" if over else "bar", aria_hidden="true")
