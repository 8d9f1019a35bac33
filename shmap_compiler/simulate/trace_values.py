"""Finds the first operation whose values differ between two modules of one program."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from shmap_compiler.base.untyped import AnyValue
from shmap_compiler.simulate.agreement import distances, has_same_bits
from shmap_compiler.simulate.device import Arrays
from shmap_compiler.simulate.first_difference import FirstDifference
from shmap_compiler.simulate.places import SourcePlace
from shmap_compiler.simulate.steps import Step


@dataclass(frozen=True, eq=False)
class _Value:
    """What a device computes in one step.

    Attributes:
      number: its number in the order of the program.
    """

    number: int
    device: int
    place: SourcePlace
    array: AnyValue
    operands: Arrays

    @property
    def type(self) -> tuple[Hashable, ...]:
        return self.device, self.array.shape, self.array.dtype.name

    @property
    def kind(self) -> tuple[Hashable, ...]:
        return self.place.line, self.place.op, *self.type


class ValueTrace:
    """An observer of a program that is played op by op.

    A value is known by its device, the line, name and type of its operation, and its number among
    those. Passes move operations and remove some, but keep their lines.

    Attributes:
      named: the values of operations with lines, in the order of the program.
    """

    def __init__(self) -> None:
        self._counts: Counter[Hashable] = Counter()
        self.named: dict[Hashable, _Value] = {}
        self._of_type: defaultdict[Hashable, list[_Value]] = defaultdict(list)
        self._makers: dict[tuple[int, int], _Value] = {}

    def see(
        self,
        devices: Sequence[int],
        step: Step,
        operands: Sequence[Arrays],
        results: Sequence[Arrays],
    ) -> None:
        """Notes the results of one step."""
        for device, read, made in zip(devices, operands, results, strict=True):
            for result in made:
                if isinstance(result, np.ndarray):
                    self._note(_Value(len(self._makers), device, step.place, result, read))

    def _note(self, value: _Value) -> None:
        # A result that is an operand of its step is known by the step that computes it. Values
        # keep their arrays alive, so that no other one gets their identity.
        self._makers.setdefault((value.device, id(value.array)), value)
        self._of_type[value.type].append(value)
        if value.place.line:
            self.named[(*value.kind, self._counts[value.kind])] = value
            self._counts[value.kind] += 1

    def of_type(self, type_: tuple[Hashable, ...]) -> Sequence[_Value]:
        """The values of a device, shape and element type."""
        return self._of_type.get(type_, ())

    def has(self, value: _Value, tolerance: float | None) -> bool:
        """Whether the device computes these contents, in whatever operation."""
        others = self.of_type(value.type)
        return any(agrees(value.array, other.array, tolerance) for other in others)

    def sources(self, value: _Value) -> Iterator[_Value]:
        """The values that its operation reads, without arguments of the program."""
        for operand in value.operands:
            maker = self._makers.get((value.device, id(operand)))
            if maker is not None:
                yield maker


def first_difference(
    before: ValueTrace,
    after: ValueTrace,
    tolerance: float | None,
    device: int,
    result: np.ndarray,
) -> FirstDifference:
    """The first value of `after` that differs from the one in its place in `before`.

    That is the first that `before` has with other contents, or one behind it that an operation of
    another kind makes.

    Args:
      tolerance: how far values may be apart, in units of the largest magnitude; None for bitwise.
      device: where the results of the two programs differ.
      result: the result of `after` there.
    """
    search = _Search(before, after, tolerance)
    for key, value in after.named.items():
        old = before.named.get(key)
        if old is not None and not agrees(value.array, old.array, tolerance):
            found = search.replacement(value) or value
            return FirstDifference(found.place, found.device)
    for value in after.of_type((device, result.shape, result.dtype.name)):
        found = search.replacement(value) if has_same_bits(value.array, result) else None
        if found is not None:
            return FirstDifference(found.place, found.device)
    return FirstDifference(None, None)


@dataclass(frozen=True)
class _Search:
    before: ValueTrace
    after: ValueTrace
    tolerance: float | None

    def replacement(self, last: _Value) -> _Value | None:
        """The first wrong replacement from which on `last` is computed of nothing that is right."""
        found, seen, waiting = [], {last}, [last]
        while waiting:
            value = waiting.pop()
            new = [s for s in self.after.sources(value) if not self._is_right(s)]
            if not new and self._is_replacement(value):
                found.append(value)
            waiting += set(new) - seen
            seen.update(new)
        return min(found, key=lambda value: value.number, default=None)

    def _is_right(self, value: _Value) -> bool:
        return self.before.has(value, self.tolerance)

    def _is_replacement(self, value: _Value) -> bool:
        """Whether its operation, of a kind that is new there, may stand for one that is gone.

        Passes add operations, too, for a part of what another one computes or beside those that
        they leave.
        """
        is_new = (*value.kind, 0) not in self.before.named and not self._is_right(value)
        return is_new and any(
            old.place.line == value.place.line and not self.after.has(old, self.tolerance)
            for old in self.before.of_type(value.type)
        )


def agrees(found: np.ndarray, expected: np.ndarray, tolerance: float | None) -> bool:
    """Whether two arrays are within a tolerance; with None, whether their bits are the same."""
    if tolerance is None:
        return has_same_bits(found, expected)
    return distance(found, expected) <= tolerance


def distance(found: np.ndarray, expected: np.ndarray) -> float:
    """How far two arrays are apart, in units of the largest magnitude; NaN equals NaN."""
    if found is expected or found.tobytes() == expected.tobytes():
        return 0.0
    return distances(found, expected)[1]
