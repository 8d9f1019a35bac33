"""A module as steps that devices play: plain data, without MLIR.

The values of a function are numbered; an environment holds the arrays of one device by these
numbers. Everything between two steps that need the other devices, or the position of the device,
is one `Local` step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from shmap_compiler.base.untyped import AnyValue
from shmap_compiler.simulate.cuts import Cut, Groups
from shmap_compiler.simulate.element_types import ElementType
from shmap_compiler.simulate.places import SourcePlace


@dataclass(frozen=True, eq=False)
class Step:
    """One step of a block.

    Attributes:
      place: the op, or the first of several.
      operands: the numbers of the values that it reads.
      results: the numbers of the values that it makes.
    """

    place: SourcePlace
    operands: tuple[int, ...]
    results: tuple[int, ...]

    def reads(self) -> set[int]:
        """The values that it reads, also in its blocks."""
        return set(self.operands)


@dataclass(frozen=True, eq=False)
class Block:
    """A region or function: steps from the values `arguments` to the values `results`.

    Attributes:
      dropped: for each step, the values of the block that are not needed after it.
    """

    arguments: tuple[int, ...]
    steps: tuple[Step, ...]
    results: tuple[int, ...]
    dropped: tuple[tuple[int, ...], ...] = field(init=False)

    def __post_init__(self) -> None:
        own = {*self.arguments, *(number for step in self.steps for number in step.results)}
        needed, dropped = set(self.results), []
        for step in reversed(self.steps):
            read = set(step.reads())
            dropped.append(tuple((read | set(step.results)) & own - needed))
            needed |= read
        object.__setattr__(self, "dropped", tuple(reversed(dropped)))

    def reads(self) -> set[int]:
        """The values that it reads, of other blocks as well."""
        return {*self.results, *(number for step in self.steps for number in step.reads())}


@dataclass(frozen=True, eq=False)
class Segment:
    """A module for the interpreter, on carriers (`element_types.py`).

    Attributes:
      number: tells segments apart.
      code: the module as bytecode.
    """

    number: int
    code: bytes
    inputs: tuple[ElementType, ...]
    outputs: tuple[ElementType, ...]


@dataclass(frozen=True, eq=False)
class Local(Step):
    """Ops that the interpreter evaluates.

    Attributes:
      places: of all ops.
      single: makes a `Local` of each op, to find the one that fails.
    """

    segment: Segment
    places: tuple[SourcePlace, ...]
    single: Callable[[], tuple[Step, ...]]


@dataclass(frozen=True, eq=False)
class Computed(Step):
    """An op that NumPy computes."""

    function: Callable[..., Sequence[np.ndarray]]


@dataclass(frozen=True, eq=False)
class Same(Step):
    """An op that changes no value: its results are its operands."""


@dataclass(frozen=True, eq=False)
class Position(Step):
    """The position of a device, by its number."""

    values: tuple[np.ndarray, ...]


KNOWN_OPERATIONS = "operations of StableHLO that its reference interpreter evaluates"


@dataclass(frozen=True, eq=False)
class Unsupported(Step):
    """An op that cannot be simulated; an error if a device comes to it."""

    found: str
    fix: str
    needed: str = KNOWN_OPERATIONS


@dataclass(frozen=True, eq=False)
class Loop(Step):
    """A `stablehlo.while` that cannot be left to the interpreter."""

    condition: Block
    body: Block

    def reads(self) -> set[int]:
        return {*self.operands, *self.condition.reads(), *self.body.reads()}


@dataclass(frozen=True, eq=False)
class Branch(Step):
    """A `stablehlo.if` or `stablehlo.case` that cannot be left to the interpreter."""

    branches: tuple[Block, ...]

    def reads(self) -> set[int]:
        return set(self.operands).union(*(branch.reads() for branch in self.branches))


@dataclass(frozen=True, eq=False)
class Call(Step):
    """A call of a function that cannot be left to the interpreter."""

    callee: Callable[[], Block]


@dataclass(frozen=True, eq=False)
class Meeting(Step):
    """A step that the devices of a group take together.

    Attributes:
      groups: the devices that wait for each other.
    """

    groups: Groups
    group_of: dict[int, tuple[int, ...]] = field(init=False)

    def __post_init__(self) -> None:
        members = {device: group for group in self.groups for device in group}
        object.__setattr__(self, "group_of", members)


@dataclass(frozen=True, eq=False)
class Collective(Meeting):
    """A collective.

    Attributes:
      axes: the mesh axes along which its groups extend; None if they are no whole axes.
      result: from the operands of a group, one list for each device in its order, to its results.
    """

    axes: tuple[str, ...] | None
    result: Callable[[tuple[int, ...], list[list[AnyValue]]], list[list[AnyValue]]]

    @property
    def kind(self) -> str:
        """Its name without the dialect: "all_reduce"."""
        return self.place.op.rpartition(".")[2]


@dataclass(frozen=True, eq=False)
class Enter(Step):
    """The border into per-device code: each device takes its blocks of full arrays.

    Attributes:
      cuts: of each operand; None for a value that is not cut.
    """

    cuts: tuple[Cut | None, ...]


@dataclass(frozen=True, eq=False)
class Leave(Meeting):
    """The border out of per-device code: the blocks of a group become full arrays.

    Attributes:
      cuts: of each result; None for a value that is not cut.
      shapes: of each result.
    """

    cuts: tuple[Cut | None, ...]
    shapes: tuple[tuple[int, ...], ...]
