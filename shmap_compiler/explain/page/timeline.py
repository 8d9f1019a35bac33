"""The timeline: events in rows, as data that page.js draws.

The first row is what the device does: it computes, or waits for a collective. Below it, collectives
that run at the same time stand in rows of their own.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from shmap_compiler.base.text_tables import show_seconds
from shmap_compiler.explain.figures import Figures
from shmap_compiler.explain.page.markup import Markup, element
from shmap_compiler.explain.schedule import Event

MOST_EVENTS = 10_000
"""With more events, short ones are drawn as one."""

_POSITIONS = 2_000
"""Into how many parts the time is then cut; in each, short events of a kind become one per row."""

_HELP = (
    "Drag over a stretch of time to see what it adds up to and to zoom in; Escape, or a double "
    "click, shows everything. The line above the memory in use is what the compiler reserves, "
    "without the program. For single events, write a trace for Perfetto with --trace FILE "
    "(explanation.to_trace() in Python)."
)


@dataclass(frozen=True)
class Bar:
    """What is drawn for an event, or for so many short ones.

    Attributes:
      row: 0 is the device; from 1 on, collectives.
      kind: "compute", "wait", or the kind of the collective: gives the colour.
    """

    row: int
    kind: str
    event: Event
    count: int = 1


def section(explanation: Figures, number: int, until: float) -> Markup:
    """The timeline of the article of this number, drawn up to `until`."""
    heading = element("h2", "One run on one device")
    events = explanation.timeline
    if not events:
        return element("section", heading, _no_times())
    drawn = bars(events)
    search = element(
        "input", type="search", placeholder="line, kind or instruction", data_search=True
    )
    return element(
        "section",
        heading,
        element("div", _legend(drawn), element("label", "Search ", search), class_="tools"),
        element(
            "div",
            _canvas(explanation, number),
            element("output", hidden=True),
            element("noscript", "The timeline is drawn by a script; the tables below need none."),
            class_="timeline",
        ),
        element("p", class_="selection", aria_live="polite"),
        element("p", _HELP, *_left_out(explanation, drawn), class_="quiet", id=f"keys-{number}"),
        element("script", _json(explanation, drawn, until), type="application/json"),
    )


def _canvas(explanation: Figures, number: int) -> Markup:
    """Where page.js draws."""
    return element(
        "canvas",
        role="img",
        aria_label=_in_words(explanation),
        aria_describedby=f"keys-{number}",
    )


# ------------------------------------------------------------------------------------------- bars


def bars(events: Sequence[Event]) -> list[Bar]:
    """The bars of events, by row and time."""
    drawn = [*_device(events), *_wire(events)]
    if len(drawn) > MOST_EVENTS:
        drawn = _merge(drawn, _shortest(events))
    return sorted(drawn, key=lambda bar: (bar.row, bar.event.start))


def _shortest(events: Iterable[Event]) -> float:
    """Seconds that an event takes at least to be drawn by itself when there are too many."""
    return max(event.start + event.seconds for event in events) / _POSITIONS


def _device(events: Iterable[Event]) -> Iterator[Bar]:
    return (Bar(0, e.lane, e) for e in events if e.lane != "wire")


def _wire(events: Iterable[Event]) -> Iterator[Bar]:
    """Each collective in the first row that is free."""
    ends: list[float] = []
    for event in sorted((e for e in events if e.lane == "wire"), key=lambda e: e.start):
        # Sums of floating-point times may overlap by less than any event takes.
        begin = event.start + 1e-12
        row = next((i for i, end in enumerate(ends) if end <= begin), len(ends))
        ends[row : row + 1] = [event.start + event.seconds]
        yield Bar(row + 1, event.what, event)


def _merge(drawn: Iterable[Bar], shortest: float) -> list[Bar]:
    """One bar for all shorter events of a kind that begin in the same `shortest` of time."""
    kept: list[Bar] = []
    short: dict[tuple[int, str, int], list[Bar]] = {}
    for bar in drawn:
        if bar.event.seconds >= shortest:
            kept.append(bar)
        else:
            key = (bar.row, bar.kind, int(bar.event.start / shortest))
            short.setdefault(key, []).append(bar)
    return kept + [_one(alike) if len(alike) > 1 else alike[0] for alike in short.values()]


def _one(alike: Sequence[Bar]) -> Bar:
    first = min(alike, key=lambda bar: bar.event.start)
    seconds = sum(bar.event.seconds for bar in alike)
    event = replace(first.event, seconds=seconds, name=f"{len(alike)} events", source="")
    return replace(first, event=event, count=len(alike))


# ------------------------------------------------------------------------------------------- data


def _json(explanation: Figures, drawn: Sequence[Bar], until: float) -> Markup:
    """What page.js reads; strings are numbered, times are in nanoseconds."""
    strings: dict[str, int] = {}

    def number(text: str) -> int:
        return strings.setdefault(text, len(strings))

    def nanoseconds(seconds: float) -> float:
        return round(seconds * 1e9, 1)

    events = [
        (
            bar.row,
            number(bar.kind),
            nanoseconds(bar.event.start),
            nanoseconds(bar.event.seconds),
            number(bar.event.name),
            number(bar.event.what),
            number(bar.event.source),
        )
        for bar in drawn
    ]
    collectives = [list(map(number, c.instructions)) for c in explanation.collectives]
    data = {
        "end": nanoseconds(until),
        "events": events,
        "collectives": collectives,
        "memory": [(nanoseconds(start), held) for start, held in _memory(explanation)],
        "reserved": explanation.memory.total - explanation.memory.program,
        "last": nanoseconds(end(explanation)),
        "strings": list(strings),
    }
    # "<" could end the element that holds this.
    return Markup(json.dumps(data, separators=(",", ":")).replace("<", "\\u003c"))


def _memory(explanation: Figures) -> Sequence[tuple[float, int]]:
    """The samples of memory; of very many, the largest in each stretch of time."""
    samples = explanation.memory_use.samples
    if len(samples) <= MOST_EVENTS:
        return samples
    length = end(explanation) / _POSITIONS
    largest: dict[int, tuple[float, int]] = {}
    for start, held in samples:
        key = int(start / length)
        if key not in largest or held > largest[key][1]:
            largest[key] = start, held
    return [(key * length, held) for key, (_, held) in sorted(largest.items())]


def end(explanation: Figures) -> float:
    """Seconds from the start of the run to the end of its last event."""
    last = max((event.start + event.seconds for event in explanation.timeline), default=0.0)
    return max(last, explanation.totals.step_seconds or 0.0)


# ------------------------------------------------------------------------------------------ words


def _legend(drawn: Iterable[Bar]) -> Markup:
    kinds = sorted({bar.kind for bar in drawn}, key=lambda kind: (kind not in _OF_DEVICE, kind))
    items = (
        element("li", element("i", class_=f"swatch {kind}"), _OF_DEVICE.get(kind, kind))
        for kind in kinds
    )
    return element("ul", *items, class_="legend")


_OF_DEVICE = {"compute": "computes", "wait": "waits"}


def _in_words(explanation: Figures) -> str:
    def total(lane: str) -> str:
        found = [event.seconds for event in explanation.timeline if event.lane == lane]
        return f"{len(found)} {lane} events, {show_seconds(sum(found))} together"

    lanes = "; ".join(map(total, ("compute", "wire", "wait")))
    return f"Timeline of {show_seconds(end(explanation))}: {lanes}."


def _no_times() -> Markup:
    return element("p", "There are no times to draw; see the notes.", class_="quiet")


def _left_out(explanation: Figures, drawn: Iterable[Bar]) -> Iterator[str]:
    """What is not drawn as it is."""
    if any(bar.count > 1 for bar in drawn):
        shortest = show_seconds(_shortest(explanation.timeline))
        yield f" Events that take less than {shortest} are drawn together."
    all_ = explanation.totals.compute_seconds or 0.0
    some = sum(event.seconds for event in explanation.timeline if event.lane == "compute")
    if some < all_ * (1 - 1e-6):
        computing = f"{show_seconds(some)} of {show_seconds(all_)} of computing"
        yield f" Of long loops only the first trips are drawn: {computing}."
