"""Two explanations side by side."""

from __future__ import annotations

from collections.abc import Iterator

from shmap_compiler.base.text_tables import table
from shmap_compiler.explain.conditions import FIGURES
from shmap_compiler.explain.figures import Figures

Row = tuple[str, ...]


def compare(first: Figures, second: Figures) -> str:
    """A table of the figures of both, and the second relative to the first."""
    heads = [f"{e.program}, {e.target or 'its own devices'}" for e in (first, second)]
    return table(("side by side", *heads, ""), _rows(first, second))


def _rows(first: Figures, second: Figures) -> Iterator[Row]:
    for name, figure in FIGURES.items():
        values = [figure.read(first), figure.read(second)]
        if values == [None, None]:
            continue
        shown = ["-" if value is None else figure.show(value) for value in values]
        yield name, *shown, _ratio(*values)
    kinds = sorted({c.kind for e in (first, second) for c in e.collectives})
    for kind in kinds:
        yield f"  {kind}", _count(first, kind), _count(second, kind), ""


def _ratio(first: float | None, second: float | None) -> str:
    if first is None or second is None or not first:
        return ""
    return f"{100 * (second / first - 1):+.1f}%"


def _count(explanation: Figures, kind: str) -> str:
    costs = [c for c in explanation.collectives if c.kind == kind]
    overlapped = sum(c.count for c in costs if c.overlapped)
    count = sum(c.count for c in costs)
    return f"{count}, {overlapped} beside computation" if overlapped else str(count)
