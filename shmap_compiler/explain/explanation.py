"""Explanation: what a compiled program costs, as data."""

from __future__ import annotations

import dataclasses
import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from shmap_compiler.base import specs
from shmap_compiler.explain import hlo
from shmap_compiler.explain.schedule import Event, Occurrence, Schedule, run
from shmap_compiler.stages.compiled import Compiled, MemoryAnalysis


@dataclass(frozen=True)
class CollectiveCost:
    """What the collectives of one kind cost that come from one line and move equal arrays alike.

    Attributes:
      source: the user's line, "file:line"; "" if XLA kept none.
      axes: the mesh axes along which they communicate; None if no whole axes.
      group_size: devices that work together; of a permute, those that send.
      instructions: names in the program.
      count: how often they run in one run of the program, loops counted in.
      payload_bytes: of one, on one device: of its operand or its result, whichever is larger.
      sent_bytes: by one device, in all runs together.
      seconds: in all runs together, each with its links for itself; None if not modelled.
      overlapped: whether the device computes while they run (start and done in the program).
      exposed_seconds: of all runs, that the device waits for them; None if not modelled.
    """

    source: str
    kind: str
    axes: tuple[str, ...] | None
    group_size: int
    instructions: tuple[str, ...]
    count: int
    payload_bytes: int
    sent_bytes: float
    seconds: float | None
    overlapped: bool
    exposed_seconds: float | None


@dataclass(frozen=True)
class Totals:
    """Of one run of the program on one device. Times are None where the target has no figures.

    Attributes:
      flops: of matrix products and convolutions, counted from the program, loops counted in.
      compiler_flops, compiler_bytes: the compiler's own counts, which take each loop for one trip;
        None if it makes none.
      compute_seconds: by the compiler's own estimates, or by a roofline.
      wire_seconds: in which at least one collective runs.
      exposed_seconds: in which the device waits for collectives.
      step_seconds: from begin to end.
      bound: what takes longer if everything overlapped: "compute" or "wire".
      bound_seconds: how long that takes: no order of the same work makes the run shorter.
    """

    flops: int
    compiler_flops: float | None
    compiler_bytes: float | None
    sent_bytes: float
    compute_seconds: float | None
    wire_seconds: float | None
    exposed_seconds: float | None
    step_seconds: float | None
    bound: str | None
    bound_seconds: float | None


@dataclass(frozen=True)
class Memory:
    """Bytes of one device; `capacity` is None where it is not known."""

    arguments: int
    results: int
    aliased: int
    temporaries: int
    program: int
    total: int
    capacity: int | None


@dataclass(frozen=True)
class Layout:
    """How an argument or a result lies on the mesh.

    Attributes:
      role: "closed over", "argument" or "result".
      path: `args[0]['w']`, `result[1]`.
      block: the shape of what each device holds.
      bytes: of one block.
      holds: by position of a device in the mesh, which block along each dimension it holds.
    """

    role: str
    path: str
    type: str
    spec: str
    block: tuple[int, ...]
    bytes: int
    holds: tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Explanation:
    """What a compiled program costs on one device, and how its arrays lie.

    `str()` gives tables, `to_json()` all figures, `to_html()` a page with pictures.

    Attributes:
      program: the user's function.
      target: the text of the target; None if it was compiled for the devices of its mesh.
      mesh: sizes by axis.
      timeline: what happens when on one device; later trips of long loops are left out.
      notes: what these figures leave out.
    """

    program: str
    target: str | None
    chip: str | None
    mesh: Mapping[str, int]
    collectives: tuple[CollectiveCost, ...]
    totals: Totals
    memory: Memory
    layouts: tuple[Layout, ...]
    timeline: tuple[Event, ...]
    notes: tuple[str, ...]

    def to_json(self) -> str:
        """All figures: seconds and bytes."""
        return json.dumps(dataclasses.asdict(self), indent=1)

    def to_html(self) -> str:
        """One page without references to others."""
        from shmap_compiler.explain.page import page

        return page(self)

    def __str__(self) -> str:
        from shmap_compiler.explain.text import text

        return text(self)


def explain(compiled: Compiled) -> Explanation:
    """What a compiled program costs; see `docs/explain.md` for how it is found."""
    signature, target = compiled.signature, compiled.target
    mesh = dict(signature.mesh.shape)
    module = hlo.parse(compiled.as_text())
    schedule = run(module, target, compiled.places, math.prod(mesh.values()))
    timed = target is not None and target.chip is not None
    chip = target.chip if target is not None else None
    return Explanation(
        program=signature.who,
        target=target.text if target is not None else None,
        chip=chip.name if chip is not None else None,
        mesh=mesh,
        collectives=_collectives(schedule.occurrences, mesh),
        totals=_totals(compiled, schedule, timed),
        memory=_memory(compiled),
        layouts=_layouts(compiled, mesh),
        timeline=tuple(schedule.events),
        notes=_notes(compiled, schedule),
    )


def _collectives(
    occurrences: Sequence[Occurrence], mesh: Mapping[str, int]
) -> tuple[CollectiveCost, ...]:
    alike: dict[tuple[Any, ...], list[Occurrence]] = {}
    for o in occurrences:
        c = o.collective
        key = (c.source, c.kind, c.axes(mesh), c.size, c.payload, o.overlapped)
        alike.setdefault(key, []).append(o)
    return tuple(_sum(key, group) for key, group in alike.items())


def _sum(key: tuple[Any, ...], alike: Sequence[Occurrence]) -> CollectiveCost:
    source, kind, axes, size, payload, overlapped = key
    costs = [o.cost for o in alike]
    timed = None not in costs
    return CollectiveCost(
        source=_short(source),
        kind=kind,
        axes=axes,
        group_size=size,
        instructions=tuple(o.collective.name for o in alike),
        count=sum(o.trips for o in alike),
        payload_bytes=payload,
        sent_bytes=sum(o.trips * o.collective.sent for o in alike),
        seconds=sum(o.trips * o.cost.seconds for o in alike if o.cost) if timed else None,
        overlapped=overlapped,
        exposed_seconds=sum(o.trips * o.exposed for o in alike) if timed else None,
    )


def _totals(compiled: Compiled, schedule: Schedule, timed: bool) -> Totals:
    costs = compiled.cost_analysis() or {}
    times = (schedule.computing, schedule.sending)
    return Totals(
        flops=schedule.flops,
        compiler_flops=costs.get("flops"),
        compiler_bytes=costs.get("bytes accessed"),
        sent_bytes=sum(o.trips * o.collective.sent for o in schedule.occurrences),
        compute_seconds=schedule.computing if timed else None,
        wire_seconds=schedule.sending if timed else None,
        exposed_seconds=sum(o.trips * o.exposed for o in schedule.occurrences) if timed else None,
        step_seconds=schedule.seconds if timed else None,
        bound=("compute" if times[0] >= times[1] else "wire") if timed else None,
        bound_seconds=max(times) if timed else None,
    )


def _memory(compiled: Compiled) -> Memory:
    figures = MemoryAnalysis.of(compiled.memory_analysis())
    chip = compiled.target.chip if compiled.target is not None else None
    return Memory(
        arguments=figures.argument_size_in_bytes,
        results=figures.output_size_in_bytes,
        aliased=figures.alias_size_in_bytes,
        temporaries=figures.temp_size_in_bytes,
        program=figures.generated_code_size_in_bytes,
        total=figures.total,
        capacity=chip.hbm_bytes if chip is not None else None,
    )


def _layouts(compiled: Compiled, mesh: Mapping[str, int]) -> tuple[Layout, ...]:
    signature = compiled.signature
    closed_over = len(signature.constants)
    roles = ["closed over"] * closed_over + ["argument"] * len(signature.in_paths)
    roles += ["result"] * len(signature.out_types)
    paths = [f"[{i}]" for i in range(closed_over)] + list(signature.in_paths)
    paths += [f"result[{i}]" for i in range(len(signature.out_types))]
    types = (*signature.in_types, *signature.out_types)
    all_specs = (*signature.in_specs, *signature.out_specs)
    arrays = zip(roles, paths, types, all_specs, strict=True)
    return tuple(_layout(*array, signature.mesh, mesh) for array in arrays)


def _layout(
    role: str, path: str, type_: Any, spec: Any, mesh: Any, sizes: Mapping[str, int]
) -> Layout:
    block = specs.shard_shape(type_.shape, spec, mesh)
    return Layout(
        role=role,
        path=path,
        type=specs.show_type(type_),
        spec=specs.show(spec),
        block=tuple(block),
        bytes=math.prod(block) * type_.dtype.itemsize,
        holds=_holds(len(type_.shape), spec, sizes),
    )


def _holds(rank: int, spec: Any, mesh: Mapping[str, int]) -> tuple[tuple[int, ...], ...]:
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


def _notes(compiled: Compiled, schedule: Schedule) -> tuple[str, ...]:
    target = compiled.target
    notes = [
        f"the loop at {_short(line) or '?'} counts as one trip: how often it runs is not known"
        for line in schedule.unknown_loops
    ]
    hops: dict[str, int] = {}
    for o in schedule.occurrences:
        if o.cost is not None and o.cost.hops > 1:
            line = _short(o.collective.source) or "?"
            hops[line] = max(hops.get(line, 0), o.cost.hops)
    notes += [
        f"{line}: transfers go over up to {count} links, which other transfers use, too; they "
        "connect devices that are not neighbors in the network"
        for line, count in hops.items()
    ]
    if target is None or target.chip is None:
        notes.append("no times: the target has no published figures; use e.g. tpu:v5e:2x4")
    elif target.chip.clock is None:
        notes.append("compute time is a roofline: this compiler makes no estimate of its own")
    return tuple(notes)


def _short(source: str) -> str:
    """A line of source with its path from here, if it is below."""
    path, colon, line = source.rpartition(":")
    if not colon:
        return source
    try:
        return f"{Path(path).resolve().relative_to(os.getcwd())}:{line}"
    except ValueError:
        return source
