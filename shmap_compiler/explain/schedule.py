"""Runs through the schedule of a program: when it computes, when it sends, and when it waits.

A device works off its instructions in their order. A collective that is one instruction keeps it
waiting to the end. One that is two, `-start` and `-done`, runs beside what stands between them, and
the device waits in `-done` for what is left of it. Collectives share links only one after another.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from shmap_passes.cost.collective_time import Coordinates, Cost, Link

from shmap_compiler.explain import roofline
from shmap_compiler.explain.collective import Collective, is_done, read_collective
from shmap_compiler.explain.hlo import Computation, Instruction, Module
from shmap_compiler.explain.trip_count import Carried, trips
from shmap_compiler.targets.target import Target

DRAWN_TRIPS = 64
"""Events of later trips of a loop are left out."""


@dataclass(frozen=True)
class Event:
    """A stretch of time on a device.

    Attributes:
      lane: "compute", "wire" while a collective runs, or "wait" while the device waits for it.
      start, seconds: when it begins and how long it takes.
      name: of the instruction.
      what: its opcode, or the kind of the collective.
      source: the user's line.
    """

    lane: str
    start: float
    seconds: float
    name: str
    what: str
    source: str


@dataclass(frozen=True)
class Occurrence:
    """A collective instruction in the schedule.

    Attributes:
      trips: how often it runs, counting all loops around it.
      cost: of one run, None if the network is not known.
      overlapped: whether it has a start and a done.
      exposed: seconds that the device waits for one run of it.
    """

    collective: Collective
    trips: int
    cost: Cost | None
    overlapped: bool
    exposed: float


@dataclass
class Schedule:
    """One run of the program on one device.

    Attributes:
      seconds: from the first instruction to the last.
      computing: seconds in which it computes.
      sending: seconds in which at least one collective runs.
      unknown_loops: the lines of loops of which the number of trips is not known; they count once.
    """

    occurrences: list[Occurrence] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    seconds: float = 0.0
    computing: float = 0.0
    sending: float = 0.0
    flops: int = 0
    unknown_loops: list[str] = field(default_factory=list)


def run(
    module: Module, target: Target | None, places: Sequence[Coordinates] | None, device_count: int
) -> Schedule:
    """The schedule of a module, on a target if its figures are known."""
    return _Runner(module, target, places, device_count).run(module.entry, {})


@dataclass
class _Runner:
    module: Module
    target: Target | None
    places: Sequence[Coordinates] | None
    device_count: int

    def run(self, computation: Computation, carried: Carried) -> Schedule:
        """A computation by itself, beginning at time zero with all links free."""
        schedule, links = Schedule(), _Links()
        started: dict[str, tuple[Collective, Cost | None, float]] = {}
        for instruction in computation:
            collective = read_collective(self.module, computation, instruction, self.device_count)
            if is_done(instruction):
                start = _start_of(computation, instruction, started)
                if start is not None:
                    self._finish(schedule, *started.pop(start))
            elif collective is not None:
                cost = self._cost(collective)
                until = links.take(cost, schedule.seconds) if cost else schedule.seconds
                if cost is not None:
                    begin = until - cost.seconds
                    schedule.events.append(_event("wire", begin, cost.seconds, collective))
                if collective.starts:
                    started[instruction.name] = collective, cost, until
                else:
                    if instruction.opcode == "fusion":
                        self._work(schedule, computation, instruction)
                    self._finish(schedule, collective, cost, until, overlapped=False)
            elif instruction.opcode == "while":
                self._loop(schedule, computation, instruction, carried)
            elif instruction.opcode in ("call", "conditional"):
                branches = [
                    self.run(self.module.computations[name], {}) for name in instruction.called
                ]
                _append(schedule, max(branches, key=lambda s: s.seconds), 1)
            else:
                self._work(schedule, computation, instruction)
        schedule.sending += links.busy
        return schedule

    def _cost(self, collective: Collective) -> Cost | None:
        network = self.target.network if self.target else None
        if network is None or self.places is None:
            return None
        return collective.cost(self.places, network)

    def _work(self, schedule: Schedule, computation: Computation, instruction: Instruction) -> None:
        chip = self.target.chip if self.target else None
        seconds = roofline.seconds(self.module, computation, instruction, chip)
        schedule.flops += roofline.flops(self.module, computation, instruction)
        if seconds:
            source = self.module.source(instruction)
            what = instruction.opcode
            schedule.events.append(
                Event("compute", schedule.seconds, seconds, instruction.name, what, source)
            )
            schedule.seconds += seconds
            schedule.computing += seconds

    @staticmethod
    def _finish(
        schedule: Schedule,
        collective: Collective,
        cost: Cost | None,
        until: float,
        overlapped: bool = True,
    ) -> None:
        """The device needs the result of a collective that runs until then."""
        waits = max(0.0, until - schedule.seconds)
        if waits:
            schedule.events.append(_event("wait", schedule.seconds, waits, collective))
        schedule.seconds += waits
        schedule.occurrences.append(Occurrence(collective, 1, cost, overlapped, waits))

    def _loop(
        self, schedule: Schedule, computation: Computation, loop: Instruction, carried: Carried
    ) -> None:
        found = trips(self.module, computation, loop, carried)
        if found.count is None:
            schedule.unknown_loops.append(self.module.source(loop))
        body = self.module.computations[str(loop.attribute(r"\bbody=%([\w.\-]+)"))]
        count = 1 if found.count is None else found.count
        _append(schedule, self.run(body, found.carried), count)


class _Links:
    """Until when the links of the network are taken.

    Attributes:
      busy: seconds in which at least one was.
    """

    def __init__(self) -> None:
        self.busy = 0.0
        self._last = 0.0
        self._all = 0.0
        self._each: dict[Link, float] = {}

    def take(self, cost: Cost, now: float) -> float:
        """When a collective ends that could begin now; it waits for those that use its links."""
        links = self._each if cost.links is None else cost.links
        begin = max([now, self._all, *(self._each.get(link, 0.0) for link in links)])
        end = begin + cost.seconds
        if cost.links is None:
            self._all = end
        else:
            self._each.update(dict.fromkeys(cost.links, end))
        self.busy += max(0.0, end - max(begin, self._last))
        self._last = max(self._last, end)
        return end


def _start_of(
    computation: Computation, done: Instruction, started: Mapping[str, object]
) -> str | None:
    """The collective that an instruction waits for, perhaps through `async-update`s."""
    name = done.operands[0] if done.operands else ""
    while name in computation.instructions and computation[name].opcode == "async-update":
        name = computation[name].operands[0]
    return name if name in started else None


def _append(schedule: Schedule, part: Schedule, times: int) -> None:
    """Lets `part` run so many times after what is in `schedule`."""
    for k in range(min(times, DRAWN_TRIPS)):
        schedule.events += _later(part.events, schedule.seconds + k * part.seconds)
    if times:
        schedule.occurrences += [replace(o, trips=o.trips * times) for o in part.occurrences]
    schedule.seconds += times * part.seconds
    schedule.computing += times * part.computing
    schedule.sending += times * part.sending
    schedule.flops += times * part.flops
    schedule.unknown_loops += part.unknown_loops


def _later(events: Sequence[Event], by: float) -> Iterator[Event]:
    return (replace(event, start=event.start + by) for event in events)


def _event(lane: str, start: float, seconds: float, collective: Collective) -> Event:
    return Event(lane, start, seconds, collective.name, collective.kind, collective.source)
