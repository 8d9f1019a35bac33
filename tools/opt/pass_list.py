"""The list of passes that shmap-opt prints for --list-passes."""

from __future__ import annotations

import typing
from collections.abc import Iterable
from dataclasses import MISSING

from shmap_passes import Pass, option_fields, option_text, option_types
from shmap_passes.ir.types import OptionField, OptionType


def pass_list(passes: Iterable[type[Pass]]) -> str:
    """Each pass with its summary and its options, in the order of the pipeline."""
    return "".join(_entry(cls) for cls in passes)


def _entry(cls: type[Pass]) -> str:
    lines = [f"--{cls.name}", f"    {cls.summary()}"]
    for field in option_fields(cls):
        values = _values(option_types(cls)[field.name])
        lines.append(f"    {field.name}={values}  ({_default(field)})")
    return "\n".join(lines) + "\n"


def _default(field: OptionField) -> str:
    if field.default_factory is not MISSING:
        return f"default: {option_text(field.default_factory())}"
    return "required" if field.default is MISSING else f"default: {option_text(field.default)}"


def _values(type_: OptionType) -> str:
    if type_ is bool:
        return "true|false"
    return "|".join(typing.get_args(type_)) or type_.__name__
