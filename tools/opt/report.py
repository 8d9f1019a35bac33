"""What shmap-opt prints to standard error: diagnostics with their source lines, reproducers."""

from __future__ import annotations

import shlex
import sys
import tempfile
from collections.abc import Sequence

from shmap_passes import Diagnostic

from .split_input import lines_of


def report(diagnostics: Sequence[Diagnostic], name: str, source: str) -> None:
    """Prints diagnostics, each with the line of `source` that it is about.

    Args:
      name: of the input, for positions in it.
      source: the text of the module.
    """
    lines = lines_of(source)
    for diagnostic in diagnostics:
        for part in (diagnostic, *diagnostic.notes):
            print(_line(part, name), file=sys.stderr)
            where = part.place.rsplit(":", 2)
            if where[0] == "-" and 1 <= int(where[1]) <= len(lines):
                print(lines[int(where[1]) - 1], file=sys.stderr)
                print(" " * (int(where[2]) - 1) + "^", file=sys.stderr)


def reproducer(argv: Sequence[str], input_: str, source: bytes) -> str:
    """The command that runs the same again; standard input is kept in a file for it."""
    words = list(argv)
    if input_ == "-":
        with tempfile.NamedTemporaryFile(
            "wb", prefix="shmap-opt-", suffix=".mlir", delete=False
        ) as kept:
            kept.write(source)
        # The other "-" is where the result goes.
        words = [w for k, w in enumerate(words) if w != "-" or words[k - 1 : k] == ["-o"]]
        words.append(kept.name)
    return shlex.join(["shmap-opt", *words])


def _line(diagnostic: Diagnostic, name: str) -> str:
    """MLIR calls a module that was parsed from text "-"."""
    place = f"{name}{diagnostic.place[1:]}" if diagnostic.place[:2] == "-:" else diagnostic.place
    return f"{place}: {diagnostic.severity}: {diagnostic.message}"
