"""The devices of a pmapped call: as many as there are rows, and as one mesh."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Sequence

import jax
import numpy as np
from jax.sharding import Mesh

from shmap_compiler.base.errors import Problem, SpecError
from shmap_compiler.base.meshes import more_cpu_devices
from shmap_compiler.base.untyped import Device
from shmap_compiler.pmap.arguments import Rows


def available_devices(devices: Sequence[Device] | None, backend: str | None) -> tuple[Device, ...]:
    """The devices that may hold rows, those of one process together unless they are given."""
    if devices is not None:
        return tuple(devices)
    count = jax.process_count(backend)
    if count == 1:
        return tuple(jax.devices(backend) if backend is not None else jax.devices())
    return tuple(d for p in range(count) for d in jax.local_devices(p, backend))


def mesh_of_rows(
    who: str,
    rows: Rows,
    axes: Sequence[tuple[str, int]],
    devices: Sequence[Device],
    are_given: bool,
) -> Mesh:
    """The mesh of a call; of each process the first devices are taken.

    Args:
      axes: name and size of the axis of the rows, which are those of all processes, and of the axes
        of inner pmaps.

    Raises:
      SpecError: there are too few devices.
    """
    size = math.prod(n for _, n in axes)
    by_process = Counter(d.process_index for d in devices)
    wanted, uneven = divmod(size, len(by_process))
    if uneven or min(by_process.values()) < wanted:
        raise SpecError(who, [_too_few(rows, axes, devices, are_given)])
    taken: dict[int, int] = defaultdict(int)
    chosen = []
    for device in devices:
        taken[device.process_index] += 1
        if taken[device.process_index] <= wanted:
            chosen.append(device)
    return Mesh(np.array(chosen).reshape([n for _, n in axes]), [name for name, _ in axes])


# ------------------------------------------------------------------------------------- mistakes


def _too_few(
    rows: Rows, axes: Sequence[tuple[str, int]], devices: Sequence[Device], are_given: bool
) -> Problem:
    by_process = Counter(d.process_index for d in devices)
    have, count = min(by_process.values()), rows.count // len(by_process)
    inner = math.prod(n for _, n in axes[1:])
    found = f"{count} rows in {rows.show_source()}"
    if inner > 1:
        sizes = " * ".join(str(n) for _, n in axes[1:])
        found += f", each with inner pmaps of {sizes} rows: {count * inner} devices in all"
    whose = "listed in devices" if are_given else "here"
    if len(by_process) > 1:
        whose += ", of each process"
    more = "" if are_given or len(by_process) > 1 else more_cpu_devices(count * inner)
    return Problem(
        "the devices",
        found,
        f"at most {have} rows, one for each {devices[0].platform} device {whose}",
        _stack_rows(count, have, inner > 1) + more,
    )


def _stack_rows(rows: int, devices: int, is_nested: bool) -> str:
    if is_nested:
        return "use jax.vmap for the inner map, and give inner pmaps of equal size one axis_name"
    each = -(-rows // devices)
    pad = f"pad to {each * devices} rows and " if rows % devices else ""
    return (
        f"{pad}put {each} rows on each device: pmap(jax.vmap(f))(x.reshape({devices}, {each}, ...))"
    )
