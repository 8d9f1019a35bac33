"""Which of two compiled programs `overlap="measure"` keeps, and why."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from shmap_passes.overlap.choose.chosen_forms import ChosenForm

from shmap_compiler.base.errors import TargetError
from shmap_compiler.base.text_tables import show_bytes, show_seconds
from shmap_compiler.stages.compiled import Compiled, CompiledForTarget
from shmap_compiler.stages.executable import Executable

_ALLOWED = 1.02
"""Times the memory of the plain program."""
_KEPT = "overlap: the plain program was kept"


@dataclass(frozen=True)
class Verdict:
    """Which of two programs is kept.

    Attributes:
      kept: it, with a note that says why.
      is_rewritten: whether it is the rewritten one.
      is_large: whether the rewritten one is faster, but needs more memory than the plain one.
    """

    kept: Compiled
    is_rewritten: bool = False
    is_large: bool = False


def better(plain: Compiled, changed: Compiled, chosen: Sequence[ChosenForm]) -> Verdict:
    """The faster program, if it needs no more memory than the plain one.

    Args:
      chosen: what was rewritten in `changed`.
    """
    before, after = _Cost.of(plain), _Cost.of(changed)
    if before.seconds is None or after.seconds is None:
        return Verdict(_noted(plain, f"{_KEPT}: times on this target are not known"))
    times = f"{show_seconds(after.seconds)} instead of {show_seconds(before.seconds)}"
    memory = f"{show_bytes(after.memory)} of memory instead of {show_bytes(before.memory)}"
    if after.seconds >= before.seconds:
        return Verdict(_noted(plain, f"{_KEPT}: the rewritten one would take {times}"))
    allowed = _ALLOWED * before.memory + _early_bytes(chosen)
    if after.memory > allowed:
        why = f"the rewritten one would take {times}, but need {memory}"
        note = f"{_KEPT}: {why}; overlap='auto' does not compare compiled programs"
        return Verdict(_noted(plain, note), is_large=True)
    note = f"overlap: the rewritten program takes {times}, and {memory}"
    return Verdict(_noted(changed, note), is_rewritten=True)


def shares_of_memory(plain: Compiled) -> tuple[float, ...]:
    """Shares of a device's memory to which the schedule of a program should be limited in turn.

    The first one is what the plain program needs in all. In the two programs that kept the second
    limit, the temporaries exceeded it by 28 and 44% of their size.
    """
    memory = plain.explain().memory
    if not memory.capacity:
        return ()
    most = math.ceil(100 * memory.total / memory.capacity) / 100
    return most, 0.75 * memory.temporaries / memory.capacity


def not_compiled(plain: Compiled, error: TargetError) -> Verdict:
    """The plain program, as the rewritten one needs more memory than there is, or is rejected."""
    note = f"{_KEPT}: compiling the rewritten one ends with {_first_line(error)}"
    return Verdict(_noted(plain, note), is_large=True)


def plain_not_compiled(changed: Compiled, error: TargetError) -> Compiled:
    """The rewritten program, as the plain one needs more memory than there is, or is rejected."""
    note = "overlap: the rewritten program was kept: compiling the plain one ends with"
    return _noted(changed, f"{note} {_first_line(error)}")


def _first_line(error: TargetError) -> str:
    return error.problems[0].found.splitlines()[0]


def _early_bytes(chosen: Sequence[ChosenForm]) -> int:
    """Bytes that unrolled loops need more, as a step gathers before the one before it ends.

    What a step gathers is there while that of the step before is read, and so are the results of
    both; the slices that the next steps gather take about half as much again.
    """
    steps = [
        each.received * each.count // (each.count - 1)
        for each in chosen
        if each.pattern == "gathering-loop"
    ]
    return 3 * max(steps, default=0)


@dataclass(frozen=True)
class _Cost:
    """What a program costs on one device.

    Attributes:
      seconds: by the model of `explain`; None if the target has no times. Memory traffic without an
        estimate of the compiler counts, or work that moves there would be free.
      memory: bytes in all.
    """

    seconds: float | None
    memory: int

    @classmethod
    def of(cls, compiled: Compiled) -> _Cost:
        explanation = compiled.explain()
        totals = explanation.totals
        seconds = totals.step_seconds
        if seconds is not None:
            seconds += totals.unestimated_seconds or 0.0
        return cls(seconds, explanation.memory.total)


def _noted(compiled: Compiled, note: str) -> Compiled:
    assert isinstance(compiled, Executable | CompiledForTarget), "nothing else is compiled"
    return replace(compiled, notes=(note,))
