"""The memory of a device over one run, and by line the arrays in it when most is in use."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from shmap_compiler.explain.compute import named_scope, short
from shmap_compiler.explain.figures import LiveArrays, MemoryUse
from shmap_compiler.explain.liveness import Buffer
from shmap_compiler.explain.schedule import Schedule


def memory_use(schedule: Schedule, arguments: int, argument_bytes: int, timed: bool) -> MemoryUse:
    """What a schedule holds in memory, with so many arguments of so many bytes."""
    given = LiveArrays("", "arguments", "", arguments, argument_bytes)
    live = sorted([given, *_by_line(schedule.peak.buffers)], key=lambda a: -a.bytes)
    return MemoryUse(
        peak_bytes=argument_bytes + schedule.peak.bytes,
        peak_start=schedule.peak.start if timed else None,
        live=tuple(arrays for arrays in live if arrays.bytes),
        samples=tuple(_steps(schedule, argument_bytes)) if timed else (),
    )


def _by_line(buffers: Sequence[Buffer]) -> Iterator[LiveArrays]:
    alike: dict[tuple[str, str, str], list[Buffer]] = {}
    for buffer in buffers:
        key = (short(buffer.source), named_scope(buffer.scope), buffer.type)
        alike.setdefault(key, []).append(buffer)
    for key, group in alike.items():
        yield LiveArrays(*key, len(group), sum(buffer.bytes for buffer in group))


def _steps(schedule: Schedule, argument_bytes: int) -> Iterator[tuple[float, int]]:
    """The samples without those that change nothing; of several at one time, the largest."""
    last = -1
    for start, at_once in itertools.groupby(schedule.memory, key=lambda sample: sample[0]):
        held = argument_bytes + max(held for _, held in at_once)
        if held != last:
            yield start, held
        last = held
