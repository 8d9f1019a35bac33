"""When gradients of blocks of layers are computed in chunks of rows on TPUs, and in what time."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from . import libtpu
from .libtpu_times import peak, products
from .machine import Machine
from .overlap import MARGIN, MOST_ON_A_RING, Plan, speed, uneven, unknown_speed
from .overlap_on_tpu import PUT_FACTOR, partial_sums, plain_scatter, sent
from .work import Work

_CHUNKS = 4
"""As many as the partial sums that are on the way at a time: each is of the rows of one chunk."""

_MARGIN_OF_BLOCKS = 0.95
_AHEAD = 0.15
"""Blocks that scatter twice may be expected to take more time, and so much of the plain time more
than with other forms.

Of 27 gradients of MLP blocks on v5e, v6e and v5p, seven in f32 and 15 gated, chunks of rows should
have taken 63 to 92% of the time, and took 62 to 82%; the other forms 71 to 95%, and 77 to 92%. 25
needed less memory with chunks than with the other forms, by up to 39%. Four gradients with blocks
that should have taken 10 to 15% of the plain time more took 6 to 19% less in chunks, such as two
layers of Llama 3 8B on v6e, 23.8 ms for 25.6; one with 15 to 25% more took 6% more. The gradient of
a with 4096 columns scatters once: on v5p it took 9.53 ms in chunks and 9.51 with its sum in
columns, and 449 MiB for 385.
"""


@lru_cache(maxsize=256)  # equal layers have equal blocks
def plan_of_rows(
    work: Work,
    scatters: tuple[Work, ...],
    machine: Machine,
    saved: float,
    margin: float | None = None,
) -> Plan:
    """The plan for a block whose gathers and scatters are all in `work`.

    Args:
      work: `received` is of all gathers together, and `products` are all but those that are
        scattered.
      scatters: each with its product.
      saved: the seconds that the forms save that its collectives have by themselves.
      margin: the share of the plain time that chunks may be expected to take; None for the usual.
    """
    if not speed(work, machine):
        return Plan(None, reason=unknown_speed(work, machine))
    if not libtpu.starts_gathers(machine) or libtpu.gathers_alone(work, machine):
        return Plan(None, reason="libtpu computes nothing beside these gathers")
    if work.count > MOST_ON_A_RING:
        reason = f"the group has {work.count} devices, more than {MOST_ON_A_RING}"
        return Plan(None, reason=reason)
    if work.element_bytes > 2 and not work.is_narrowed:
        return Plan(None, reason=f"chunks of rows of {work.element} were not measured")
    rows = work.added_rows
    # Those with batches, such as scores of attention, have no rows of the block.
    alone = [product for product in work.products if product.batch == 1]
    if any(product.m == rows and product.n > product.k for product in alone):
        # Compiled so, 65536 rows of 1024 columns, and 2048 between, took 604 MiB for 512 on v5p.
        return Plan(None, reason="chunks of rows would need more memory than the plain program")
    if not scatters:
        return Plan(None, reason="nothing is scattered of which rows could be cut into chunks")
    if work.cut % _CHUNKS:
        what = "sequences" if work.added else "rows on each device"
        return Plan(None, reason=uneven(what, work.cut, _CHUNKS))
    sums = [partial_sums(each, machine) for each in scatters]
    last = [each.expected for each in sums if each.name is not None]
    if len(last) < len(sums):
        return next(each for each in sums if each.name is None)
    wire, compute = sent(work, machine), products(work, machine)
    plain = compute + wire + sum(plain_scatter(each, machine) for each in scatters)
    chunks = wire / _CHUNKS + max(wire, compute) + _adding(work, machine)
    expected = chunks + sum(each for each in last if each)
    order = sums[0].order
    plan = Plan("row-chunks", _CHUNKS, order, False, plain, expected)
    is_block = len(scatters) > 1
    usual, ahead = (_MARGIN_OF_BLOCKS, _AHEAD) if is_block else (MARGIN, 0.0)
    most = usual if margin is None else margin
    if expected <= most * plain and expected - ahead * plain < plain - saved:
        return plan
    share = f"{100 * expected / plain:.0f}% of the plain time"
    return replace(plan, name=None, reason=f"chunks of rows would take {share}")


def _adding(work: Work, machine: Machine) -> float:
    """What products over the rows wait for memory to add one for each chunk.

    On v5e they wait only for what a chunk does not compute meanwhile: with 1024 rows of 8192, and
    3584 between, on each of four devices, the gradient of e took 5.08 ms in chunks for 2.53.
    """
    is_hidden = machine.chip.name == libtpu.GATHERS_BY_ITSELF
    rows, factor = work.added_rows, 1.0 if is_hidden else PUT_FACTOR
    seconds = 0.0
    for product in work.products:
        if product.k == rows:
            numbers = product.batch * product.m * product.n
            added = factor * 2 * 4 * numbers / machine.chip.hbm_bandwidth
            computed = product.flops / _CHUNKS / peak(work, machine) if is_hidden else 0.0
            seconds += max(0.0, added - computed)
    return (_CHUNKS - 1) * seconds
