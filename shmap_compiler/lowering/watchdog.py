"""Reports where devices are when a collective does not finish.

XLA does not report which collective a device is executing. Programs that are lowered while the
watchdog is on contain two host callbacks for each collective, one before it and one after it, on
each device (`watched`). A thread of this process reads what they record. When a device has been in
one collective for too long, it prints the collectives of the program in order, and where each
device of this process is.

The callbacks cost time, and keep XLA from combining and overlapping collectives: the watchdog is
for finding a hang, and off by default.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import jax
import numpy as np
from jax.sharding import Mesh

from shmap_compiler.base.errors import Problem, ShmapError
from shmap_compiler.base.jax_compat import AnyMesh
from shmap_compiler.base.untyped import AnyValue, Unchecked

VARIABLE = "SHMAP_WATCHDOG"
"""The environment variable that turns the watchdog on: after how many seconds it reports."""


@contextlib.contextmanager
def watch_collectives(seconds: float) -> Iterator[None]:
    """Reports on standard error when a device has been in one collective for too long.

    Watches shard_mapped functions that are called or jitted inside this context, in all threads,
    but not those compiled by `lower(...).compile()`. Clears JAX's caches when it begins and ends:
    programs are compiled again with callbacks that record where devices are, and then without.

    Args:
      seconds: After how many seconds in one collective to report.

    Raises:
      ShmapError: `seconds` is not a positive number.

    Examples:
      >>> f = shard_map(lambda b: lax.psum(b, "i"), mesh=mesh, in_specs=P("i"), out_specs=P())
      >>> with watch_collectives(30):
      ...     print(jax.jit(f)(x))
      [56. 64.]
    """
    global _seconds
    before, _seconds = _seconds, _checked(seconds, "watch_collectives")
    jax.clear_caches()
    try:
        yield
    finally:
        _seconds = before
        jax.clear_caches()


def is_watching() -> bool:
    """Whether programs are lowered with callbacks around their collectives."""
    return _seconds is not None


def _checked(seconds: Unchecked, where: str) -> float:
    try:
        number = float(seconds)
    except (TypeError, ValueError):
        number = 0.0
    if not 0 < number < float("inf"):
        problem = Problem(
            where,
            repr(seconds),
            "a number of seconds, greater than zero",
            f"for example {VARIABLE}=30 in the environment, or watch_collectives(30)",
        )
        raise ShmapError(None, [problem])
    return number


_seconds = _checked(os.environ[VARIABLE], VARIABLE) if os.environ.get(VARIABLE) else None


# ------------------------------------------------------------------------------- what is noted


@dataclass
class _Device:
    """Where one device is.

    Attributes:
      inside: when it entered each collective that it has not left.
      last: the collective it entered last.
      entered: how often it entered each.
    """

    inside: dict[int, float] = field(default_factory=dict)
    last: int | None = None
    entered: dict[int, int] = field(default_factory=dict)


@dataclass(eq=False)
class Watched:
    """A program with callbacks around its collectives.

    Attributes:
      name: of the user's function.
      mesh: of the program; all of its axes are manual.
      collectives: `psum over 'i' at train.py:12 (step)`, in the order of the program.
    """

    name: str
    mesh: AnyMesh
    collectives: list[str] = field(default_factory=list)
    devices: dict[int, _Device] = field(default_factory=dict)
    reported: AnyValue = None

    def add(self, collective: str) -> int:
        """The number of a further collective."""
        self.collectives.append(collective)
        return len(self.collectives) - 1

    def enter(self, collective: int, position: AnyValue) -> np.int32:
        with _lock:
            device = self.devices.setdefault(int(position), _Device())
            device.inside[collective] = time.monotonic()
            device.last = collective
            device.entered[collective] = device.entered.get(collective, 0) + 1
            _running.add(self)
            _start()
        return np.int32(0)

    def leave(self, collective: int, position: AnyValue) -> np.int32:
        with _lock:
            self.devices[int(position)].inside.pop(collective, None)
            if not any(d.inside for d in self.devices.values()):
                _running.discard(self)
        return np.int32(0)

    def is_stuck(self, now: float) -> bool:
        entries = [t for d in self.devices.values() for t in d.inside.values()]
        seconds = _seconds
        return bool(entries) and seconds is not None and now - min(entries) > seconds


_lock = threading.Lock()
_running: set[Watched] = set()
_thread: threading.Thread | None = None


def _start() -> None:
    """Starts the thread that reports, unless it runs; under the lock."""
    global _thread
    if _thread is None or not _thread.is_alive():
        _thread = threading.Thread(target=_watch, name="shmap watchdog", daemon=True)
        _thread.start()


def _watch() -> None:
    while (seconds := _seconds) is not None:  # which another thread may end at any time
        time.sleep(min(0.25 * seconds, 1.0))
        with _lock:
            now = time.monotonic()
            stuck = [p for p in _running if p.is_stuck(now)]
            reports = [text for p in stuck if (text := _new_report(p, now))]
        for text in reports:
            print(text, file=sys.stderr, flush=True)


def _new_report(program: Watched, now: float) -> str | None:
    """The report, unless no device has moved since the last one."""
    state = {p: dict(d.inside) for p, d in program.devices.items()}
    if state == program.reported:
        return None
    program.reported = state
    return report(program, now)


def report(program: Watched, now: float) -> str:
    """The collectives of a program in order, and where each device of this process is."""
    longest = max(now - t for d in program.devices.values() for t in d.inside.values())
    steps = [f"    {k + 1}. {c}" for k, c in enumerate(program.collectives)]
    devices = [f"    {_place(program.mesh, p)}: {text}" for p, text in _states(program)]
    return "\n".join(
        [
            f"shmap watchdog: `{program.name}` has been in a collective for {longest:.1f} s",
            "  its collectives, in the order of the program:",
            *steps,
            "  the devices of this process:",
            *devices,
        ]
    )


def _states(program: Watched) -> Iterator[tuple[int, str]]:
    for position in _local_positions(program):
        device = program.devices.get(position)
        if device is None or device.last is None:
            yield position, f"has not reached a collective; next: {_step(program, 0)}"
            continue
        following = _step(program, (device.last + 1) % len(program.collectives))
        if device.inside:
            steps = ", ".join(
                f"{_step(program, c)} (entered {device.entered[c]} times)" for c in device.inside
            )
            yield position, f"waits in {steps}; next: {following}"
        else:
            yield position, f"has left {_step(program, device.last)}; next: {following}"


def _step(program: Watched, collective: int) -> str:
    return f"{collective + 1}. {program.collectives[collective].partition(' ')[0]}"


def _local_positions(program: Watched) -> list[int]:
    if not isinstance(program.mesh, Mesh):
        return sorted(program.devices)
    here = jax.process_index()
    return [p for p, d in enumerate(program.mesh.devices.flat) if d.process_index == here]


def _place(mesh: AnyMesh, position: int) -> str:
    """For example `i=0, j=1 (cpu:1)`."""
    index = np.unravel_index(position, tuple(mesh.shape.values()))
    where = ", ".join(f"{a}={int(k)}" for a, k in zip(mesh.shape, index, strict=True))
    return f"{where} ({mesh.devices.flat[position]})" if isinstance(mesh, Mesh) else where
