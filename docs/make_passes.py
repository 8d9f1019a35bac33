"""Writes docs/passes.md from the docstrings of the passes: python docs/make_passes.py

A docstring is prose with four sections that begin at the margin. "Before" and "After" are code, as
is what else is indented; "Needs" and "Leaves" become points of a list.
"""

import inspect
import re
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

import shmap_passes

PAGE = Path(__file__).with_name("passes.md")
HEAD = """\
# Passes

<!-- Made by docs/make_passes.py from the docstrings of the passes. -->

Each pass is one file of `passes/` and one flag of `shmap-opt`. They work on the *body form*, which
`passes/ir/body_form.py` describes: StableHLO on per-device types, before wrapping. This is
their order in the pipeline, which leaves out `shmap-check-replication`; `passes/pipeline.py` says
why each stands where it does."""


def page() -> str:
    entries = (part for cls in shmap_passes.PASSES for part in _entry(cls))
    return "\n\n".join([HEAD, *entries]) + "\n"


def _entry(cls: type[shmap_passes.Pass]) -> Iterator[str]:
    yield f"## {cls.name}"
    text = inspect.getdoc(inspect.getmodule(cls)) or ""
    for kind, lines in groupby(_classified(text), key=lambda pair: pair[0]):
        part = "\n".join(line for _, line in lines)
        if kind == "code":
            yield f"```mlir\n{part}\n```"
        elif kind == "list":
            yield re.sub(
                r"^(Needs|Leaves): +", r"- **\1** ", re.sub(r"\n +", "\n  ", part), flags=re.M
            )
        elif kind == "prose":
            yield part
    for field in shmap_passes.option_fields(cls):
        default = shmap_passes.option_text(field.default)
        yield f"Option `{field.name}`, by default `{default}`."


def _classified(text: str) -> Iterator[tuple[str, str]]:
    """Each line with its kind: "prose", "code", "list" or, if it is empty, ""."""
    kind = ""
    for line in text.splitlines():
        if not line:
            kind = ""
        elif line.startswith(("Before", "After")):
            kind = "code"
        elif line.startswith(("Needs", "Leaves")):
            kind = "list"
        elif not line.startswith(" "):
            kind = "prose"
        elif not kind:
            kind = "code"
        yield kind, line


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
