"""One simulated device: a coroutine that stops at every step that it takes with others."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from shmap_compiler.base.untyped import AnyValue, Unchecked
from shmap_compiler.simulate.interpreter import EvaluationFailed, evaluated
from shmap_compiler.simulate.places import SourcePlace
from shmap_compiler.simulate.steps import (
    KNOWN_OPERATIONS,
    Block,
    Branch,
    Call,
    Computed,
    Enter,
    Local,
    Loop,
    Meeting,
    Position,
    Same,
    Step,
    Unsupported,
)

_KEPT_BYTES = 2**26
Environment = dict[int, AnyValue]
Arrays = Sequence[AnyValue]
Observer = Callable[[Sequence[int], Step, Sequence[Arrays], Sequence[Arrays]], None]
"""Called with the devices that take a step together, the step, and operands and results of each."""


class CannotSimulate(Exception):
    """A step that cannot be played."""

    def __init__(self, place: SourcePlace, found: str, fix: str, needed: str = KNOWN_OPERATIONS):
        super().__init__(f"{place}: {found}")
        self.place, self.found, self.fix, self.needed = place, found, fix, needed

    def within(self, path: Sequence[Step]) -> CannotSimulate:
        """The same, with the line of the nearest call around the step if it has none."""
        return CannotSimulate(nearest(self.place, path), self.found, self.fix, self.needed)


@dataclass(frozen=True)
class Waiting:
    """A device that waits in a step.

    Attributes:
      path: the calls around the step: the same step of two calls is two steps.
      rounds: the numbers of the rounds of the loops around it.
    """

    step: Meeting
    path: tuple[Step, ...]
    rounds: tuple[int, ...]
    operands: list[AnyValue]


def nearest(place: SourcePlace, path: Sequence[Step]) -> SourcePlace:
    """`place`, with the line of the nearest call around it where it has none."""
    lines = [place.line, *(step.place.line for step in reversed(path))]
    return SourcePlace(place.op, next(filter(None, lines), ""))


class SharedWork:
    """What devices compute of the very same arrays is computed once."""

    def __init__(self) -> None:
        self._kept: OrderedDict[Any, tuple[Sequence[Any], list[Any]]] = OrderedDict()
        self._bytes = 0

    def results(
        self, step: Unchecked, operands: Sequence[AnyValue], run: Callable[[], list[AnyValue]]
    ) -> list[AnyValue]:
        key = (step, *map(id, operands))
        if key not in self._kept:
            found = run()
            # The operands are kept as well: a new array could get the identity of an old one.
            self._kept[key] = (operands, found)
            self._bytes += _size(operands) + _size(found)
            while self._bytes > _KEPT_BYTES:
                _, (old, gone) = self._kept.popitem(last=False)
                self._bytes -= _size(old) + _size(gone)
            return found
        return self._kept[key][1]


def _size(arrays: Sequence[AnyValue]) -> int:
    return sum(array.nbytes + 64 for array in arrays)


@dataclass
class Device:
    """A device that plays blocks.

    Attributes:
      number: its position in the mesh.
      observer: sees each step that it takes alone.
    """

    number: int
    work: SharedWork
    observer: Observer | None = None
    path: tuple[Step, ...] = ()
    rounds: list[int] = field(default_factory=list)

    def play(
        self, block: Block, environment: Environment
    ) -> Generator[Waiting, list[AnyValue], list[AnyValue]]:
        """Plays a block whose arguments are in the environment; returns its results."""
        for step, dropped in zip(block.steps, block.dropped, strict=True):
            operands = [environment[number] for number in step.operands]
            if isinstance(step, Meeting):
                results = yield Waiting(step, self.path, tuple(self.rounds), operands)
            elif isinstance(step, Loop):
                results = yield from self._loop(step, operands, environment)
            elif isinstance(step, Branch):
                chosen = _index(operands[0], len(step.branches))
                results = yield from self.play(step.branches[chosen], environment)
            elif isinstance(step, Call):
                results = yield from self._call(step, operands)
            else:
                try:
                    results = self._alone(step, operands)
                except CannotSimulate as error:
                    raise error.within(self.path) from None
                if self.observer is not None:
                    self.observer((self.number,), step, (operands,), (results,))
            environment.update(zip(step.results, results, strict=True))
            for number in dropped:
                del environment[number]
        return [environment[number] for number in block.results]

    def _loop(
        self, step: Loop, values: list[AnyValue], environment: Environment
    ) -> Generator[Waiting, list[AnyValue], list[AnyValue]]:
        self.rounds.append(0)
        while True:
            environment.update(zip(step.condition.arguments, values, strict=True))
            (goes_on,) = yield from self.play(step.condition, environment)
            if not goes_on:
                self.rounds.pop()
                return values
            environment.update(zip(step.body.arguments, values, strict=True))
            values = yield from self.play(step.body, environment)
            self.rounds[-1] += 1

    def _call(
        self, step: Call, operands: list[AnyValue]
    ) -> Generator[Waiting, list[AnyValue], list[AnyValue]]:
        callee = step.callee()
        around, self.path = self.path, (*self.path, step)
        inside = dict(zip(callee.arguments, operands, strict=True))
        results = yield from self.play(callee, inside)
        self.path = around
        return results

    def _alone(self, step: Step, operands: list[AnyValue]) -> list[AnyValue]:
        if isinstance(step, Local):
            return self.work.results(step, operands, lambda: _evaluate(step, operands))
        if isinstance(step, Computed):
            return self.work.results(step, operands, lambda: list(step.function(*operands)))
        if isinstance(step, Enter):
            return [
                full if cut is None else self._block(full, cut)
                for full, cut in zip(operands, step.cuts, strict=True)
            ]
        if isinstance(step, Position):
            return [step.values[self.number]]
        if isinstance(step, Same):
            return operands
        assert isinstance(step, Unsupported), f"{type(step).__name__} has no rule"
        raise CannotSimulate(step.place, step.found, step.fix, step.needed)

    def _block(self, full: np.ndarray, cut: Unchecked) -> np.ndarray:
        if cut.summands:
            return cut.block(full, self.number)
        window = cut.windows[self.number]
        key = ("block", window)
        return self.work.results(key, [full], lambda: [cut.block(full, self.number)])[0]


def _index(value: np.ndarray, count: int) -> int:
    """The branch that StableHLO takes: the last one for an index out of range."""
    index = int(value)
    return index if 0 <= index < count else count - 1


def _evaluate(step: Local, operands: Sequence[np.ndarray]) -> list[np.ndarray]:
    try:
        return evaluated(step.segment, operands)
    except EvaluationFailed as error:
        if len(step.places) > 1:
            _find_failure(step, operands)
        raise CannotSimulate(
            step.place, f"the reference interpreter failed: {error}", FIX
        ) from None


FIX = "replace the operation, or run the program on devices"


def _find_failure(step: Local, operands: Sequence[np.ndarray]) -> None:
    """Raises CannotSimulate for the op of a step that fails, if it fails alone as well."""
    environment = dict(zip(step.operands, operands, strict=True))
    for single in step.single():
        if isinstance(single, Local):
            inputs = [environment[number] for number in single.operands]
            environment.update(zip(single.results, _evaluate(single, inputs), strict=True))
