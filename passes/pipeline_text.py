"""Pipelines as text: `builtin.module(shmap-wrap-manual{partitioner=shardy},canonicalize)`.

Our passes are defined in Python, so MLIR's own parser does not know them. This one reads the top
level; elements that are not ours stay as text and are read by MLIR.
"""

from __future__ import annotations

import difflib
import shlex
import typing
from collections.abc import Iterable, Iterator
from typing import Any, Literal

from .base import Pass, PipelineError, option_types

_ANCHOR = "builtin.module"


def parse_pipeline(text: str, known: Iterable[type[Pass]]) -> tuple[Pass | str, ...]:
    """The elements of the pipeline `text`, those named in `known` as passes, others as text.

    Raises `PipelineError` if `text` has no anchor or no balance, or gives a known pass options that
    it does not take.
    """
    text = text.strip()
    if not (text.startswith(f"{_ANCHOR}(") and text.endswith(")")):
        raise PipelineError(f"pipeline '{text}' must read {_ANCHOR}(pass,pass{{option=value}},...)")
    by_name = {cls.name: cls for cls in known}
    return tuple(
        _element(element, by_name) for element in _split(text[len(_ANCHOR) + 1 : -1]) if element
    )


def _element(text: str, by_name: dict[str, type[Pass]]) -> Pass | str:
    name, brace, options = text.partition("{")
    name = name.strip()
    if name in by_name:
        if brace and not options.endswith("}"):
            raise PipelineError(f"'{text}': the options have no closing brace")
        return _with_options(by_name[name], options.removesuffix("}"))
    if name.startswith("shmap-"):
        raise PipelineError(f"there is no pass {name}; {_suggestion(name, by_name)}")
    return text


def _with_options(cls: type[Pass], text: str) -> Pass:
    types = option_types(cls)
    values: dict[str, Any] = {}
    for word in shlex.split(text):
        option, _, value = word.partition("=")
        if option not in types:
            raise PipelineError(
                f"{cls.name} has no option '{option}'; its options: {', '.join(types) or 'none'}"
            )
        values[option] = _value(cls, option, types[option], value)
    return cls(**values)


def _value(cls: type[Pass], option: str, type_: Any, text: str) -> object:
    if type_ is bool:
        if text not in ("true", "false"):
            raise PipelineError(f"{cls.name}: option {option}={text} is none of true, false")
        return text == "true"
    if type_ is int:
        try:
            return int(text)
        except ValueError:
            raise PipelineError(f"{cls.name}: option {option}={text} is no whole number") from None
    if type_ is str or typing.get_origin(type_) is Literal:
        return text
    raise PipelineError(f"{cls.name}: option {option} has type {type_}, which has no textual form")


def _split(text: str) -> Iterator[str]:
    """The parts of `text` between commas that stand in no bracket and no quotes."""
    depth, quote, start = 0, "", 0
    for index, char in enumerate(text):
        if quote:
            quote = "" if char == quote else quote
        elif char in "\"'":
            quote = char
        elif char in "({":
            depth += 1
        elif char in ")}":
            depth -= 1
        elif char == "," and depth == 0:
            yield text[start:index].strip()
            start = index + 1
        if depth < 0:
            break
    if depth or quote:
        raise PipelineError(f"brackets or quotes do not match in '{text}'")
    yield text[start:].strip()


def _suggestion(name: str, by_name: dict[str, type[Pass]]) -> str:
    close = difflib.get_close_matches(name, by_name, n=1)
    return f"did you mean {close[0]}?" if close else f"there are: {', '.join(by_name)}"
