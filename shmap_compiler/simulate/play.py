"""Plays a program on all devices: each runs until it waits, and groups that are complete go on."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from shmap_compiler.base.untyped import AnyValue, Unchecked
from shmap_compiler.simulate.compile import Playable
from shmap_compiler.simulate.cuts import Cut, Window
from shmap_compiler.simulate.device import (
    CannotSimulate,
    Device,
    Observer,
    SharedWork,
    Waiting,
    nearest,
)
from shmap_compiler.simulate.own_copies import OwnCopies
from shmap_compiler.simulate.report import Exchange, Hang, Position, UnequalCopies
from shmap_compiler.simulate.steps import Collective, Leave, Meeting, Step

Input = np.ndarray | OwnCopies
"""An argument of `@main`: one full array for all devices, or that of each."""
_MeetingKey = tuple[Meeting, tuple[Step, ...], int]


@dataclass(frozen=True)
class Played:
    """What happened.

    Attributes:
      results: the results of `@main`, as device 0 has them; () if the devices hang.
      blocks: of each result, the blocks of the devices.
      exchanges: the collectives, in the order in which groups completed them.
      hang: why the devices did not finish; None if they did.
      unequal: blocks that should be copies and are not.
    """

    results: tuple[AnyValue, ...]
    blocks: tuple[tuple[np.ndarray, ...], ...]
    exchanges: tuple[Exchange, ...]
    hang: Hang | None
    unequal: tuple[UnequalCopies, ...]


def play(program: Playable, inputs: Sequence[Input], observer: Observer | None = None) -> Played:
    """Plays a program on full arrays.

    Args:
      inputs: one for each argument of `@main`; any array for a token.
      observer: sees each step, a collective once for each group.

    Raises:
      CannotSimulate: a device comes to an op that cannot be played.
    """
    return _Players(program, observer).run(inputs)


class _Players:
    def __init__(self, program: Playable, observer: Observer | None):
        self.program, self.observer = program, observer
        self.mesh = program.module.mesh
        self.exchanges: list[Exchange] = []
        self.unequal: list[UnequalCopies] = []
        self.left: dict[int, list[np.ndarray]] = {}
        self.waiting: dict[int, Waiting] = {}
        self.arrived = Counter[_MeetingKey]()
        self.running: dict[int, Generator[Waiting, list[Any], list[Any]]] = {}
        self.done: dict[int, list[Any]] = {}

    def run(self, inputs: Sequence[Input]) -> Played:
        entry, work = self.program.entry, SharedWork()
        for number in range(self.mesh.size):
            seen = [x.of(number) if isinstance(x, OwnCopies) else x for x in inputs]
            environment = dict(zip(entry.arguments, seen, strict=True))
            device = Device(number, work, self.observer)
            self.running[number] = device.play(entry, environment)
            self._resume(number, None)
        ready = deque(range(self.mesh.size))
        while ready:
            device = ready.popleft()
            if device in self.waiting:
                group = self._group(device)
                if self.arrived[self._meeting(device)] == len(group):
                    self._meet(group)
                    ready.extend(group)
        hang = self._hang() if self.waiting else None
        results = () if hang else tuple(self.done[0])
        blocks = (
            []
            if hang
            else [self._blocks(*each) for each in zip(entry.results, results, strict=True)]
        )
        return Played(results, tuple(blocks), tuple(self.exchanges), hang, tuple(self.unequal))

    def _resume(self, device: int, value: Unchecked) -> None:
        try:
            self.waiting[device] = self.running[device].send(value)
        except StopIteration as end:
            self.done[device] = end.value
        else:
            self.arrived[self._meeting(device)] += 1

    def _group(self, device: int) -> tuple[int, ...]:
        return self.waiting[device].step.group_of.get(device, (device,))

    def _meeting(self, device: int) -> _MeetingKey:
        """Equal for devices that wait for each other: the step, the calls around it, the group."""
        waiting = self.waiting[device]
        return waiting.step, waiting.path, self._group(device)[0]

    def _meet(self, group: tuple[int, ...]) -> None:
        del self.arrived[self._meeting(group[0])]
        arrived = [self.waiting.pop(device) for device in group]
        step = arrived[0].step
        operands = [each.operands for each in arrived]
        if isinstance(step, Leave):
            results = self._leave(step, group, operands)
        else:
            assert isinstance(step, Collective), "devices meet in these two only"
            try:
                results = step.result(group, operands)
            except CannotSimulate as error:
                raise error.within(arrived[0].path) from None
            self.exchanges.append(_exchange(step, group, arrived))
        if self.observer is not None:
            self.observer(group, step, operands, results)
        for device, received in zip(group, results, strict=True):
            self._resume(device, received)

    # --------------------------------------------------------------------------------- borders

    def _leave(
        self, step: Leave, group: tuple[int, ...], operands: list[list[AnyValue]]
    ) -> list[list[AnyValue]]:
        fulls: list[Any] = []
        for position, (cut, shape) in enumerate(zip(step.cuts, step.shapes, strict=True)):
            blocks = {d: operands[rank][position] for rank, d in enumerate(group)}
            if cut is None:
                fulls.append(blocks[group[0]])
                continue
            self._keep_blocks(step.results[position], blocks)
            fulls.append(self._joined(step, position, cut, shape, blocks))
        return [fulls for _ in group]

    def _keep_blocks(self, value: int, blocks: dict[int, np.ndarray]) -> None:
        kept = self.left.setdefault(value, [np.empty(0)] * self.mesh.size)
        for device, block in blocks.items():
            kept[device] = block

    def _joined(
        self,
        step: Leave,
        position: int,
        cut: Cut,
        shape: tuple[int, ...],
        blocks: dict[int, AnyValue],
    ) -> np.ndarray:
        full = np.zeros(shape, next(iter(blocks.values())).dtype)
        holders: dict[tuple[Window, int], int] = {}
        for device, block in blocks.items():
            part, index = cut.part(device), cut.index(device)
            adds = cut.summands and any(window == part[0] for window, _ in holders)
            first = holders.setdefault(part, device)
            if first == device:
                full[index] = full[index] + block if adds else block
            elif not same_bits(blocks[first], block):
                self._report_unequal(step, position, (first, device), (blocks[first], block))
        return full

    def _report_unequal(
        self, step: Leave, position: int, devices: tuple[int, int], pair: tuple[AnyValue, AnyValue]
    ) -> None:
        value, returned = step.results[position], self.program.entry.results
        result = returned.index(value) if value in returned else None
        one, other = pair
        differs = (one != other) & ((one == one) | (other == other))
        index = tuple(int(k) for k in np.argwhere(differs)[0])
        values = (one[index], other[index])
        self.unequal.append(UnequalCopies(result, step.place, devices, index, values))

    def _blocks(self, value: int, result: AnyValue) -> tuple[np.ndarray, ...]:
        return tuple(self.left.get(value, [result] * self.mesh.size))

    # ------------------------------------------------------------------------------------ hangs

    def _hang(self) -> Hang:
        return Hang(tuple(self._position(device) for device in range(self.mesh.size)))

    def _position(self, device: int) -> Position:
        coordinates = self.mesh.coordinates(device)
        waiting = self.waiting.get(device)
        if waiting is None or isinstance(waiting.step, Leave):
            return Position(device, coordinates, None, (), ())
        return Position(
            device,
            coordinates,
            nearest(waiting.step.place, waiting.path),
            waiting.rounds,
            self._absent(device, waiting.step),
        )

    def _absent(self, device: int, step: Meeting) -> tuple[int, ...]:
        """The devices of the group that are elsewhere."""
        return tuple(
            d
            for d in step.group_of[device]
            if d not in self.waiting
            or self.waiting[d].step is not step
            or self.waiting[d].path != self.waiting[device].path
        )


def _exchange(step: Collective, group: tuple[int, ...], arrived: Sequence[Waiting]) -> Exchange:
    operands, rounds = arrived[0].operands, {each.rounds for each in arrived}
    return Exchange(
        step.kind,
        nearest(step.place, arrived[0].path).line,
        step.axes,
        group,
        tuple(tuple(x.shape) for x in operands),
        tuple(x.dtype.name for x in operands),
        sum(x.nbytes for x in operands),
        min(rounds),
        len(rounds) > 1,
    )


def same_bits(a: np.ndarray, b: np.ndarray) -> bool:
    """Whether two arrays are equal; NaN equals NaN."""
    if a is b:
        return True
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    if a.tobytes() == b.tobytes():
        return True
    if a.dtype.kind in "biu":
        return False
    return bool(np.all((a == b) | ((a != a) & (b != b))))
