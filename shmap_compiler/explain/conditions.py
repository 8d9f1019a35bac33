"""Conditions on the figures of an explanation, such as `exposed > 1ms`, for use in CI."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from dataclasses import dataclass

from shmap_compiler.base.text_tables import show_bytes, show_flops, show_seconds
from shmap_compiler.explain.figures import Figures

_SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
_BYTES = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40} | {
    "KB": 1e3,
    "MB": 1e6,
    "GB": 1e9,
    "TB": 1e12,
}
_COUNT = {"": 1.0}
_FLOPS = {"FLOP": 1.0, "GFLOP": 1e9, "TFLOP": 1e12}


@dataclass(frozen=True)
class _Figure:
    """A figure that conditions can name: how to read and to show it, and its units."""

    read: Callable[[Figures], float | None]
    show: Callable[[float], str]
    units: dict[str, float]

    @property
    def is_count(self) -> bool:
        """Whether it counts something: such a figure changes by a number, not by a share."""
        return self.units == _COUNT


FIGURES: dict[str, _Figure] = {
    "computing": _Figure(lambda e: e.totals.compute_seconds, show_seconds, _SECONDS),
    "wire": _Figure(lambda e: e.totals.wire_seconds, show_seconds, _SECONDS),
    "exposed": _Figure(lambda e: e.totals.exposed_seconds, show_seconds, _SECONDS),
    "host": _Figure(lambda e: e.totals.host_seconds, show_seconds, _SECONDS),
    "host-exposed": _Figure(lambda e: e.totals.host_exposed_seconds, show_seconds, _SECONDS),
    "total": _Figure(lambda e: e.totals.step_seconds, show_seconds, _SECONDS),
    "bound": _Figure(lambda e: e.totals.bound_seconds, show_seconds, _SECONDS),
    "not-counted": _Figure(lambda e: e.totals.unestimated_seconds, show_seconds, _SECONDS),
    "sent": _Figure(lambda e: e.totals.sent_bytes, show_bytes, _BYTES),
    "memory": _Figure(lambda e: e.memory.total, show_bytes, _BYTES),
    "temporaries": _Figure(lambda e: e.memory.temporaries, show_bytes, _BYTES),
    "operations": _Figure(lambda e: e.totals.flops, show_flops, _FLOPS),
    "collectives": _Figure(lambda e: sum(c.count for c in e.collectives), str, _COUNT),
    "added-collectives": _Figure(
        lambda e: sum(c.count for c in e.collectives if not c.written), str, _COUNT
    ),
}
"""By name."""

_COMPARE: dict[str, Callable[[float, float], bool]] = {
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
}


@dataclass(frozen=True)
class Condition:
    """A comparison of a figure with a number."""

    text: str
    figure: str
    comparison: str
    bound: float

    def holds(self, explanation: Figures) -> str | None:
        """What the figure is, if the condition holds; None if it does not.

        Raises:
          ValueError: the figure is a time, and the target has none.
        """
        figure = FIGURES[self.figure]
        value = figure.read(explanation)
        if value is None:
            raise ValueError(f"{self.figure} is not known for this target")
        if not _COMPARE[self.comparison](value, self.bound):
            return None
        return f"{self.figure} is {figure.show(value)}, and {self.text!r} holds"


def parse_condition(text: str) -> Condition:
    """Reads a condition: a figure, one of `> >= < <=`, a number and its unit.

    Raises:
      ValueError: it is not one; the message says what is needed.

    Examples:
      >>> parse_condition("exposed > 1.5ms").bound
      0.0015
    """
    match = re.fullmatch(r"\s*([\w-]+)\s*(>=|<=|>|<)\s*([\d.]+(?:e-?\d+)?)\s*([A-Za-z]*)\s*", text)
    if match is None:
        raise ValueError("FIGURE > NUMBER UNIT, as in 'exposed > 1ms'")
    name, comparison, number, unit = match.groups()
    if name not in FIGURES:
        raise ValueError(f"a figure, one of {', '.join(FIGURES)}")
    units = FIGURES[name].units
    if unit not in units and FIGURES[name].is_count:
        raise ValueError(f"{name!r} without a unit")
    if unit not in units:
        raise ValueError(f"a unit of {name!r}, one of {', '.join(units)}")
    try:
        return Condition(text, name, comparison, float(number) * units[unit])
    except ValueError:
        raise ValueError(f"a number before the unit, found {number!r}") from None
