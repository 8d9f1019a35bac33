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
from .overlap import (
    FEWEST_ROWS,
    MARGIN,
    Plan,
    one_row,
    speed,
    too_small_or_large,
    uneven,
    wire_seconds,
)
from .overlap_on_tpu import unrolled
from .work import ProductShape, Stages, Work

_CHUNKS = (2, 4, 8)

_MARGIN_OF_BLOCKS = 1.0
"""Blocks that scatter twice may be expected to take as long in stages as they are.

Of 150 drawn gradients 32 were expected at 81 to 98% of the plain time, and took 78 to 99%, in the
median 5% less than expected. Three that were expected at 100 to 103% took 95 to 97%.
"""

_ADDED, _ROUNDED = 16, 6
"""Bytes that are moved to add a number of a product in f32 to a sum, and to round it at the end.

On an H200, without transfers, the gradients of an MLP block of 4096 and 16384 columns on eight
devices took 0.09 to 0.12 ms longer for each chunk but the first, whether of 16384 or 65536 rows,
and 0.10 to 0.14 with a gate (`benchmarks/gpu.py programs`, jax 0.11.2).
"""


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
    if not choices and size == 1 and name == "rows":
        return Plan(None, reason=one_row(work.pattern))
    if not choices:
        return Plan(None, reason=_too_few_or_uneven(name, size))
    parts = min(choices, key=lambda k: _seconds(work, machine, k))
    plain = _compute(work, machine, 1) + wire_seconds(work, machine)
    return Plan(name, parts, (), False, plain, _seconds(work, machine, parts))


def _stages(work: Work, machine: Machine) -> Plan:
    """Rows go through a block: a gather runs beside the first products, a scatter beside the last.

    The time of k chunks is t + u + (k - 1) (max(c', t) + max(d', u)) + c + d and the copies.
    """
    choices = [k for k in _CHUNKS if work.cut % k == 0 and work.cut // k >= FEWEST_ROWS]
    if not choices:
        return Plan(None, reason=_too_few_or_uneven("rows", work.cut))
    *before, last = work.products
    halves = (
        replace(work, products=tuple(before)),
        replace(work, products=(last,), received=work.scattered, pattern="product-scatter"),
    )
    blocks = sum(each.received // (work.count - 1) for each in halves)
    copies = 2 * blocks / (machine.chip.hbm_bandwidth * machine.chip.hbm_share)

    def seconds(parts: int) -> float:
        return (copies if parts > 1 else 0.0) + sum(_half(each, machine, parts) for each in halves)

    parts = min(choices, key=seconds)
    return Plan("stages", parts, (), False, seconds(1), seconds(parts))


def plan_in_stages(
    work: Work, machine: Machine, hidden: float, saved: float, margin: float | None = None
) -> Plan:
    """The plan for a block of rows and its gradient: the time is that of `_stages`, and of sums.

    Args:
      hidden: the seconds of gathers and scatters that other products hide in the plain program.
      saved: the seconds that the forms save that its collectives have by themselves.
      margin: the share of the plain time that stages may be expected to take; None for the usual.
    """
    reason = too_small_or_large(work, machine)
    if reason:
        return Plan(None, reason=reason)
    if any(product.batch > 1 for product in work.products):
        # Attention stores its scores, and computes softmax again for its gradient: with 65536 rows
        # of 2048 on eight devices, 7.8 ms instead of 6.5, and 11.6 instead of 8.8 with 2048 tokens
        # in a sequence instead of 1024.
        return Plan(None, reason="stages of attention would take longer than the plain program")
    rows = work.added_rows // work.count
    choices = [k for k in _CHUNKS if work.cut % k == 0 and rows // k >= FEWEST_ROWS]
    if not choices:
        return Plan(None, reason=_too_few_or_uneven("rows", rows, work.cut))
    halves = [half for each in work.stages for half in _halves(work, each) if half.received]
    summed = sum(p.batch * p.m * p.n for half in halves for p in half.products if _is_sum(p, work))

    def seconds(parts: int) -> float:
        moved = 2 * sum(each.received // (each.count - 1) for each in halves)
        moved += summed * (_ADDED * (parts - 1) + _ROUNDED)
        copies = moved / (machine.chip.hbm_bandwidth * machine.chip.hbm_share)
        return copies + sum(_half(each, machine, parts) for each in halves)

    parts = min(choices, key=seconds)
    expected = seconds(parts)
    plain = sum(_compute(each, machine, 1) + wire_seconds(each, machine) for each in halves)
    plain -= hidden + sum(_beside_each_other(work, each, machine) for each in work.stages)
    plan = Plan("row-stages", parts, (), False, plain, expected)
    is_block = sum(each.scattered > 0 for each in work.stages) > 1
    if margin is None:
        margin = _MARGIN_OF_BLOCKS if is_block else MARGIN
    share = f"stages of rows would take {expected / plain:.0%} of the plain time"
    if expected > margin * plain:
        return replace(plan, name=None, reason=f"{share}, more than {margin:.0%}")
    if not is_block and expected >= plain - saved:
        return replace(plan, name=None, reason=f"{share}, and other forms less")
    return plan


def _too_few_or_uneven(what: str, count: int, cut: int | None = None) -> str:
    """The reason to leave rows or columns, of which there are `cut` where they can be cut."""
    cut = count if cut is None else cut
    if count // _CHUNKS[0] >= FEWEST_ROWS:
        return uneven(what, cut, _CHUNKS[0])
    apart = f" in {cut}" if cut < count else ""
    return f"a piece would have fewer than {FEWEST_ROWS} of {count} {what}{apart}"


def _beside_each_other(work: Work, stages: Stages, machine: Machine) -> float:
    """What the plain program hides of several gathers, each beside products of the others."""
    if stages.gathers < 2:
        return 0.0
    gathers = _halves(work, stages)[0]
    sent = wire_seconds(gathers, machine) * (stages.gathers - 1) / stages.gathers
    return min(sent, _compute(gathers, machine, 1))


def _halves(work: Work, stages: Stages) -> tuple[Work, Work]:
    """The gathers, and the scatter, of some stages, with the products beside them."""
    return (
        replace(work, products=stages.first, received=stages.received),
        replace(work, products=stages.last, received=stages.scattered, pattern="product-scatter"),
    )


def _is_sum(product: ProductShape, block: Work) -> bool:
    """Whether a product sums over the rows of a block."""
    return product.k == block.added_rows


def sent_meanwhile(work: Work, machine: Machine) -> tuple[float, float]:
    """Seconds in which a collective is sent beside other products, and those of its own."""
    return wire_seconds(work, machine), _compute(work, machine, 1)


def _half(half: Work, machine: Machine, parts: int) -> float:
    """Of the collectives of chunks, each beside the products of the one before or after."""
    transfer, compute = wire_seconds(half, machine, parts), _compute(half, machine, parts)
    beside = max(_slowed(half, compute, transfer, machine, parts), transfer)
    return transfer + (parts - 1) * beside + compute


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
    return _half(work, machine, parts) + _copies(work, machine)


def _slowed(work: Work, compute: float, transfer: float, machine: Machine, parts: int) -> float:
    """Of a product that has fewer processors while a collective runs."""
    chip = machine.chip
    shares = [
        share_taken(chip, p.batch * p.m * p.n // (1 if work.stages and _is_sum(p, work) else parts))
        for p in work.products
    ]
    flops = [p.flops for p in work.products]
    if not flops:
        return compute
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
