"""When overlap pays on GPUs: chunks whose collective runs beside the product of another chunk.

The time of k chunks, with t that of a chunk's collective and c that of its product, is
t + (k - 1) max(c', t) + c and the copies that put them together, where c' is c beside a running
collective (`beside_collectives`). Compared with schedules of XLA for ten other sizes on H100 it is
within 8%, and picks the same k. Rings are left out: no permute was measured on NVLink.
"""

from __future__ import annotations

from dataclasses import replace

from .beside_collectives import share_taken
from .machine import Machine
from .overlap import FEWEST_ROWS, Plan, Work, speed, wire_seconds
from .overlap_on_tpu import unrolled

_CHUNKS = (2, 4, 8)


def plan_on_gpu(work: Work, machine: Machine) -> Plan:
    """The form of a pattern with the best number of chunks, and its time."""
    if work.pattern == "all-to-all":
        return Plan(None, reason="chunks of an exchange gain nothing on GPUs")
    if work.pattern == "gathering-loop":
        return _unrolled(work, machine)
    if work.pattern == "gather-scatter":
        return _stages(work, machine)
    name, size = _cut(work)
    choices = [k for k in _CHUNKS if size % k == 0 and size // k >= FEWEST_ROWS]
    if not choices:
        reason = f"a piece would have fewer than {FEWEST_ROWS} of {size} {name}"
        return Plan(None, reason=reason)
    parts = min(choices, key=lambda k: _seconds(work, machine, k))
    plain = _compute(work, machine, 1) + wire_seconds(work, machine)
    return Plan(name, parts, (), False, plain, _seconds(work, machine, parts))


def _stages(work: Work, machine: Machine) -> Plan:
    """Rows go through a block: a gather runs beside the first products, a scatter beside the last.

    The time of k chunks is t + u + (k - 1) (max(c', t) + max(d', u)) + c + d and the copies.
    """
    choices = [k for k in _CHUNKS if work.cut % k == 0 and work.cut // k >= FEWEST_ROWS]
    if not choices:
        return Plan(None, reason=f"a piece would have fewer than {FEWEST_ROWS} of {work.cut} rows")
    *before, last = work.products
    halves = (
        replace(work, products=tuple(before)),
        replace(work, products=(last,), received=work.scattered, pattern="product-scatter"),
    )
    blocks = sum(each.received // (work.count - 1) for each in halves)
    copies = 2 * blocks / (machine.chip.hbm_bandwidth * machine.chip.hbm_share)

    def seconds(parts: int) -> float:
        total = copies if parts > 1 else 0.0
        for half in halves:
            transfer, compute = wire_seconds(half, machine, parts), _compute(half, machine, parts)
            beside = max(_slowed(half, compute, transfer, machine, parts), transfer)
            total += transfer + (parts - 1) * beside + compute
        return total

    parts = min(choices, key=seconds)
    return Plan("stages", parts, (), False, seconds(1), seconds(parts))


def _cut(work: Work) -> tuple[str, int]:
    """The form, and the size of the dimension that is cut to chunks."""
    if work.pattern == "gather-product":
        return "rows", work.cut
    return "columns", work.columns if work.pattern == "product-scatter" else work.cut


def _unrolled(work: Work, machine: Machine) -> Plan:
    transfer, compute = wire_seconds(work, machine), _compute(work, machine, 1)
    slowed = _slowed(work, compute, transfer, machine, 1)
    plan = unrolled(work, transfer, slowed)
    return Plan(
        plan.name,
        plan.parts,
        plain=work.trips * (transfer + compute),
        expected=plan.expected,
        reason=plan.reason,
    )


def _seconds(work: Work, machine: Machine, parts: int) -> float:
    transfer = wire_seconds(work, machine, parts)
    compute = _compute(work, machine, parts)
    beside = max(_slowed(work, compute, transfer, machine, parts), transfer)
    return transfer + (parts - 1) * beside + compute + _copies(work, machine)


def _slowed(work: Work, compute: float, transfer: float, machine: Machine, parts: int) -> float:
    """Of a product that has fewer processors while a collective runs."""
    chip = machine.chip
    shares = [share_taken(chip, p.batch * p.m * p.n // parts) for p in work.products]
    flops = [p.flops for p in work.products]
    longer = sum(f / (1 - share) for f, share in zip(flops, shares, strict=True)) / sum(flops)
    return min(compute * longer, compute + (1 - 1 / longer) * transfer)


def _compute(work: Work, machine: Machine, parts: int) -> float:
    chip = machine.chip
    seconds = work.flops / parts / (chip.flops_share * speed(work, machine))
    return seconds + chip.kernel_seconds * len(work.products)


def _copies(work: Work, machine: Machine) -> float:
    """Reading and writing what is cut and what is put together."""
    block = work.received // (work.count - 1)
    products = work.products
    if work.pattern == "product-scatter":
        moved = block + sum(p.batch * p.k * p.n * work.element_bytes for p in products)
    else:
        moved = block + sum(p.batch * p.m * p.n * work.element_bytes for p in products)
    return 2 * moved / (machine.chip.hbm_bandwidth * machine.chip.hbm_share)
