"""Two explanations side by side: of two programs, or of one program on two targets."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from shmap_compiler.base.text_tables import show_seconds, table
from shmap_compiler.explain.conditions import FIGURES
from shmap_compiler.explain.figures import Figures

Row = tuple[str, ...]

LINES = 10
"""Lines of the program that are compared: those that take longest in either."""


@dataclass(frozen=True)
class Comparison:
    """Two explanations, and what the second changes."""

    first: Figures
    second: Figures

    def __str__(self) -> str:
        parts = [table(("side by side", *self.heads, "change"), self.rows())]
        if lines := [*self.lines()]:
            parts.append(table(("compute", "scope", *self.heads, "change"), lines))
        return "\n\n".join(parts)

    @property
    def heads(self) -> tuple[str, str]:
        """What tells the two apart: the targets, the programs, or both."""
        programs = [e.program.replace("`", "") for e in (self.first, self.second)]
        targets = [e.target or "its own devices" for e in (self.first, self.second)]
        if programs[0] == programs[1]:
            return targets[0], targets[1]
        if targets[0] == targets[1]:
            return programs[0], programs[1]
        return f"{programs[0]}, {targets[0]}", f"{programs[1]}, {targets[1]}"

    def rows(self) -> Iterator[Row]:
        """Each figure of both, and of each kind of collective how many run and what they expose."""
        for name, figure in FIGURES.items():
            values = [figure.read(e) for e in (self.first, self.second)]
            if values == [None, None]:
                continue
            shown = ["-" if value is None else figure.show(value) for value in values]
            yield name, *shown, (_counts if figure.is_count else _change)(*values)
        for kind in sorted({c.kind for e in (self.first, self.second) for c in e.collectives}):
            yield f"  {kind}", _count(self.first, kind), _count(self.second, kind), ""

    def lines(self) -> Iterator[Row]:
        """Time of compute by line and scope; "-" where a program has no such line."""
        times = [
            {(c.source, c.scope): c.seconds for c in e.compute if c.seconds is not None}
            for e in (self.first, self.second)
        ]
        longest = {key: max(time.get(key, 0.0) for time in times) for key in times[0] | times[1]}
        keys = sorted(filter(longest.get, longest), key=lambda key: -longest[key])
        for source, scope in keys[:LINES]:
            values = [time.get((source, scope)) for time in times]
            shown = ["-" if value is None else show_seconds(value) for value in values]
            yield source or "?", scope, *shown, _change(*values)


def _change(first: float | None, second: float | None) -> str:
    if first is None or second is None or not first:
        return ""
    return f"{100 * (second / first - 1):+.1f}%"


def _counts(first: float | None, second: float | None) -> str:
    """How a number of things changes, of which a percentage would say little."""
    return "" if first is None or second is None or first == second else f"{first:g} -> {second:g}"


def _count(explanation: Figures, kind: str) -> str:
    """How many collectives of a kind run, and for how long the device waits for them."""
    costs = [c for c in explanation.collectives if c.kind == kind]
    count = str(sum(c.count for c in costs))
    exposed = [c.exposed_seconds for c in costs]
    if not costs or None in exposed:
        return count
    return f"{count}, {show_seconds(sum(filter(None, exposed)))} exposed"
