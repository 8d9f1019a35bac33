"""What a simulation found: plain data, and its text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import jax

from shmap_compiler.base.specs import show_type
from shmap_compiler.base.untyped import AnyValue
from shmap_compiler.simulate.places import SourcePlace


@dataclass(frozen=True)
class Exchange:
    """A collective that one group of devices completed.

    Attributes:
      kind: "all_reduce", "all_gather", "reduce_scatter", "all_to_all", "collective_permute", ...
      line: the user's line.
      axes: the mesh axes along which its groups extend; None if they are not whole axes.
      group: the devices, in the order of the group.
      shapes: of the operands on one device.
      dtypes: of the operands.
      bytes: of the operands on one device.
      rounds: of the loops around it, the outermost first.
      out_of_step: whether devices met in different rounds of a loop.
    """

    kind: str
    line: str
    axes: tuple[str, ...] | None
    group: tuple[int, ...]
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]
    bytes: int
    rounds: tuple[int, ...] = ()
    out_of_step: bool = False

    @property
    def operands(self) -> str:
        """The types of the operands: `f32[2,4], i32[]`."""
        typed = map(jax.ShapeDtypeStruct, self.shapes, self.dtypes)
        return ", ".join(map(show_type, typed))


@dataclass(frozen=True)
class Position:
    """Where a device is when no device can go on.

    Attributes:
      device: its position in the mesh, row major.
      coordinates: the same along each axis.
      place: the collective in which it waits; None if it has returned.
      rounds: of the loops around it, the outermost first, counted from 0.
      absent: the devices for which it waits.
    """

    device: int
    coordinates: Mapping[str, int]
    place: SourcePlace | None
    rounds: tuple[int, ...]
    absent: tuple[int, ...]

    def __str__(self) -> str:
        at = ", ".join(f"{axis}={index}" for axis, index in self.coordinates.items())
        if self.place is None:
            return f"device {self.device} ({at}) has returned"
        rounds = "".join(f", round {count + 1}" for count in self.rounds)
        missing = ", ".join(map(str, self.absent))
        what = "device" if len(self.absent) == 1 else "devices"
        return f"device {self.device} ({at}) waits in {self.place}{rounds}, for {what} {missing}"


@dataclass(frozen=True)
class Hang:
    """A deadlock: the position of every device."""

    positions: tuple[Position, ...]

    def __str__(self) -> str:
        return "\n".join(map(str, self.positions))


@dataclass(frozen=True)
class UnequalCopies:
    """Two devices whose blocks of a result should be equal and are not.

    Attributes:
      result: the position of the result; None for a value that is not a result.
      place: where the per-device code ends.
      devices: the two.
      index: an element in which they differ.
      values: the element on each of the two.
    """

    result: int | None
    place: SourcePlace
    devices: tuple[int, int]
    index: tuple[int, ...]
    values: tuple[AnyValue, AnyValue]

    def __str__(self) -> str:
        name = "a value" if self.result is None else f"result {self.result}"
        first, second = self.devices
        at = list(self.index)
        return (
            f"{name} should be equal on devices {first} and {second}, but at {at} of their blocks "
            f"it is {self.values[0]} and {self.values[1]}"
        )


@dataclass(frozen=True)
class NonFinite:
    """The first operation that made a NaN of numbers, or an infinity of finite numbers.

    Attributes:
      kind: "NaN" or "infinity".
      place: the operation.
      device: where it happened.
    """

    kind: str
    place: SourcePlace
    device: int

    def __str__(self) -> str:
        return f"the first {self.kind} comes from {self.place}, on device {self.device}"
