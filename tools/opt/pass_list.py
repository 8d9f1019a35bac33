"""The list of passes that shmap-opt prints for --list-passes."""

from __future__ import annotations

import typing
from collections.abc import Iterable

from shmap_passes import Pass, option_fields, option_text, option_types
from shmap_passes.ir.types import OptionType


def pass_list(passes: Iterable[type[Pass]]) -> str:
    """Each pass with its summary and its options, in the order of the pipeline."""
    return "".join(_entry(cls) for cls in passes)


def _entry(cls: type[Pass]) -> str:
    lines = [f"--{cls.name}", f"    {cls.summary()}"]
    for field in option_fields(cls):
        values = _values(option_types(cls)[field.name])
        lines.append(f"    {field.name}={values}  (default: {option_text(field.default)})")
    return "\n".join(lines) + "\n"


def _values(type_: OptionType) -> str:
    if type_ is bool:
        return "true|false"
    return "|".join(typing.get_args(type_)) or type_.__name__
