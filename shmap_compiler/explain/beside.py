"""How long work takes beside collectives that take a share of a device's processors."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Beside:
    """The collectives that run beside the work of a device; several take no more than one."""

    _running: list[tuple[float, float]] = field(default_factory=list)

    def add(self, begin: float, end: float) -> None:
        """Notes when a collective runs."""
        self._running.append((begin, end))

    def seconds(self, now: float, alone: float, share: float) -> float:
        """How long work takes that begins now, and would take `alone` with all processors.

        Args:
          share: how much of its speed a collective takes.
        """
        self._running = sorted(each for each in self._running if each[1] > now)
        if not share:
            return alone
        time, left = now, alone
        for begin, end in self._running:
            if begin > time:
                passed = min(left, begin - time)
                time, left = time + passed, left - passed
            passed = min(left / (1 - share), max(0.0, end - time))
            time, left = time + passed, left - passed * (1 - share)
        return time - now + max(0.0, left)
