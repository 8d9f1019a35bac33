"""An explanation as tables for the terminal."""

from __future__ import annotations

from collections.abc import Iterator

from shmap_compiler.base.text_tables import show_bytes, show_flops, show_seconds, table
from shmap_compiler.explain.figures import CollectiveCost, ComputeCost, Figures, LiveArrays

Row = tuple[str, ...]

HEADER = (
    "collectives",
    "at",
    "axes",
    "devices",
    "times",
    "bytes of one",
    "time of one",
    "total",
    "while computing",
    "exposed",
)

COMPUTE = (
    "compute",
    "scope",
    "kernels",
    "time",
    "operations",
    "of peak",
    "memory traffic",
    "bound",
)
"""Columns of the table of compute by line."""

LIVE = ("in memory at the peak", "scope", "arrays", "of type", "bytes")
"""Columns of the table of arrays at the peak of memory."""

LINES = 10
"""Lines of the tables of compute and of memory that are shown."""

_NONE = ("none", *[""] * (len(HEADER) - 1))


def text(explanation: Figures) -> str:
    """Tables of the collectives, the totals and the memory."""
    mesh = ", ".join(f"{axis}={size}" for axis, size in explanation.mesh.items())
    target = explanation.target or "the devices of its mesh"
    parts = [
        f"{explanation.program} on mesh({mesh}), target {target}",
        table(HEADER, [*map(collective_cells, explanation.collectives)] or [_NONE]),
        *added(explanation),
        *_compute(explanation),
        table(("one run on one device", ""), totals_rows(explanation)),
        table(("memory of one device", ""), memory_rows(explanation)),
        *_live(explanation),
        *(f"note: {note}" for note in explanation.notes),
    ]
    return "\n\n".join(parts)


def collective_cells(cost: CollectiveCost) -> Row:
    one = None if cost.seconds is None else cost.seconds / max(cost.count, 1)
    return (
        cost.kind if cost.written else f"{cost.kind} *",
        cost.source or "?",
        ",".join(cost.axes) if cost.axes is not None else "?",
        str(cost.group_size),
        str(cost.count),
        show_bytes(cost.payload_bytes),
        _time(one),
        _time(cost.seconds),
        _hidden(cost),
        _time(cost.exposed_seconds),
    )


def added(explanation: Figures) -> Iterator[str]:
    """What the partitioner added, in a sentence, if it did."""
    added = [cost for cost in explanation.collectives if not cost.written]
    if added:
        sent = show_bytes(sum(cost.sent_bytes for cost in added))
        names = ", ".join(sorted({cost.kind for cost in added}))
        yield f"* added by the partitioner: {names}; {sent} of the bytes sent"


def _compute(explanation: Figures) -> Iterator[str]:
    """The table of compute; one line for the rest of it."""
    costs = explanation.compute
    if not costs or explanation.totals.compute_seconds is None:
        return
    rows = [compute_cells(cost) for cost in costs[:LINES]]
    if rest := costs[LINES:]:
        seconds = sum(cost.seconds or 0.0 for cost in rest)
        rows.append((f"{len(rest)} more", "", "", _time(seconds), "", "", "", ""))
    yield table(COMPUTE, rows)


def compute_cells(cost: ComputeCost) -> Row:
    return (
        cost.source or "?",
        cost.scope,
        str(cost.count),
        _time(cost.seconds),
        show_flops(cost.flops) if cost.flops else "-",
        f"{100 * cost.peak_share:.0f}%" if cost.peak_share is not None else "-",
        show_bytes(cost.traffic_bytes),
        cost.bound or "-",
    )


def _live(explanation: Figures) -> Iterator[str]:
    """The table of arrays at the peak; one line for the rest of it."""
    live = explanation.memory_use.live
    rows = [live_cells(arrays) for arrays in live[:LINES]]
    if rest := live[LINES:]:
        count, bytes_ = sum(a.count for a in rest), sum(a.bytes for a in rest)
        rows.append((f"{len(rest)} more", "", str(count), "", show_bytes(bytes_)))
    if rows:
        yield table(LIVE, rows)


def live_cells(arrays: LiveArrays) -> Row:
    given = arrays.scope == "arguments" and not arrays.type
    return (
        "arguments" if given else arrays.source or "?",
        "" if given else arrays.scope,
        str(arrays.count),
        arrays.type,
        show_bytes(arrays.bytes),
    )


def _hidden(cost: CollectiveCost) -> str:
    """How much of a collective runs while the device computes."""
    if not cost.overlapped:
        return "no"
    if not cost.seconds or cost.exposed_seconds is None:
        return "yes"
    return f"{100 * max(0.0, 1 - cost.exposed_seconds / cost.seconds):.0f}%"


def totals_rows(explanation: Figures) -> Iterator[Row]:
    totals = explanation.totals
    yield "operations", show_flops(totals.flops)
    if totals.compiler_flops is not None:
        bytes_ = show_bytes(totals.compiler_bytes or 0)
        counted = f"{show_flops(totals.compiler_flops)}, {bytes_} of memory traffic"
        yield "  counted by XLA", f"{counted}; each loop as one trip"
    yield "sent over the wire", show_bytes(totals.sent_bytes)
    if totals.step_seconds is None or totals.bound_seconds is None:
        return
    yield "computing", _time(totals.compute_seconds)
    yield "wire in use", _time(totals.wire_seconds)
    yield "waiting for the wire", _time(totals.exposed_seconds)
    if totals.host_seconds:
        yield "copies to and from the host", _time(totals.host_seconds)
        yield "waiting for the host", _time(totals.host_exposed_seconds)
    yield "total", _time(totals.step_seconds)
    if totals.unestimated_seconds:
        yield "  not counted", f"{_time(totals.unestimated_seconds)} of copies without an estimate"
    beyond = totals.step_seconds / totals.bound_seconds - 1 if totals.bound_seconds else 0.0
    bound = f"{totals.bound}, {_time(totals.bound_seconds)}"
    yield "bound", f"{bound}: the run takes {100 * beyond:.0f}% longer"


def memory_rows(explanation: Figures) -> Iterator[Row]:
    memory = explanation.memory
    yield "arguments", show_bytes(memory.arguments)
    yield "results", show_bytes(memory.results)
    if memory.aliased:
        yield "  of these in arguments", show_bytes(memory.aliased)
    yield "temporaries", show_bytes(memory.temporaries)
    yield "program", show_bytes(memory.program)
    total = show_bytes(memory.total)
    if memory.capacity is not None:
        share = 100 * memory.total / memory.capacity
        total += f", {share:.1f}% of {show_bytes(memory.capacity)} on a {explanation.chip}"
    yield "all", total
    use = explanation.memory_use
    when = f", at {_time(use.peak_start)}" if use.peak_start is not None else ""
    yield "  in use at most", f"{show_bytes(use.peak_bytes)}{when}"


def _time(seconds: float | None) -> str:
    return "-" if seconds is None else show_seconds(seconds)
