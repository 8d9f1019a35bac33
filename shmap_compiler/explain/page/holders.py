"""Devices of a mesh in words. They are numbered by position in it, row-major over its axes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

MOST_DEVICES = 64
"""Of larger meshes, devices are not drawn one by one."""

_LONGEST = 12  # letters of a label


def is_drawn(mesh: Mapping[str, int]) -> bool:
    return math.prod(mesh.values()) <= MOST_DEVICES


def label(devices: Sequence[int], mesh: Mapping[str, int]) -> str:
    """Their numbers where these stand in the drawn mesh and are few, else their coordinates."""
    numbers = ranges(devices)
    short = len(numbers) <= _LONGEST
    return numbers if is_drawn(mesh) and short else coordinates(devices, mesh)


def ranges(devices: Sequence[int], most: int = 8) -> str:
    """Ascending numbers, those in a row as a range: "0-3,8,10"; after so many ranges, "..."."""
    runs: list[list[int]] = []
    for device in devices:
        if runs and device == runs[-1][-1] + 1:
            runs[-1][1:] = [device]
        else:
            runs.append([device])
    text = ",".join("-".join(map(str, run)) for run in runs[:most])
    return text if len(runs) <= most else f"{text},... ({len(devices)} in all)"


def coordinates(devices: Sequence[int], mesh: Mapping[str, int]) -> str:
    """Where devices are, "x=0, y=2-3"; axes along which they are everywhere are left out."""
    parts = []
    stride = math.prod(mesh.values())
    for axis, size in mesh.items():
        stride //= size
        there = sorted({device // stride % size for device in devices})
        if len(there) < size:
            parts.append(f"{axis}={ranges(there)}")
    return ", ".join(parts) or "every device"
