"""Whether a form in which transfers run beside products is faster, and which one.

    plan = plan_of(work, machine)
    plan.name, plan.parts        "ring", 0; None if the program stays as it is
    plan.plain, plan.expected    seconds

A form is taken if it is expected to take at most 85% of the time of the plain program, on TPUs
mostly 90%: with that margin, taking or leaving was right for 20 of 21 schedules of libtpu 0.0.50.1
of programs in docs/overlap-results.md, and for all of ten sizes on GPUs. No transfer was measured
on a device.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache

from .collective_time import cost_of_groups
from .machine import Machine
from .rings import Order
from .work import Work

MARGIN = 0.85
"""A form must be expected to take at most this share of the time of the plain program."""

_MARGINS = {"all-to-all": 0.92, "exchange-block": 0.92}
"""Those of patterns whose times are expected more exactly: on v5e and v6e within 5%."""

_MARGIN_ON_TPUS = 0.9
"""That of gathers and sums of which `_is_exact`: 167 random programs with forms that should take 85
to 95% of the time took 11% less in the median, and most of the 12 slower ones are others."""

SHORTEST = 20e-6
"""Transfers that take fewer seconds are left alone. Chosen, not measured."""

FEWEST_ROWS = 256
"""No piece of a product may have fewer rows, unless fewer were measured. Chosen, not measured."""

MOST_DEVICES = 16
"""Larger groups are left alone: the rule was not compared with schedules for them."""

MOST_ON_A_RING = 64
"""The same for rings. Schedules of 32 devices on TPUs agree with the rule."""


@dataclass(frozen=True)
class Plan:
    """What to do about one place of a program.

    Attributes:
      name: of the form; None to leave the program as it is.
      parts: see `Form` in passes/overlap.
      order: of a ring.
      is_stacked: whether the two halves of a step of a ring are one product.
      plain, expected: seconds of the plain program and of the form; None if no form was considered.
      reason: why the program is left as it is.
      is_wide: whether sums are sent as f32, and rounded at the end only.
    """

    name: str | None
    parts: int = 0
    order: Order = ()
    is_stacked: bool = False
    plain: float | None = None
    expected: float | None = None
    reason: str = ""
    is_wide: bool = False


Rule = Callable[[Work, Machine], Plan]


@lru_cache(maxsize=1024)  # equal layers have equal sites
def plan_of(work: Work, machine: Machine, rule: Rule, margin: float | None = None) -> Plan:
    """The plan of a rule, or to leave the program as it is for a reason that holds for any form.

    Args:
      margin: the share of the plain time that a form may be expected to take; None for that of the
        pattern.
    """
    if margin is None:
        margin = margin_of(work, machine)
    reason = too_small_or_large(work, machine)
    if reason:
        return Plan(None, reason=reason)
    plan = rule(work, machine)
    if plan.name is None or plan.plain is None or plan.expected is None:
        return plan
    share = plan.expected / plan.plain
    if share <= margin:
        return plan
    reason = f"{plan.name} would take {100 * share:.0f}% of the plain time, more than {margin:.0%}"
    if plan.is_wide:
        reason += ", as sums would be sent as f32: see overlap_rounding"
    return replace(plan, name=None, reason=reason)


def margin_of(work: Work, machine: Machine) -> float:
    """The share of the plain time that a form may be expected to take."""
    if machine.is_tpu and _is_exact(work, machine):
        return _MARGIN_ON_TPUS
    return _MARGINS.get(work.pattern, MARGIN)


def _is_exact(work: Work, machine: Machine) -> bool:
    """Whether times of forms for TPUs are expected exactly enough for a smaller margin.

    Not those of loops, which need more memory. Compiled anyway, rings of 64 devices took up to 33%
    more time on v6e and v5p; on v5e, rings of f32 with 8192 columns or more 3 and 5% more, and
    products over 512 gathered rows 2% more. Without rings that also put together what is gathered,
    and were expected to take 85 to 89% of the time, the gradient of two transformer layers took as
    long on v5e and 2% less on v5p, and one of e 13% less on v5e.
    """
    is_v5e = machine.chip.name == "TPU v5e"
    if work.pattern == "gather-product":
        if work.kept and machine.chip.name != "TPU v6e":
            return False
        is_wide = work.element == "f32" and max(p.n for p in work.products) >= 8192
        return not is_wide if is_v5e else work.count <= 32
    if work.pattern == "gather-contraction":
        return min(p.k for p in work.products) >= 1024
    return work.pattern in ("product-scatter", "product-sum")


def too_small_or_large(work: Work, machine: Machine) -> str:
    """A reason to leave the program that holds for any form; empty if there is none."""
    if not work.products:
        return "no product can run at the same time"
    is_ring = machine.is_tpu and work.pattern in ("gather-product", "product-scatter")
    most = MOST_ON_A_RING if is_ring else MOST_DEVICES
    if work.count > most:
        return f"the group has {work.count} devices, more than {most}"
    if not speed(work, machine):
        return unknown_speed(work, machine)
    seconds = wire_seconds(work, machine) * work.trips
    if seconds < SHORTEST:
        return f"the transfer takes {seconds * 1e6:.1f} us, less than {SHORTEST * 1e6:.0f}"
    return ""


def unknown_speed(work: Work, machine: Machine) -> str:
    """The reason to leave products of a type whose `speed` is unknown."""
    return f"the speed of products of {work.multiplied} is not known for a {machine.chip.name}"


def uneven(what: str, count: int, parts: int) -> str:
    """The reason to leave what cannot be cut into so many equal pieces."""
    return f"the number of {what}, {count}, is not a multiple of {parts}: pad them"


def one_row(pattern: str) -> str:
    """The same if a device has one row of what is gathered or scattered."""
    verb = "scatter" if pattern == "product-scatter" else "gather"
    found = f"each device has one row of the {verb}ed dimension, which cannot be cut into pieces"
    return f"{found}: {verb} along a longer one, with tiled=True"


def speed(work: Work, machine: Machine) -> float:
    """Published operations per second in products of this type; 0 if unknown.

    TPUs multiply f32 of default precision as bf16, and GPUs as tf32. TPUs multiply f32 of a higher
    precision as several products of bf16: what took 3.2 ms on v5e took 8.5 as three, and 17 as six.
    Factors of a type that a chip does not multiply are taken to be converted to that of the sum: on
    TPUs f8 to bf16. What XLA makes of products of 8 bits on GPUs was not measured.
    """
    types = [work.multiplied, work.element]
    if not machine.is_tpu:
        types = [each for each in types if not re.match("u?i8$|f8", each)]
        types = ["tf32" if each == "f32" and not work.is_precise else each for each in types]
    several = work.multiplications if machine.is_tpu and types[0] == "f32" else 1
    return next(filter(None, map(machine.chip.speed, types)), 0.0) / several


_KINDS = {
    "product-scatter": "reduce-scatter",
    "product-sum": "all-reduce",
    "all-to-all": "all-to-all",
    "exchange-block": "all-to-all",
}


def wire_seconds(
    work: Work,
    machine: Machine,
    parts: int = 1,
    kind: str | None = None,
    rings: int | None = None,
) -> float:
    """Of one of so many parts of the communication, in one step of a loop.

    Args:
      kind: the HLO instruction that it becomes; None for the usual one.
      rings: see `cost_of_groups`.
    """
    kind = kind or _KINDS.get(work.pattern, "all-gather")
    times = 2 if work.pattern == "all-to-all" else 1
    sent = work.received // 2 if is_halved(work, machine) else work.received
    payload = sent * work.count // (work.count - 1) // times // parts
    groups, places, network = work.groups, machine.places, machine.network
    return times * cost_of_groups(kind, payload, groups, places, network, rings).seconds


def is_halved(work: Work, machine: Machine) -> bool:
    """Whether the compiler sends f32 as bf16, as that for TPUs does if a product reads no more."""
    return machine.is_tpu and work.is_narrowed


def pipelined(transfer: float, compute: float, steps: int) -> float:
    """Of so many transfers and as many computations, each of which needs one of the transfers."""
    return transfer + (steps - 1) * max(transfer, compute) + compute


def divisors(number: int, most: int) -> list[int]:
    """Those from 2 on."""
    return [k for k in range(2, min(number, most) + 1) if number % k == 0]
