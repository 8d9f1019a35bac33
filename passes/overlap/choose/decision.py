"""Decides about one site, or sites that belong together: which form, by the rule of the machine."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, cast

from jaxlib.mlir import ir

from ...cost.libtpu_kernels import stores_before_moves
from ...cost.libtpu_memory import adds_last, keeps_beside_sums
from ...cost.machine import Machine
from ...cost.overlap import MARGIN, Plan, plan_of
from ...cost.overlap_of_exchanges import plan_of_exchanges
from ...cost.overlap_of_rows import plan_of_rows
from ...cost.overlap_of_sequences import plan_of_sequences
from ...cost.overlap_of_softmax import plan_of_softmax
from ...cost.overlap_on_gpu import plan_in_stages, plan_on_gpu
from ...cost.overlap_on_tpu import WIDENED, plan_on_tpu
from ...cost.rings import ring_order
from ...cost.work import Work, is_rounded
from ...ir.body_form import BodyForm
from ...ir.memoize import memoized
from ...ir.mesh import Mesh
from ..find.products import has_default_precision, multiplications
from ..form import Form, FormName
from .obstacles import obstacle
from .site import SUMS, Site

Effort = Literal["auto", "try", "force"]
"""Which forms are taken: those that are expected to gain a margin, anything, or all."""

_MARGINS = {"auto": None, "try": 1.0, "force": math.inf}
"""None for those of the patterns."""
_USUAL_FORMS: dict[str, FormName] = {
    "gather-product": "ring",
    "gather-contraction": "columns",
    "product-scatter": "partial-sums",
    "product-sum": "columns",
    "gather-scatter": "stages",
    "all-to-all": "chunks",
    "gathering-loop": "unroll",
    "row-block": "row-chunks",
    "sequence-block": "sequences",
    "exchange-block": "summed-chunks",
    "softmax": "stored-maximum",
}
_USUAL_ON_GPUS: dict[str, FormName] = {
    **_USUAL_FORMS,
    "gather-product": "rows",
    "product-scatter": "columns",
}
# On any device; libtpu needs none elsewhere.
_WITH_BARRIERS = (
    "ring",
    "partial-sums",
    "rows",
    "stages",
    "row-chunks",
    "row-stages",
    "sequences",
    "sequence-sums",
    "summed-chunks",
)
WHOLES = {"row-block": "rows", "sequence-block": "sequences"}
"""Patterns of which one is decided about after what is in it; and what it is cut into chunks of."""
# Patterns whose f32 operands a compiler may send as bf16.
_GATHERS = (
    "gather-product",
    "gather-contraction",
    "gathering-loop",
    "row-block",
    "sequence-block",
)


@dataclass(frozen=True)
class Choice:
    """What is done at a site.

    Attributes:
      form: into which it is rewritten; None if it is left as it is.
      plan: the times that decided it, and the reason.
      beside: the products that run beside it, if it is left for them.
      is_together: whether it is a gather that is left, and its products are computed together.
    """

    site: Site
    form: Form | None
    plan: Plan
    beside: tuple[ir.Operation, ...] = ()
    is_together: bool = False

    @property
    def is_rewritten(self) -> bool:
        """Whether the site is not left as it is."""
        return self.form is not None and self.form.name != "asynchronous"


@dataclass(frozen=True)
class Decision:
    """What is done at sites, for one machine."""

    body: BodyForm
    machine: Machine | None
    effort: Effort
    may_round: bool

    @property
    def mesh(self) -> Mesh:
        return self.body.mesh

    def alone(self, site: Site, margin: float | None = None) -> Choice:
        """The choice for a site; with a `margin`, as if that were the one of its pattern."""
        if margin is None:
            margin = _MARGINS[self.effort]
        return self._choice(site, self._plan(site, margin))

    def work(self, site: Site) -> Work:
        return _work(site, self.mesh, self.may_round)

    def as_a_whole(self, site: Site, chosen: Mapping[Site, Choice]) -> dict[Site, Choice]:
        """The choice for a block of `WHOLES` and, if it has a form, those for what is in it."""
        if self.machine is None:
            return {site: Choice(site, None, Plan(None, reason="its devices are not known"))}
        inside = [each for each in chosen if each.op in site.collectives]
        margin = _MARGINS[self.effort]
        plans = [chosen[each].plan for each in inside if chosen[each].form is not None]
        saved = sum(p.plain - p.expected for p in plans if p.plain and p.expected)
        if site.pattern == "sequence-block":
            plan = plan_of_sequences(self.work(site), self.machine, saved, margin)
        elif self.machine.is_tpu:
            scattered = [each for each in inside if each.pattern == "product-scatter"]
            scatters = tuple(map(self.work, scattered))
            plan = plan_of_rows(self.work(site), scatters, self.machine, saved, margin)
        else:
            hidden = sum(self._hidden(each, chosen[each]) for each in inside)
            plan = plan_in_stages(self.work(site), self.machine, hidden, saved, margin)
        found = {site: self._choice(site, plan)}
        if plan.name is not None:
            reason = f"it is in a block that is computed in chunks of {WHOLES[site.pattern]}"
            found |= {each: Choice(each, None, Plan(None, reason=reason)) for each in inside}
        return found

    def _hidden(self, site: Site, choice: Choice) -> float:
        """The seconds of a collective that products hide, as a choice has found."""
        alone = self._plan(site, _MARGINS[self.effort]).plain
        return alone - choice.plan.plain if alone and choice.plan.plain else 0.0

    def together(self, family: Sequence[Site]) -> Iterator[Choice]:
        """The choices for loops that share stacks: all are unrolled, whole, or none."""
        if len(family) == 1 and not family[0].readers:
            yield self.alone(family[0])
            return
        plans = [self._plan(site, math.inf) for site in family]
        reason = self._against(family, plans)
        for site, plan in zip(family, plans, strict=True):
            refused = plan.name is None or not reason
            yield self._choice(site, plan if refused else replace(plan, name=None, reason=reason))

    def _against(self, family: Sequence[Site], plans: Sequence[Plan]) -> str:
        """Why loops that share stacks are not unrolled; empty if they are."""
        others = [op for site in family for op in site.readers]
        known = [site.op for site in family]
        if any(op not in known for op in others) or any(p.name is None for p in plans):
            return "a loop that shares its stacks is not unrolled"
        if any(plan.parts for plan in plans):
            return "the loops that share its stacks have too many steps to be unrolled whole"
        times = [(p.expected, p.plain) for p in plans if p.expected and p.plain]
        share = sum(e for e, _ in times) / sum(p for _, p in times) if times else 0.0
        margin = _MARGINS[self.effort] or MARGIN
        if share <= margin:
            return ""
        return (
            f"unroll would take {100 * share:.1f}% of the plain time of the loops that share "
            f"stacks, more than {margin:.0%}"
        )

    def _plan(self, site: Site, margin: float | None) -> Plan:
        if self.machine is None:
            return Plan(None, reason="the figures of its devices are not known")
        work = _work(site, self.mesh, self.may_round)
        if site.pattern == "softmax":
            return plan_of_softmax(work, self.machine)
        rule = plan_on_tpu if self.machine.is_tpu else plan_on_gpu
        if site.pattern == "exchange-block":
            rule = plan_of_exchanges
        return plan_of(work, self.machine, rule, margin)

    def _choice(self, site: Site, plan: Plan) -> Choice:
        if plan.name is None and self.effort == "force":
            plan = _forced(site, self.mesh, self.machine, self.may_round) or plan
        form = _form(site, plan, self.machine)
        reason = obstacle(site, form, self.body) if form is not None else ""
        if reason:
            form, plan = None, replace(plan, name=None, reason=reason)
        return Choice(site, form, plan)


def _forced(site: Site, mesh: Mesh, machine: Machine | None, may_round: bool) -> Plan | None:
    """The usual form of a pattern, where the rule gives none."""
    usual = _USUAL_FORMS if machine is None or machine.is_tpu else _USUAL_ON_GPUS
    name, order = usual[site.pattern], ()
    is_wide = name == "partial-sums" and is_rounded(site.element) and not may_round
    if is_wide and site.element not in WIDENED:
        return None
    if machine is not None and name in ("ring", "partial-sums"):
        order = ring_order(_groups(site.axes, mesh), machine.places, machine.network)
    return Plan(name, order=order, is_wide=is_wide)


def _form(site: Site, plan: Plan, machine: Machine | None) -> Form | None:
    if plan.name is None:
        return None
    name = cast("FormName", plan.name)
    is_scatter = site.pattern == "product-scatter"
    is_sum = site.pattern in SUMS and name == "columns"
    is_tpu = machine is not None and machine.is_tpu
    return Form(
        name,
        plan.parts,
        plan.order,
        empty="zeros" if machine is None else "allocate",
        # XLA joins chunks again on GPUs if nothing keeps them apart, and writes into slices late.
        barriers=name in _WITH_BARRIERS
        or site.pattern in SUMS  # which XLA combines on any device
        or (machine is not None and not machine.is_tpu),
        # Chunks that are scattered are small, and concatenated as fast as they are put in place.
        in_place=machine is None or (is_tpu and not (is_sum and is_scatter)),
        ordered=machine is not None
        and (
            (is_sum and is_tpu)
            or (name == "partial-sums" and keeps_beside_sums(machine))
            or (name == "summed-chunks" and adds_last(machine))
            or (name == "sequences" and stores_before_moves(machine))
        ),
        stacked=plan.is_stacked,
        wide=plan.is_wide,
        narrow=name == "ring" and is_tpu and is_narrowed(site),
    )


@memoized  # several rules ask for it
def _work(site: Site, mesh: Mesh, may_round: bool) -> Work:
    return Work(
        pattern=site.pattern,
        products=site.shapes,
        groups=_groups(site.axes, mesh),
        element=site.element,
        element_bytes=site.element_bytes,
        received=site.received,
        trips=site.trips,
        cut=site.cut,
        columns=site.columns,
        scattered=site.scattered,
        is_narrowed=is_narrowed(site),
        is_precise=_is_precise(site),
        multiplications=max(map(multiplications, site.products), default=1),
        may_round=may_round,
        reduced=site.reduced,
        kept=site.kept,
        copied=site.copied,
        source=site.source,
        segments=site.segments,
        stages=site.stages,
        added=site.added,
        exponentials=site.exponentials,
        heads=site.heads,
        queries=site.queries,
        masks=site.masks,
        factors=site.factors,
    )


@memoized
def _groups(axes: tuple[str, ...], mesh: Mesh) -> tuple[tuple[int, ...], ...]:
    return tuple(map(tuple, mesh.groups(axes)))


def is_narrowed(site: Site) -> bool:
    """Whether what is sent is f32, and only products of default precision read it."""
    return site.element == "f32" and site.pattern in _GATHERS and not _is_precise(site)


def _is_precise(site: Site) -> bool:
    """Whether a product asks for another than the default precision."""
    return not all(map(has_default_precision, site.products))
