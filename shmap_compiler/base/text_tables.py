"""Formats tables, durations, sizes and operation counts as text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Formats a header and rows as aligned columns."""
    lines = [tuple(header), *((f"  {first}", *rest) for first, *rest in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


def show_seconds(seconds: float) -> str:
    """A duration in a unit that fits it."""
    for unit, name in ((1, "s"), (1e-3, "ms")):
        if seconds >= unit:
            return f"{seconds / unit:.3g} {name}"
    return f"{seconds * 1e6:.3g} us"


def show_bytes(size: float) -> str:
    """A number of bytes in a unit that fits it."""
    for unit, name in ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if size >= unit:
            return f"{size / unit:.2f} {name}"
    return f"{size:.0f} B"


def show_flops(count: float) -> str:
    """A number of operations in a unit that fits it."""
    for unit, name in ((1e15, "PFLOP"), (1e12, "TFLOP"), (1e9, "GFLOP"), (1e6, "MFLOP")):
        if count >= unit:
            return f"{count / unit:.4g} {name}"
    return f"{count:.0f} FLOP"
