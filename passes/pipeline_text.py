"""Pipelines as text: `builtin.module(shmap-wrap-manual{partitioner=shardy},canonicalize)`.

Our passes are defined in Python, so MLIR's own parser does not know them. This one reads the top
level; elements that are not ours stay as text and are read by MLIR.
"""

from __future__ import annotations

import difflib
import inspect
import shlex
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING
from typing import Any, Literal

from .base import Pass, PipelineError, option_fields, option_types
from .ir.types import OptionType

_ANCHOR = "builtin.module"


Alias = Callable[..., Sequence[Pass | str]]
"""A name for several passes: a function from its options, strings, to these passes."""


def parse_pipeline(
    text: str, known: Iterable[type[Pass]], aliases: Mapping[str, Alias] | None = None
) -> tuple[Pass | str, ...]:
    """Parses a textual pipeline.

    Args:
      text: as in `builtin.module(shmap-verify,canonicalize)`.
      known: the pass classes that it may name.
      aliases: names that stand for several passes.

    Returns:
      The elements in order: passes of `known` classes as objects, others as text.

    Raises:
      PipelineError: `text` has no anchor, its brackets do not match, or an option is unknown.
    """
    text = text.strip()
    if not (text.startswith(f"{_ANCHOR}(") and text.endswith(")")):
        raise PipelineError(f"pipeline '{text}' must read {_ANCHOR}(pass,pass{{option=value}},...)")
    by_name = {cls.name: cls for cls in known}
    elements = [each for each in _split(text[len(_ANCHOR) + 1 : -1]) if each]
    return tuple(pass_ for each in elements for pass_ in _element(each, by_name, aliases or {}))


def _element(
    text: str, by_name: Mapping[str, type[Pass]], aliases: Mapping[str, Alias]
) -> Sequence[Pass | str]:
    name, brace, options = text.partition("{")
    name = name.strip()
    if name not in by_name and name not in aliases:
        if name.startswith("shmap-"):
            raise PipelineError(f"no pass is named {name}; {_suggestion(name, by_name)}")
        return (text,)
    if brace and not options.endswith("}"):
        raise PipelineError(f"'{text}': the options have no closing brace")
    options = options.removesuffix("}")
    if name in aliases:
        return _expand(name, aliases[name], options)
    return (_with_options(by_name[name], options),)


def _expand(name: str, alias: Alias, text: str) -> Sequence[Pass | str]:
    words = [word.partition("=") for word in _words(name, text)]
    values = {option: value for option, _, value in words}
    types = typing.get_type_hints(alias)
    options = [each for each in inspect.signature(alias).parameters if _is_text(types[each])]
    for option in values:
        if option not in options:
            raise PipelineError(_no_such_option(name, option, options))
    return alias(**values)


def _with_options(cls: type[Pass], text: str) -> Pass:
    types = option_types(cls)
    values: dict[str, Any] = {}
    for word in _words(cls.name, text):
        option, _, value = word.partition("=")
        if option not in types:
            raise PipelineError(_no_such_option(cls.name, option, types))
        values[option] = _value(cls, option, types[option], value)
    for field in option_fields(cls):
        has_default = field.default is not MISSING or field.default_factory is not MISSING
        if not has_default and field.name not in values:
            raise PipelineError(f"{cls.name}: option {field.name} has no value, and no default")
    return cls(**values)


def _words(name: str, text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError as error:  # it ends in a backslash or in open quotes
        raise PipelineError(f"{name}: the options {text} cannot be read: {error}") from None


def _is_text(type_: OptionType) -> bool:
    return type_ is str or typing.get_origin(type_) is Literal


def _no_such_option(name: str, option: str, options: Iterable[str]) -> str:
    return f"{name} has no option '{option}'; its options: {', '.join(options) or 'none'}"


def _value(cls: type[Pass], option: str, type_: OptionType, text: str) -> object:
    if type_ is bool:
        if text not in ("true", "false"):
            raise PipelineError(f"{cls.name}: option {option}={text} is not one of true, false")
        return text == "true"
    if type_ is int:
        try:
            return int(text)
        except ValueError:
            raise PipelineError(
                f"{cls.name}: option {option}={text} is not a whole number"
            ) from None
    if _is_text(type_):
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


def _suggestion(name: str, by_name: Mapping[str, type[Pass]]) -> str:
    close = difflib.get_close_matches(name, by_name, n=1)
    return f"did you mean {close[0]}?" if close else f"there are: {', '.join(by_name)}"
