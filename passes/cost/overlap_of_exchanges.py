"""When gradients of layers of experts are computed in chunks on TPUs, and in what time."""

from __future__ import annotations

from dataclasses import replace

from . import libtpu_memory
from .libtpu_times import copy, products
from .machine import Machine
from .overlap import FEWEST_ROWS, Plan, uneven, wire_seconds
from .overlap_on_tpu import PUT_FACTOR
from .work import Work

_CHUNKS = 4
_EXCHANGES = 4
"""Those of a layer and of its gradient."""
_STORED_BYTES = 4
"""For how many bytes of memory products wait with each number that they store."""


def plan_of_exchanges(work: Work, machine: Machine) -> Plan:
    """The plan for a block of all-to-alls, of the products between them and of sums over both.

    Args:
      work: `segments` are what is computed one after the other, and `columns` the numbers of all
        sums: none if chunks are experts of a device, whose gradients are not added up.
    """
    if work.columns and not work.may_round:
        reason = "products that sum over chunks would be added in another order: see"
        return Plan(None, reason=f"{reason} overlap_rounding")
    if not machine.compiler_options:
        reason = "the compiler does not start all-to-alls beside products without its options: see"
        return Plan(None, reason=f"{reason} shmap_compiler.compiler_options")
    if work.element_bytes > 2:
        return Plan(None, reason=f"chunks of exchanged {work.element} were not measured")
    exchanges = [number for _, _, number in work.segments]
    if work.columns and min(exchanges) < _EXCHANGES:
        reason = "a gradient that is not computed together with its forward pass was not measured"
        return Plan(None, reason=reason)
    if max(exchanges) > _EXCHANGES or (work.columns and len(exchanges) > 1):
        # Two layers: 628 MiB instead of 352 on v5e, and 625 instead of 416 on v5p; in chunks of
        # experts of a device 1318 instead of 768, and 1314 instead of 768.
        reason = "chunks of several layers would need more memory than the plain program"
        return Plan(None, reason=reason)
    if work.rows // _CHUNKS < FEWEST_ROWS:
        count = work.rows // _CHUNKS
        return Plan(None, reason=f"a chunk would have {count} rows, and needs {FEWEST_ROWS}")
    if work.cut % _CHUNKS:
        return Plan(None, reason=uneven("rows", work.cut, _CHUNKS))
    if any(libtpu_memory.exchanges_in_vmem(machine, _sent(work, each)) for each in work.segments):
        return Plan(None, reason="chunks would need memory, and what is exchanged stays in VMEM")
    expected = sum(_segment(work, each, machine) for each in work.segments)
    plain = _compute(work, machine) + _wire(work, work.received, machine)
    return Plan("summed-chunks", _CHUNKS, (), False, plain, expected)


def _segment(work: Work, segment: tuple[int, int, int], machine: Machine) -> float:
    """Chunks are taken before the first transfer and put in place after the last one."""
    received, flops, exchanges = segment
    share = flops / work.flops
    wire = _wire(work, received, machine)
    compute = share * (_compute(work, machine) + _adding(work, machine))
    sent = _sent(work, segment)
    place = PUT_FACTOR * 2 * sent / machine.chip.hbm_bandwidth
    return max(wire, compute) + wire / exchanges / _CHUNKS + copy(sent, machine) + place


def _sent(work: Work, segment: tuple[int, int, int]) -> int:
    """Bytes of an array that is exchanged."""
    received, _, exchanges = segment
    return received * work.count // (work.count - 1) // exchanges


def _wire(work: Work, received: int, machine: Machine) -> float:
    return wire_seconds(replace(work, pattern="all-to-all", received=received), machine)


def _compute(work: Work, machine: Machine) -> float:
    stored = sum(product.batch * product.m * product.n for product in work.products)
    return products(work, machine) + _STORED_BYTES * stored / machine.chip.hbm_bandwidth


def _adding(work: Work, machine: Machine) -> float:
    """What sums over chunks wait for memory: as those over rows do, but on v5e and v6e less."""
    factor = 1.0 if machine.chip.name in ("TPU v5e", "TPU v6e") else PUT_FACTOR
    return (_CHUNKS - 1) * factor * 2 * 4 * work.columns / machine.chip.hbm_bandwidth
