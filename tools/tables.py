"""Tables for the terminal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def print_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """An empty line, a header, and rows in columns under it."""
    table = [tuple(header), *((f"  {first}", *rest) for first, *rest in rows)]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    print()
    for row in table:
        line = "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        print(line.rstrip())


def duration(seconds: float) -> str:
    return f"{seconds:.3g} s" if seconds >= 1 else f"{seconds * 1e3:.3g} ms"
