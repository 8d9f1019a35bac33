"""Runs through the schedule of a program: when it computes, when it sends, and when it waits.

A device works off its instructions in their order. A collective that is one instruction keeps it
waiting to the end. One that is two, a start and a done, runs beside what stands between them, and
the device waits in the done for what is left of it. On each link of the network, transfers run one
after another, and so do copies to the host and from it. On GPUs a collective that runs takes some
of the processors from what runs beside it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from shmap_passes.cost.beside_collectives import share_taken
from shmap_passes.cost.collective_time import Cost
from shmap_passes.cost.machine import Machine
from shmap_passes.cost.networks import Network

from shmap_compiler.explain import roofline
from shmap_compiler.explain.beside import Beside
from shmap_compiler.explain.collective import Collective, is_done, read_collective, start_of
from shmap_compiler.explain.hlo import Computation, Instruction, Module
from shmap_compiler.explain.host_copies import HostLink, direction, host_bytes
from shmap_compiler.explain.links import Links, show_link
from shmap_compiler.explain.liveness import Buffer, Liveness, liveness
from shmap_compiler.explain.roofline import Work
from shmap_compiler.explain.trip_count import Carried, trips

KeyT = TypeVar("KeyT", bound=Hashable)

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


@dataclass(frozen=True)
class Peak:
    """When most memory is in use, and for which arrays, without the arguments."""

    start: float = 0.0
    bytes: int = 0
    buffers: tuple[Buffer, ...] = ()


@dataclass
class Schedule:
    """One run of the program on one device.

    Attributes:
      memory: (start, bytes): the memory in use from then on, without the arguments.
      works: what the device does itself; an instruction in a loop has one entry for all trips.
      transfers: what each link carries when; their lane names the link.
      seconds: from the first instruction to the last.
      computing: seconds in which it computes.
      sending: seconds in which at least one collective runs.
      usage: seconds for which each link is in use; see `Links`.
      host_bytes: what moves between the memories of the device and of the host.
      host_usage: seconds for which such copies run, by direction; none if the figure is not known.
      host_exposed: seconds that the device waits for them.
      unknown_loops: the lines of loops whose number of trips is not known: one trip is counted.
    """

    occurrences: list[Occurrence] = field(default_factory=list)
    works: list[Work] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    transfers: list[Event] = field(default_factory=list)
    seconds: float = 0.0
    computing: float = 0.0
    sending: float = 0.0
    usage: dict[Hashable, float] = field(default_factory=lambda: defaultdict(float))
    host_bytes: int = 0
    host_usage: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    host_exposed: float = 0.0
    unknown_loops: list[str] = field(default_factory=list)
    memory: list[tuple[float, int]] = field(default_factory=list)
    peak: Peak = Peak()

    @property
    def length(self) -> tuple[float, ...]:
        """What the longest branch has most of: time, or where none is known, what it does."""
        sent = sum(each.trips * each.collective.sent for each in self.occurrences)
        traffic = sum(work.trips * work.traffic for work in self.works)
        return self.seconds, sent, self.flops, traffic

    @property
    def flops(self) -> int:
        """Operations of matrix products and convolutions."""
        return sum(work.flops * work.trips for work in self.works)

    @property
    def unestimated(self) -> float:
        """Seconds of memory traffic of instructions without an estimate, which no time includes."""
        return sum(work.unestimated * work.trips for work in self.works)


def run(module: Module, machine: Machine | None, device_count: int) -> Schedule:
    """The schedule of a module, with times if the machine is known."""
    return _Runner(module, machine, device_count).run(module.entry, {})


@dataclass
class _Runner:
    module: Module
    machine: Machine | None
    device_count: int

    @property
    def _network(self) -> Network | None:
        return self.machine.network if self.machine else None

    def run(self, computation: Computation, carried: Carried) -> Schedule:
        """A computation by itself, beginning at time zero with all links free."""
        schedule, network = Schedule(), self._network
        links = Links(network) if network is not None else None
        started: dict[str, tuple[Collective, Cost | None, float]] = {}
        bandwidth = self.machine.chip.host_bandwidth if self.machine is not None else None
        host = HostLink(bandwidth) if bandwidth is not None else None
        copied: dict[str, Event] = {}
        beside = Beside()
        live = liveness(self.module, computation)
        for index, instruction in enumerate(computation):
            _hold(schedule, live, index)
            moved = host_bytes(computation, instruction)
            schedule.host_bytes += moved
            collective = read_collective(self.module, computation, instruction, self.device_count)
            if is_done(self.module, instruction):
                under_way = {name: c for name, (c, _, _) in started.items()}
                start = start_of(self.module, computation, instruction, under_way)
                if start is not None:
                    self._finish(schedule, *started.pop(start))
            elif collective is not None:
                cost, begin, until = self._begin(schedule, links, collective)
                if collective.starts:
                    started[instruction.name] = collective, cost, until
                    beside.add(begin, until)
                else:
                    if instruction.opcode == "fusion":
                        self._work(schedule, beside, computation, instruction)
                    self._finish(schedule, collective, cost, until, overlapped=False)
            elif moved and host is not None:
                copy = self._copy(schedule, host, instruction, moved)
                if instruction.opcode.endswith("-start"):
                    copied[instruction.name] = copy
                else:
                    _wait_for(schedule, copy)
            elif instruction.operands and instruction.operands[0] in copied:
                _wait_for(schedule, copied.pop(instruction.operands[0]))
            elif instruction.opcode == "while":
                for part, count in self._loop(schedule, computation, instruction, carried):
                    _append(schedule, part, count, live, index)
            elif instruction.opcode in ("call", "conditional"):
                branches = [
                    self.run(self.module.computations[name], {}) for name in instruction.called
                ]
                _append(schedule, _any_of(branches), 1, live, index)
            else:
                self._work(schedule, beside, computation, instruction)
        for unfinished in started.values():
            self._finish(schedule, *unfinished)
        for copy in copied.values():
            _wait_for(schedule, copy)
        if host is not None:
            _add(schedule.host_usage, host.usage, 1)
        if links is not None:
            schedule.sending += links.busy
            _add(schedule.usage, links.usage, 1)
        return schedule

    def _begin(
        self, schedule: Schedule, links: Links | None, collective: Collective
    ) -> tuple[Cost | None, float, float]:
        """The cost of a collective that is reached now, and when it begins and ends."""
        if links is None or self.machine is None:
            return None, schedule.seconds, schedule.seconds
        cost = collective.cost(self.machine.places, links.network)
        begin, end = links.take(cost, schedule.seconds)
        schedule.events.append(_event("wire", begin, end - begin, collective))
        schedule.transfers += [
            _event(show_link(link), first, last - first, collective)
            for link, first, last in links.transfers
        ]
        return cost, begin, end

    def _copy(
        self, schedule: Schedule, host: HostLink, instruction: Instruction, moved: int
    ) -> Event:
        """A copy to the host, or from it, that is reached now."""
        way = direction(instruction)
        begin, end = host.take(way, moved, schedule.seconds)
        source = self.module.source(instruction)
        event = Event(way, begin, end - begin, instruction.name, f"copy {way}", source)
        schedule.transfers.append(event)
        return event

    def _work(
        self,
        schedule: Schedule,
        beside: Beside,
        computation: Computation,
        instruction: Instruction,
    ) -> None:
        chip = self.machine.chip if self.machine else None
        work = roofline.work(self.module, computation, instruction, chip)
        if work is None:
            return
        share = share_taken(chip, work.computed) if chip is not None else 0.0
        work = replace(work, seconds=beside.seconds(schedule.seconds, work.seconds, share))
        schedule.works.append(work)
        if work.seconds:
            schedule.events.append(
                Event(
                    "compute", schedule.seconds, work.seconds, work.name, work.opcode, work.source
                )
            )
            schedule.seconds += work.seconds
            schedule.computing += work.seconds

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
    ) -> Iterator[tuple[Schedule, int]]:
        """What runs in a loop, and how often: its trips, and the condition that ends it.

        A condition that compares a counter takes no time.
        """
        found = trips(self.module, computation, loop, carried)
        condition, body = (
            self.run(self.module.computations[str(loop.attribute(rf"\b{role}=%([\w.\-]+)"))], given)
            for role, given in (("condition", {}), ("body", found.carried))
        )
        if found.count is not None and not condition.occurrences:
            yield body, found.count
            return
        if found.count is None:
            schedule.unknown_loops.append(self.module.source(loop))
        trip, nothing = Schedule(), Liveness({}, (0,))
        _append(trip, condition, 1, nothing, 0)
        _append(trip, body, 1, nothing, 0)
        yield trip, 1 if found.count is None else found.count
        yield condition, 1


def _any_of(branches: Sequence[Schedule]) -> Schedule:
    """The longest of several schedules, with the memory of the one that needs most."""
    longest = max(branches, key=lambda s: s.length)
    largest = max((longest, *branches), key=lambda s: s.peak.bytes)
    if largest is longest:
        return longest
    peak = replace(largest.peak, start=min(largest.peak.start, longest.seconds))
    memory = sorted([*longest.memory, (peak.start, peak.bytes)], key=lambda sample: sample[0])
    return replace(longest, peak=peak, memory=memory)


def _wait_for(schedule: Schedule, copy: Event) -> None:
    """The device needs what a copy moves."""
    waits = max(0.0, copy.start + copy.seconds - schedule.seconds)
    if waits:
        schedule.events.append(replace(copy, lane="wait", start=schedule.seconds, seconds=waits))
    schedule.seconds += waits
    schedule.host_exposed += waits


def _hold(schedule: Schedule, live: Liveness, index: int) -> None:
    """Notes what is in memory while an instruction runs."""
    held = live.bytes[index]
    if not schedule.memory or schedule.memory[-1][1] != held:
        schedule.memory.append((schedule.seconds, held))
    if held > schedule.peak.bytes:
        schedule.peak = Peak(schedule.seconds, held, live.at(index))


def _append(schedule: Schedule, part: Schedule, times: int, live: Liveness, index: int) -> None:
    """Lets `part` run so many times after what is in `schedule`, as the instruction at `index`."""
    held = live.bytes[index]
    for k in range(min(times, DRAWN_TRIPS)):
        begin = schedule.seconds + k * part.seconds
        schedule.events += _later(part.events, begin)
        schedule.transfers += _later(part.transfers, begin)
        schedule.memory += [(begin + start, held + inside) for start, inside in part.memory]
    if times:
        if held + part.peak.bytes > schedule.peak.bytes:
            buffers = sorted((*live.at(index), *part.peak.buffers), key=lambda b: -b.bytes)
            begin = schedule.seconds + part.peak.start
            schedule.peak = Peak(begin, held + part.peak.bytes, tuple(buffers))
        schedule.occurrences += [replace(o, trips=o.trips * times) for o in part.occurrences]
        schedule.works += [replace(work, trips=work.trips * times) for work in part.works]
    schedule.host_bytes += times * part.host_bytes
    schedule.host_exposed += times * part.host_exposed
    schedule.seconds += times * part.seconds
    schedule.computing += times * part.computing
    schedule.sending += times * part.sending
    _add(schedule.usage, part.usage, times)
    _add(schedule.host_usage, part.host_usage, times)
    schedule.unknown_loops += part.unknown_loops


def _add(total: dict[KeyT, float], part: Mapping[KeyT, float], times: int) -> None:
    for key, seconds in part.items():
        total[key] += times * seconds


def _later(events: Sequence[Event], by: float) -> Iterator[Event]:
    return (replace(event, start=event.start + by) for event in events)


def _event(lane: str, start: float, seconds: float, collective: Collective) -> Event:
    return Event(lane, start, seconds, collective.name, collective.kind, collective.source)
