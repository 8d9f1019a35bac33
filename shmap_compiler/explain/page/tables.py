"""The tables: collectives, compute, arrays at the peak of memory, and two programs side by side."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from shmap_compiler.base.text_tables import show_seconds
from shmap_compiler.explain.comparison import Comparison
from shmap_compiler.explain.figures import Figures
from shmap_compiler.explain.page.markup import Markup, bar, element, join
from shmap_compiler.explain.text import (
    COMPUTE,
    HEADER,
    LINES,
    LIVE,
    added,
    collective_cells,
    compute_cells,
    live_cells,
)


def collectives(explanation: Figures) -> Markup:
    """Each row has the number of its collectives in the data of the timeline."""
    costs = explanation.collectives
    step = explanation.totals.step_seconds
    shares = [bar([("wait", (c.exposed_seconds or 0.0) / step)]) if step else "" for c in costs]
    rows = [
        _row(collective_cells(cost), 3, share, swatch=cost.kind, number=number)
        for number, (cost, share) in enumerate(zip(costs, shares, strict=True))
    ]
    heads = ("kind", *HEADER[1:], *(["of the run"] if step else []))
    table = _section("Collectives", heads, 3, rows)
    notes = (element("p", note, class_="quiet note") for note in added(explanation))
    return join(table, *notes)


def compute(explanation: Figures) -> Markup:
    """The ten most expensive lines; the others can be unfolded."""
    step = explanation.totals.step_seconds
    if not step:
        return join()
    rows = [
        _row(compute_cells(cost), 2, bar([("compute", (cost.seconds or 0.0) / step)]))
        for cost in explanation.compute
    ]
    heads = ("at", *COMPUTE[1:], "of the run")
    return _section("Compute by line", heads, 2, rows)


def live_arrays(explanation: Figures) -> Markup:
    use = explanation.memory_use
    whole = use.peak_bytes or 1
    rows = [
        _row(live_cells(arrays), 2, bar([("temporaries", arrays.bytes / whole)]))
        for arrays in use.live
    ]
    when = f", at {show_seconds(use.peak_start)}" if use.peak_start is not None else ""
    return _section(f"In memory at the peak{when}", ("at", *LIVE[1:], "of the peak"), 2, rows)


def side_by_side(comparison: Comparison) -> Markup:
    first, second = comparison.heads
    rows = [_row(cells, 1) for cells in comparison.rows()]
    lines = [_row(cells, 2) for cells in comparison.lines()]
    scale = max(e.totals.step_seconds or 0.0 for e in (comparison.first, comparison.second))
    return element(
        "section",
        element("h1", f"{first} and {second}"),
        *(
            _run(name, e, scale)
            for name, e in zip(comparison.heads, _both(comparison), strict=True)
        ),
        _table(("", first, second, "change"), 1, rows),
        _table(("compute at", "scope", first, second, "change"), 2, lines) if lines else "",
        class_="side-by-side",
    )


def _both(comparison: Comparison) -> tuple[Figures, Figures]:
    return comparison.first, comparison.second


def _run(name: str, explanation: Figures, scale: float) -> Markup:
    """One run as a bar: how long the device computes, and how long it waits."""
    totals = explanation.totals
    if not scale or totals.step_seconds is None:
        return join()
    waits = (totals.exposed_seconds or 0.0) + (totals.host_exposed_seconds or 0.0)
    parts = (("compute", totals.compute_seconds or 0.0), ("wait", waits))
    shares = [(kind, seconds / scale) for kind, seconds in parts]
    words = f"{name}: {show_seconds(totals.step_seconds)}"
    return element("div", element("span", words, class_="quiet"), bar(shares))


# --------------------------------------------------------------------------------------- in general


def _section(title: str, heads: Sequence[str], texts: int, rows: Sequence[Markup]) -> Markup:
    heading = element("h2", title)
    if not rows:
        return element("section", heading, element("p", "None.", class_="quiet"))
    first = rows if title == "Collectives" else rows[:LINES]
    rest = rows[len(first) :]
    more = element(
        "details",
        element("summary", f"{len(rest)} more"),
        _table(heads, texts, rest),
    )
    return element("section", heading, _table(heads, texts, first), more if rest else "")


def _table(heads: Sequence[str], texts: int, rows: Iterable[Markup]) -> Markup:
    """A table whose first columns, so many, are texts and the others figures."""
    cells = (
        element("th", head, scope="col", class_="figure" if k >= texts else None)
        for k, head in enumerate(heads)
    )
    return element(
        "table",
        element("thead", element("tr", *cells)),
        element("tbody", *rows),
        class_="rows",
    )


def _row(
    cells: Sequence[str],
    texts: int,
    share: Markup | str | None = None,
    swatch: str | None = None,
    number: int | None = None,
) -> Markup:
    """A row that a search can find; `share` is a bar at its end, `number` that of a collective."""
    color = element("i", class_=f"swatch {swatch}") if swatch else ""
    return element(
        "tr",
        element("th", color, cells[0], scope="row", class_="swatched" if swatch else "text"),
        *(
            element("td", cell, class_="figure" if k >= texts else "text")
            for k, cell in enumerate(cells[1:], start=1)
        ),
        element("td", share, class_="share") if share is not None else "",
        tabindex=0 if number is not None else None,
        data_collective=number,
        data_row=True,
    )
