"""When gradients of layers of experts are computed in chunks on TPUs, and in what time."""

from __future__ import annotations

from dataclasses import replace

from . import libtpu
from .libtpu_times import copy, products
from .machine import Machine
from .overlap import FEWEST_ROWS, Plan, Work, wire_seconds
from .overlap_on_tpu import PUT_FACTOR

_CHUNKS = 4
_EXCHANGES = 4
_WIDEST = 2
"""Rows may be so many times as wide between exchanges. With f32 and 4 times, a gradient of experts
took 2514 MiB of temporaries on v5e instead of 817, and no less time."""


def plan_of_exchanges(work: Work, machine: Machine) -> Plan:
    """The plan for a block of all-to-alls, of the products between them and of sums over both.

    Args:
      work: `segments` are what is computed one after the other, and `columns` the numbers of all
        sums.
    """
    if not work.may_round:
        reason = "products that sum over chunks would be added in another order: see"
        return Plan(None, reason=f"{reason} overlap_rounding")
    if not machine.compiler_options:
        reason = "the compiler does not start all-to-alls beside products without its options: see"
        return Plan(None, reason=f"{reason} shmap_compiler.compiler_options")
    if work.element_bytes > 2:
        return Plan(None, reason=f"chunks of exchanged {work.element} were not measured")
    if [each[2] >= _EXCHANGES for each in work.segments] != [True]:
        reason = "a gradient that is not computed together with its forward pass was not measured"
        return Plan(None, reason=reason)
    rows = work.count * work.cut
    if any(product.n > _WIDEST * product.k for product in work.products if product.m == rows):
        return Plan(None, reason="what is between the exchanges is too wide: not measured")
    if libtpu.keeps_chunks(machine):
        return Plan(None, reason="chunks would need more memory than the plain program")
    if work.cut % _CHUNKS or work.rows // _CHUNKS < FEWEST_ROWS:
        count = work.rows // _CHUNKS
        return Plan(None, reason=f"a chunk would have {count} rows, and needs {FEWEST_ROWS}")
    expected = sum(_segment(work, each, machine) for each in work.segments)
    plain = products(work, machine) + _wire(work, work.received, machine)
    return Plan("summed-chunks", _CHUNKS, (), False, plain, expected)


def _segment(work: Work, segment: tuple[int, int, int], machine: Machine) -> float:
    """Chunks are taken before the first transfer and put in place after the last one."""
    received, flops, exchanges = segment
    share = flops / work.flops
    wire = _wire(work, received, machine)
    compute = share * (products(work, machine) + _adding(work, machine))
    sent = received * work.count // (work.count - 1) // exchanges
    place = PUT_FACTOR * 2 * sent / machine.chip.hbm_bandwidth
    return max(wire, compute) + wire / exchanges / _CHUNKS + copy(sent, machine) + place


def _wire(work: Work, received: int, machine: Machine) -> float:
    return wire_seconds(replace(work, pattern="all-to-all", received=received), machine)


def _adding(work: Work, machine: Machine) -> float:
    """What sums over chunks wait for memory, as those over rows do."""
    if machine.chip.name == libtpu.GATHERS_BY_ITSELF:
        return 0.0
    return (_CHUNKS - 1) * PUT_FACTOR * 2 * 4 * work.columns / machine.chip.hbm_bandwidth
