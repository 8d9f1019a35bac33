"""An explanation as a trace in Chrome's JSON format, which Perfetto opens.

The format: https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

from shmap_compiler.base.untyped import Json
from shmap_compiler.explain.figures import Figures
from shmap_compiler.explain.schedule import Event

_PROCESSES = ("device", "wire", "links")


def trace(explanation: Figures) -> str:
    """The trace: processes "device", "wire" and "links", times in microseconds.

    The threads of "device" are what it computes and what it waits for. Those of "wire" are
    collectives, as many as run at once, and those of "links" are links of the network.
    """
    events = [*_events(explanation)]
    return json.dumps({"traceEvents": events, "displayTimeUnit": "ns"}, indent=0)


def _events(explanation: Figures) -> Iterator[dict[str, Json]]:
    where = explanation.target or "the devices of its mesh"
    for pid, name in enumerate(_PROCESSES):
        title = f"{name} ({explanation.program}, {where})" if pid == 0 else name
        yield _named("process_name", pid, 0, title)
        yield {**_named("process_sort_index", pid, 0, ""), "args": {"sort_index": pid}}
    own = {
        lane: [e for e in explanation.timeline if e.lane == lane] for lane in ("compute", "wait")
    }
    yield from _threads(0, own)
    wire = [e for e in explanation.timeline if e.lane == "wire"]
    rows = _rows(wire)
    yield from _threads(1, {f"collectives {k + 1}": row for k, row in enumerate(rows)})
    links: dict[str, list[Event]] = {}
    for event in explanation.transfers:
        links.setdefault(event.lane, []).append(event)
    yield from _threads(2, dict(sorted(links.items())))


def _threads(pid: int, lanes: dict[str, list[Event]]) -> Iterator[dict[str, Json]]:
    for tid, (name, events) in enumerate(lanes.items(), start=1):
        yield _named("thread_name", pid, tid, name)
        for event in events:
            yield {
                "ph": "X",
                "pid": pid,
                "tid": tid,
                "ts": event.start * 1e6,
                "dur": event.seconds * 1e6,
                "name": event.what if pid else event.name,
                "cat": _PROCESSES[pid],
                "args": {"instruction": event.name, "what": event.what, "source": event.source},
            }


def _rows(events: Sequence[Event]) -> list[list[Event]]:
    """Events in as few rows as there are at one time."""
    rows: list[list[Event]] = []
    for event in sorted(events, key=lambda e: e.start):
        free = (row for row in rows if row[-1].start + row[-1].seconds <= event.start * (1 + 1e-9))
        row = next(free, None)
        if row is None:
            rows.append([event])
        else:
            row.append(event)
    return rows


def _named(what: str, pid: int, tid: int, name: str) -> dict[str, Json]:
    return {"ph": "M", "name": what, "pid": pid, "tid": tid, "args": {"name": name}}
