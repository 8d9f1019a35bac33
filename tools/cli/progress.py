"""Shows that a long step is under way: its phase and the time since the start, on stderr."""

from __future__ import annotations

import sys
import threading
import time
from typing import TextIO

# On a terminal the line is rewritten at this pace; elsewhere a line is added, more rarely.
_ON_TERMINAL_S = 0.25
_ELSEWHERE_S = 10.0


class Progress:
    """A context that shows a line of progress. Steps shorter than its pace show nothing.

    with Progress("compiling for tpu:v5e:2x4") as progress:
        work(on_phase=progress.phase)
    """

    def __init__(self, what: str, stream: TextIO | None = None, pace: float | None = None):
        """`stream` is stderr by default; `pace` is in seconds."""
        self._what = what
        self._stream = sys.stderr if stream is None else stream
        self._rewrites = self._stream.isatty()
        self._pace = pace or (_ON_TERMINAL_S if self._rewrites else _ELSEWHERE_S)
        self._phase = ""
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._show, daemon=True)

    def phase(self, name: str) -> None:
        """Sets the name of the current phase."""
        self._phase = name

    def __enter__(self) -> Progress:
        self._start = time.monotonic()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        if self._rewrites:
            self._write("\r\x1b[K")

    def _show(self) -> None:
        while not self._over.wait(self._pace):
            phase = f", phase {self._phase}" if self._phase else ""
            line = f"{self._what}: {time.monotonic() - self._start:.0f} s{phase}"
            self._write(f"\r\x1b[K{line}" if self._rewrites else f"{line}\n")

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()
