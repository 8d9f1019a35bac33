"""Explanation: what a compiled program costs, found in its HLO and shown."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from shmap_passes.cost.chips import Chip
from shmap_passes.cost.machine import Machine

from shmap_compiler.base import specs
from shmap_compiler.base.bits import bytes_of
from shmap_compiler.base.text_tables import show_bytes
from shmap_compiler.base.untyped import Aval, Unchecked
from shmap_compiler.explain import hlo
from shmap_compiler.explain.comparison import Comparison
from shmap_compiler.explain.compute import compute_costs, short
from shmap_compiler.explain.figures import CollectiveCost, Figures, Layout, Memory, Totals
from shmap_compiler.explain.links import fullest
from shmap_compiler.explain.memory_use import memory_use
from shmap_compiler.explain.page import comparison_page, page
from shmap_compiler.explain.schedule import Event, Occurrence, Schedule, run
from shmap_compiler.explain.text import text
from shmap_compiler.explain.trace import trace
from shmap_compiler.records.compiled_program import CompiledProgram, MemoryAnalysis
from shmap_compiler.targets import Target, Torus

SCHEMA = 4
"""Counts changes to what `to_json` gives; see `docs/explain.md`."""


class Explanation(Figures):
    """What a compiled program costs on one device, and how its arrays are laid out.

    `str()` gives tables, `to_json()` all figures, `to_html()` a page with pictures.
    """

    def to_json(self) -> str:
        """All figures: seconds and bytes."""
        return json.dumps({"schema": SCHEMA, **dataclasses.asdict(self)}, indent=1)

    def to_trace(self) -> str:
        """The modelled run as JSON for Perfetto and `chrome://tracing`."""
        return trace(self)

    def to_html(self) -> str:
        """One page without references to others."""
        return page(self)

    def against(self, other: Explanation) -> SideBySide:
        """This explanation beside another one: of another program, or for another target."""
        return SideBySide(self, other)

    def __str__(self) -> str:
        return text(self)


class SideBySide(Comparison):
    """Two explanations side by side.

    `str()` gives tables, `to_json()` all figures of both, `to_html()` one page.
    """

    def to_json(self) -> str:
        """All figures of both, under "first" and "second"."""
        both = {"first": dataclasses.asdict(self.first), "second": dataclasses.asdict(self.second)}
        return json.dumps({"schema": SCHEMA, **both}, indent=1)

    def to_html(self) -> str:
        """One page without references to others."""
        return comparison_page(self)


def explain(compiled: CompiledProgram) -> Explanation:
    """What a compiled program costs; see `docs/explain.md` for how it is found."""
    signature, target = compiled.signature, compiled.target
    mesh = dict(signature.mesh.shape)
    module = hlo.parse(compiled.as_text())
    machine = compiled.machine
    schedule = run(module, machine, math.prod(mesh.values()))
    timed = machine is not None
    chip = machine.chip if machine is not None else None
    memory = _memory(compiled, chip)
    return Explanation(
        program=signature.who,
        target=target.text if target is not None else None,
        chip=chip.name if chip is not None else None,
        mesh=mesh,
        collectives=_collectives(schedule.occurrences, mesh),
        compute=compute_costs(schedule.works, chip),
        totals=_totals(compiled, schedule, machine),
        memory=memory,
        memory_use=memory_use(schedule, len(signature.in_types), memory.arguments, timed),
        layouts=_layouts(compiled, mesh),
        timeline=tuple(_located(schedule.events)),
        transfers=tuple(_located(schedule.transfers)),
        notes=(*compiled.notes, *_notes(compiled.target, machine, schedule)),
    )


def _located(events: Sequence[Event]) -> Iterator[Event]:
    """Events with the path of their line from here."""
    return (dataclasses.replace(event, source=short(event.source)) for event in events)


def _collectives(
    occurrences: Sequence[Occurrence], mesh: Mapping[str, int]
) -> tuple[CollectiveCost, ...]:
    alike: dict[tuple[Any, ...], list[Occurrence]] = {}
    for o in occurrences:
        c = o.collective
        key = (c.source, c.written, c.kind, c.axes(mesh), c.size, c.payload, o.overlapped)
        alike.setdefault(key, []).append(o)
    return tuple(_sum(key, group) for key, group in alike.items())


def _sum(key: tuple[Unchecked, ...], alike: Sequence[Occurrence]) -> CollectiveCost:
    source, written, kind, axes, size, payload, overlapped = key
    costs = [o.cost for o in alike]
    timed = None not in costs
    return CollectiveCost(
        source=short(source),
        written=written,
        kind=kind,
        axes=axes,
        group_size=size,
        instructions=tuple(dict.fromkeys(o.collective.name for o in alike)),
        count=sum(o.trips for o in alike),
        payload_bytes=payload,
        sent_bytes=sum(o.trips * o.collective.sent for o in alike),
        seconds=sum(o.trips * o.cost.seconds for o in alike if o.cost) if timed else None,
        overlapped=overlapped,
        exposed_seconds=sum(o.trips * o.exposed for o in alike) if timed else None,
    )


def _totals(compiled: CompiledProgram, schedule: Schedule, machine: Machine | None) -> Totals:
    costs = compiled.cost_analysis() or {}
    timed = machine is not None
    link = fullest(schedule.usage, machine.network) if machine is not None else 0.0
    times = {
        "compute": schedule.computing,
        "wire": link,
        "host": max(schedule.host_usage.values(), default=0.0),
    }
    bound = max(times, key=lambda name: times[name])
    is_host_timed = machine is not None and machine.chip.host_bandwidth is not None
    return Totals(
        flops=schedule.flops,
        compiler_flops=costs.get("flops"),
        compiler_bytes=costs.get("bytes accessed"),
        sent_bytes=sum(o.trips * o.collective.sent for o in schedule.occurrences),
        compute_seconds=schedule.computing if timed else None,
        wire_seconds=schedule.sending if timed else None,
        exposed_seconds=sum(o.trips * o.exposed for o in schedule.occurrences) if timed else None,
        unestimated_seconds=schedule.unestimated if timed else None,
        link_seconds=link if timed else None,
        host_seconds=sum(schedule.host_usage.values()) if is_host_timed else None,
        host_exposed_seconds=schedule.host_exposed if is_host_timed else None,
        step_seconds=schedule.seconds if timed else None,
        bound=bound if timed else None,
        bound_seconds=times[bound] if timed else None,
    )


def _memory(compiled: CompiledProgram, chip: Chip | None) -> Memory:
    figures = MemoryAnalysis.of(compiled.memory_analysis())
    return Memory(
        arguments=figures.argument_size_in_bytes,
        results=figures.output_size_in_bytes,
        aliased=figures.alias_size_in_bytes,
        temporaries=figures.temp_size_in_bytes,
        program=figures.generated_code_size_in_bytes,
        total=figures.total,
        capacity=chip.hbm_bytes if chip is not None else None,
    )


def _layouts(compiled: CompiledProgram, mesh: Mapping[str, int]) -> tuple[Layout, ...]:
    signature = compiled.signature
    closed_over = len(signature.constants)
    roles = ["closed over"] * closed_over + ["argument"] * len(signature.in_paths)
    roles += ["result"] * len(signature.out_types)
    paths = [f"[{i}]" for i in range(closed_over)] + list(signature.in_paths)
    paths += [f"result[{i}]" for i in range(len(signature.out_types))]
    types = (*signature.in_types, *signature.out_types)
    all_specs = (*signature.in_specs, *signature.out_specs)
    arrays = list(zip(roles, paths, types, all_specs, strict=True))
    known = arrays if signature.places_results else arrays[: len(signature.in_types)]
    return tuple(_layout(*array, signature.mesh, mesh) for array in known)


def _layout(
    role: str, path: str, type_: Aval, spec: Unchecked, mesh: Unchecked, sizes: Mapping[str, int]
) -> Layout:
    block = specs.shard_shape(type_.shape, spec, mesh)
    return Layout(
        role=role,
        path=path,
        type=specs.show_type(type_),
        spec=specs.show(spec),
        block=tuple(block),
        bytes=bytes_of(block, type_.dtype),
        holds=_holds(len(type_.shape), spec, sizes),
    )


def _holds(rank: int, spec: Unchecked, mesh: Mapping[str, int]) -> tuple[tuple[int, ...], ...]:
    """Which block each device holds along each dimension; the first axis of an entry is major."""
    shape = tuple(mesh.values())
    coordinates = dict(zip(mesh, np.indices(shape).reshape(len(shape), -1), strict=True))
    entries = [*spec.partitions, *[None] * (rank - len(spec))]
    blocks = []
    for entry in entries[:rank]:
        axes = () if entry is None else (entry,) if isinstance(entry, str) else tuple(entry)
        position = np.zeros(math.prod(shape), int)
        for axis in axes:
            position = position * mesh[axis] + coordinates[axis]
        blocks.append(position.tolist())
    return tuple(zip(*blocks, strict=True)) if blocks else ((),) * math.prod(shape)


def _notes(target: Target | None, machine: Machine | None, schedule: Schedule) -> tuple[str, ...]:
    notes = [
        f"the loop at {short(line) or '?'} counts as one trip: how often it runs is not known"
        for line in dict.fromkeys(schedule.unknown_loops)
    ]
    hops: dict[str, int] = {}
    for o in schedule.occurrences:
        if o.cost is not None and o.cost.hops > 1:
            line = short(o.collective.source) or "?"
            hops[line] = max(hops.get(line, 0), o.cost.hops)
    notes += [
        f"{line}: transfers go over up to {count} links, which other transfers use, too; they "
        "connect devices that are not neighbors in the network"
        for line, count in hops.items()
    ]
    if schedule.host_bytes:
        bandwidth = machine.chip.host_bandwidth if machine is not None else None
        time = "no time includes that"
        if bandwidth is not None:
            time = f"{bandwidth / 1e9:g} GB/s each way, as was measured on one"
        notes.append(
            f"{show_bytes(schedule.host_bytes)} move between the memories of the device and of the "
            f"host: {time}"
        )
    if machine is None:
        notes.append("no times: the target has no published figures; use e.g. tpu:v5e:2x4")
        return tuple(notes)
    network = machine.network
    if isinstance(network, Torus) and network.other_link_bandwidth and schedule.sending:
        rates = (network.link_bandwidth, network.other_link_bandwidth)
        first, second = (f"{rate / 1e9:g}" for rate in rates)
        notes.append(
            f"a link is taken to carry {first} GB/s, as Google publishes; the scaling book gives "
            f"{second}, with which the wire takes {100 * (rates[0] / rates[1] - 1):.0f}% longer"
        )
    if machine.chip.clock is None:
        notes.append("compute time is a roofline: this compiler makes no estimate of its own")
    if target is not None and target.kind == "gpu":
        notes.append("products are those of cuBLAS: other kernels have to be tuned on a GPU")
    kernels = {w.source for w in schedule.works if w.opcode == "custom-call" and w.unestimated}
    notes += [
        f"the kernel at {short(line) or '?'} has no estimate: it counts as taking no time"
        for line in sorted(kernels)
    ]
    return tuple(notes)
