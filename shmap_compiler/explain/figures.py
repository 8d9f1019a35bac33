"""What a compiled program costs, as data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from shmap_compiler.explain.schedule import Event


@dataclass(frozen=True)
class CollectiveCost:
    """The cost of the collectives of one kind that come from one line and move arrays of one type.

    Attributes:
      source: the user's line, "file:line"; "" if XLA kept none.
      written: whether they come from a collective in the user's program; others were added by the
        partitioner.
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
    written: bool
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
    """Totals of one run of the program on one device.

    Times are None if the target has no figures.

    Attributes:
      flops: of matrix products and convolutions, counted from the program, loops counted in.
      compiler_flops, compiler_bytes: the compiler's own counts, which take each loop for one trip;
        None if it makes none.
      compute_seconds: by the compiler's own estimates, or by a roofline.
      wire_seconds: in which at least one collective runs.
      exposed_seconds: in which the device waits for collectives.
      step_seconds: from the first instruction to the last.
      unestimated_seconds: memory traffic of instructions, such as copies, for which the compiler
        gives no estimate. No other figure includes it.
      link_seconds: for which the link is in use that is in use for longest.
      host_seconds: of copies to the memory of the host and from it, together; None if they are not
        modelled.
      host_exposed_seconds: in which the device waits for them; None if not modelled.
      bound: what takes longest if everything overlapped: "compute", "wire", which is that link, or
        "host", which is copies in one direction.
      bound_seconds: how long that takes: no order of the same work makes the run shorter.
    """

    flops: int
    compiler_flops: float | None
    compiler_bytes: float | None
    sent_bytes: float
    compute_seconds: float | None
    wire_seconds: float | None
    exposed_seconds: float | None
    unestimated_seconds: float | None
    link_seconds: float | None
    host_seconds: float | None
    host_exposed_seconds: float | None
    step_seconds: float | None
    bound: str | None
    bound_seconds: float | None


@dataclass(frozen=True)
class ComputeCost:
    """What a line of the user's program makes a device do itself, in one named scope.

    Of several lines in one kernel, the one with the largest matrix product counts.

    Attributes:
      source: the user's line, "file:line"; "" if XLA kept none.
      scope: the named scopes around it, such as those of `jax.named_scope` and of layers of flax.
      count: kernels that run in one run of the program, loops counted in.
      seconds: of all of them; None if not modelled.
      flops: of matrix products and convolutions.
      peak_share: of the speed of the chip's matrix units; None without products or times.
      traffic_bytes: read and written in the memory of the device.
      bound: what the time is close to: "compute", "memory", or "other" if it is more than twice
        both; None without times.
      unestimated_seconds: of traffic for which the compiler gives no estimate; not in `seconds`.
    """

    source: str
    scope: str
    count: int
    seconds: float | None
    flops: int
    peak_share: float | None
    traffic_bytes: int
    bound: str | None
    unestimated_seconds: float | None


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
class LiveArrays:
    """Arrays of one line, scope and type that are in memory when most of it is in use.

    Attributes:
      source: the user's line, "file:line"; "" if XLA kept none, and for arguments.
      scope: the named scopes around it; "arguments" for all of them together.
      type: of one array; "" for arguments.
      count: arrays.
      bytes: of all of them.
    """

    source: str
    scope: str
    type: str
    count: int
    bytes: int


@dataclass(frozen=True)
class MemoryUse:
    """The memory of one device over one run, as the order of the instructions needs it.

    Arguments count all the time, temporaries and results from when they are written, and
    temporaries until they are read for the last time.

    Attributes:
      peak_bytes: the most that is in use at one time.
      peak_start: when that is, in seconds from the start; None if times are not modelled.
      live: the arrays that are in memory then, the largest first.
      samples: (seconds, bytes): what is in use from then on; none if times are not modelled.
    """

    peak_bytes: int
    peak_start: float | None
    live: tuple[LiveArrays, ...]
    samples: tuple[tuple[float, int], ...]


@dataclass(frozen=True)
class Layout:
    """How an argument or a result is laid out on the mesh.

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
class Figures:
    """What a compiled program costs on one device, and how its arrays lie.

    Attributes:
      program: the user's function.
      target: the text of the target; None if it was compiled for the devices of its mesh.
      mesh: sizes by axis.
      compute: by line and scope, the most expensive first.
      memory_use: over time, and the arrays that are in memory at the peak.
      transfers: what each link of the network carries when, as far as the timeline goes.
      timeline: what happens when on one device; later trips of long loops are left out.
      notes: what these figures leave out.
    """

    program: str
    target: str | None
    chip: str | None
    mesh: Mapping[str, int]
    collectives: tuple[CollectiveCost, ...]
    compute: tuple[ComputeCost, ...]
    totals: Totals
    memory: Memory
    memory_use: MemoryUse
    layouts: tuple[Layout, ...]
    timeline: tuple[Event, ...]
    transfers: tuple[Event, ...]
    notes: tuple[str, ...]
