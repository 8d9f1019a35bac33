"""Full values that are split equally, as classes: union-find with one placement for each class."""

from __future__ import annotations

from dataclasses import dataclass

from jaxlib.mlir import ir

from ..ir.types import Value
from .placement import Placement


@dataclass
class SplitClass:
    """Values that are split equally.

    Attributes:
      placement: how something wants them to be split; None if nothing does.
      hint: how they should be split if nothing wants anything else.
      reason, location: what wants the placement: "enters a manual region".
    """

    placement: Placement | None = None
    hint: Placement | None = None
    reason: str = ""
    location: ir.Location | None = None


class SplitClasses:
    """Full values, each in one class."""

    def __init__(self) -> None:
        self._parents: dict[Value, Value] = {}
        self._classes: dict[Value, SplitClass] = {}

    def __contains__(self, value: Value) -> bool:
        return value in self._parents

    def values(self) -> list[Value]:
        return list(self._parents)

    def add(self, value: Value) -> bool:
        """Puts a value into a class of its own; returns whether it was in none."""
        if value in self._parents:
            return False
        self._parents[value] = value
        self._classes[value] = SplitClass()
        return True

    def of(self, value: Value) -> SplitClass:
        return self._classes[self._root(value)]

    def placement(self, value: Value) -> Placement:
        """How a value is split, once all is known: whole if nothing says anything else."""
        found = self.of(value)
        placement = found.placement or found.hint
        if placement is None or len(placement.dims) != ir.RankedTensorType(value.type).rank:
            return Placement.whole(value.type)
        return placement

    def join(self, left: Value, right: Value) -> tuple[SplitClass, SplitClass] | None:
        """Makes two classes one; returns both if they are wanted in two placements."""
        a, b = self._root(left), self._root(right)
        if a == b:
            return None
        one, other = self._classes[a], self._classes[b]
        if one.placement and other.placement and one.placement != other.placement:
            return one, other
        if one.placement is None:
            one.placement, one.reason = other.placement, other.reason
            one.location = other.location
        one.hint = one.hint or other.hint
        self._parents[b] = a
        return None

    def want(self, value: Value, wanted: SplitClass) -> tuple[SplitClass, SplitClass] | None:
        """Sets a placement; returns what wants another and `wanted` if there is such a thing."""
        found = self.of(value)
        if found.placement is None:
            found.placement, found.reason = wanted.placement, wanted.reason
            found.location = wanted.location
        elif found.placement != wanted.placement:
            return found, wanted
        return None

    def hint(self, value: Value, hint: Placement) -> None:
        found = self.of(value)
        found.hint = found.hint or hint

    def _root(self, value: Value) -> Value:
        while self._parents[value] != value:
            self._parents[value] = self._parents[self._parents[value]]
            value = self._parents[value]
        return value
