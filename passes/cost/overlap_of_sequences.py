"""When attention is computed some sequences at a time on TPUs, and in what time."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from . import libtpu
from .libtpu_times import EXPONENTIALS, products, stored
from .machine import Machine
from .overlap import MARGIN, SHORTEST, Plan, too_small_or_large, uneven
from .overlap_on_tpu import plain_scatter, sent
from .rings import ring_order
from .work import Work

_CHUNKS = (4, 2)

_SHORTEST_IN_HOPS = 35e-6
"""Chunks that are gathered and summed in fewer seconds are left alone on v5e.

Of 18 drawn blocks, two whose chunks take 18 and 31 us took 60 and 15% longer in chunks, and those
of 39 us or more 12 to 68% less.
"""

_WAITING = 0.15
"""How much of the transfers of partial sums nothing is computed beside on v5e, in the same ones."""


@lru_cache(maxsize=256)  # equal layers have equal blocks
def plan_of_sequences(
    work: Work, machine: Machine, saved: float, margin: float | None = None
) -> Plan:
    """The plan for a block whose gather and scatter are in `work`; the last product is scattered.

    Args:
      saved: the seconds that the forms save that its collectives have by themselves.
      margin: the share of the plain time that chunks may be expected to take; None for the usual.
    """
    reason = too_small_or_large(work, machine)
    if reason:
        return Plan(None, reason=reason)
    if not libtpu.starts_gathers(machine) or libtpu.gathers_alone(work, machine):
        return Plan(None, reason="libtpu computes nothing beside these gathers")
    if work.element_bytes > 2 or machine.chip.name not in EXPONENTIALS:
        reason = f"sequences of {work.element} on a {machine.chip.name} were not measured"
        return Plan(None, reason=reason)
    adds_meanwhile = libtpu.adds_meanwhile(machine)
    if not adds_meanwhile and not work.may_round:
        return Plan(None, reason=f"sums of {work.element} would be rounded at each hop")
    parts = next((k for k in _CHUNKS if work.cut % k == 0), 0)
    if not parts:
        return Plan(None, reason=uneven("sequences", work.cut, _CHUNKS[-1]))
    *_, last = work.products
    scatter = replace(
        work, pattern="product-scatter", received=work.scattered, products=(last,), scattered=0
    )
    gathered, added = sent(work, machine), sent(scatter, machine)
    before = replace(work, products=work.products[:-1])
    scores = work.exponentials * EXPONENTIALS[machine.chip.name]
    attention = products(before, machine) + scores
    plain = attention + gathered + plain_scatter(scatter, machine)
    compute = attention + max(products(scatter, machine), stored(scatter, machine))
    waiting = (gathered + added) / parts
    shortest = SHORTEST if adds_meanwhile else _SHORTEST_IN_HOPS
    if waiting < shortest:
        reason = f"a chunk is sent in {waiting * 1e6:.1f} us, less than {shortest * 1e6:.0f}"
        return Plan(None, reason=reason)
    expected = waiting + max(compute, gathered + added - waiting)
    if adds_meanwhile:
        plan = Plan("sequences", parts, (), False, plain, expected)
    else:
        order = ring_order(work.groups, machine.places, machine.network)
        plan = Plan("sequence-sums", parts, order, False, plain, expected + _WAITING * added)
    assert plan.expected is not None, "it has just been computed"
    most = MARGIN if margin is None else margin
    if plan.expected <= most * plain and plan.expected < plain - saved:
        return plan
    share = f"{100 * plan.expected / plain:.0f}% of the plain time"
    return replace(plan, name=None, reason=f"chunks of sequences would take {share}")
