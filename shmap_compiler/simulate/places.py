"""Where in the user's source an op of a module comes from."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from jaxlib.mlir import ir

from shmap_compiler.base.descriptions import shown_path

_LINE = re.compile(r'"([^"]+)":(\d+)')
_PACKAGE = str(Path(__file__).parents[1])


@dataclass(frozen=True)
class SourcePlace:
    """An op of the module and its line.

    Attributes:
      op: its name.
      line: the user's line, `train.py:12`; "" if the module does not tell.
    """

    op: str
    line: str

    def __str__(self) -> str:
        return f"{self.op} at {self.line or 'an unknown line'}"


def place_of(op: ir.Operation) -> SourcePlace:
    """The innermost line in the location of an op that is not in this package."""
    lines = _LINE.findall(str(op.location))
    own = [(path, line) for path, line in lines if not path.startswith(_PACKAGE)]
    return SourcePlace(op.name, f"{shown_path(own[0][0])}:{own[0][1]}" if own else "")
