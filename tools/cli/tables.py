"""Prints tables on the terminal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def print_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """An empty line, a header, and rows in columns under it."""
    from shmap_compiler.base.text_tables import table

    print("\n" + table(header, rows))
