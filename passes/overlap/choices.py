"""Chooses what to do at each site of a module, for a machine."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, cast

from jaxlib.mlir import ir
from jaxlib.mlir.dialects.builtin import ModuleOp

from ..cost.machine import Machine
from ..cost.overlap import MARGIN, Plan, Work, plan_of
from ..cost.overlap_on_gpu import plan_on_gpu
from ..cost.overlap_on_tpu import plan_on_tpu
from ..cost.rings import ring_order
from ..ir.body_form import read_body_form
from ..ir.mesh import Mesh
from .form import Form, FormName
from .sites import Site, find_sites

Effort = Literal["auto", "try", "force"]
"""Which forms are taken: those that are expected to gain a margin, anything, or all."""

_MARGINS = {"auto": MARGIN, "try": 1.0, "force": math.inf}
_USUAL_FORMS: dict[str, FormName] = {
    "gather-product": "ring",
    "gather-contraction": "columns",
    "product-scatter": "partial-sums",
    "gather-scatter": "stages",
    "all-to-all": "chunks",
    "gathering-loop": "unroll",
}
_USUAL_ON_GPUS: dict[str, FormName] = {
    **_USUAL_FORMS,
    "gather-product": "rows",
    "product-scatter": "columns",
}
# On any device; libtpu needs none elsewhere.
_WITH_BARRIERS = ("ring", "partial-sums", "rows", "stages")
# Patterns whose f32 operands a compiler may send as bf16.
_GATHERS = ("gather-product", "gather-contraction", "gathering-loop")


@dataclass(frozen=True)
class Choice:
    """What is done at a site.

    Attributes:
      form: into which it is rewritten; None if it is left as it is.
      plan: the times that decided it, and the reason.
    """

    site: Site
    form: Form | None
    plan: Plan


def choices(
    module: ModuleOp, machine: Machine | None, effort: Effort = "auto", may_round: bool = False
) -> tuple[Choice, ...]:
    """A choice for each site of a module in body form, in program order.

    Args:
      machine: what the program is compiled for; None if its figures are not known: then nothing is
        taken, unless forced.
      may_round: whether sums may be rounded on their way, which changes results.
    """
    sites = find_sites(module)
    if machine is None or machine.is_tpu:
        # A ring is faster on TPUs, and what is forced elsewhere is what TPUs have.
        sites = tuple(site for site in sites if site.pattern != "gather-scatter")
    if not sites:
        return ()
    mesh = read_body_form(module).mesh
    if machine is not None and len(machine.places) != mesh.size:
        machine = None
    chosen: dict[Site, Choice] = {}
    # What is in a site that is rewritten as a whole stays as it is.
    for site in sorted(sites, key=_is_part):
        reason = _part_of([s for s, choice in chosen.items() if choice.form is not None], site)
        if reason:
            chosen[site] = Choice(site, None, Plan(None, reason=reason))
        else:
            chosen[site] = _choose(site, mesh, machine, effort, may_round)
    return tuple(chosen[site] for site in sites)


def _is_part(site: Site) -> int:
    """Orders sites: loops, blocks, and what can be in them."""
    return ["gathering-loop", "gather-scatter", site.pattern].index(site.pattern)


def _part_of(rewritten: Sequence[Site], site: Site) -> str:
    """Why a site stays as it is, if it is in one that is rewritten."""
    around = {*_around(site.op)}
    if any(other.op in around for other in rewritten if other.pattern == "gathering-loop"):
        return "it overlaps other steps of a loop that is unrolled"
    products = set(site.products)
    blocks = (other for other in rewritten if other.pattern == "gather-scatter")
    if any(products & {*other.products} for other in blocks):
        return "it is in a block whose rows are computed in stages"
    return ""


def _choose(
    site: Site, mesh: Mesh, machine: Machine | None, effort: Effort, may_round: bool
) -> Choice:
    if machine is None:
        plan = Plan(None, reason="the figures of its devices are not known")
    else:
        work = _work(site, mesh, may_round)
        rule = plan_on_tpu if machine.is_tpu else plan_on_gpu
        plan = plan_of(work, machine, rule, _MARGINS[effort])
    if plan.name is None and effort == "force":
        plan = _forced(site, mesh, machine, may_round) or plan
    return Choice(site, _form(site, plan, machine), plan)


def _forced(site: Site, mesh: Mesh, machine: Machine | None, may_round: bool) -> Plan | None:
    """The usual form of a pattern, where the rule gives none."""
    usual = _USUAL_FORMS if machine is None or machine.is_tpu else _USUAL_ON_GPUS
    name, order = usual[site.pattern], ()
    if name == "partial-sums" and site.element != "f32" and not may_round:
        return None
    if machine is not None and name in ("ring", "partial-sums"):
        order = ring_order(_groups(site, mesh), machine.places, machine.network)
    return Plan(name, order=order)


def _form(site: Site, plan: Plan, machine: Machine | None) -> Form | None:
    if plan.name is None:
        return None
    name = cast("FormName", plan.name)
    return Form(
        name,
        plan.parts,
        plan.order,
        empty="zeros" if machine is None else "allocate",
        # XLA joins chunks again on GPUs if nothing keeps them apart, and writes into slices late.
        barriers=name in _WITH_BARRIERS or (machine is not None and not machine.is_tpu),
        in_place=machine is None or machine.is_tpu,
        stacked=plan.is_stacked,
        narrow=name == "ring" and machine is not None and machine.is_tpu and _is_narrowed(site),
    )


def _work(site: Site, mesh: Mesh, may_round: bool) -> Work:
    return Work(
        pattern=site.pattern,
        products=site.shapes,
        groups=_groups(site, mesh),
        element=site.element,
        element_bytes=site.element_bytes,
        received=site.received,
        trips=site.trips,
        cut=site.cut,
        columns=site.columns,
        scattered=site.scattered,
        is_narrowed=_is_narrowed(site),
        may_round=may_round,
    )


def _groups(site: Site, mesh: Mesh) -> tuple[tuple[int, ...], ...]:
    return tuple(map(tuple, mesh.groups(site.axes)))


def _is_narrowed(site: Site) -> bool:
    """Whether what is sent is f32, and only products of default precision read it."""
    if site.element != "f32" or site.pattern not in _GATHERS:
        return False
    precisions = [op.attributes.get("precision_config") for op in site.products]
    return all(p is None or set(_words(str(p))) <= {"DEFAULT"} for p in precisions)


def _words(precision_config: str) -> Sequence[str]:
    """`[#stablehlo<precision DEFAULT>, ...]` -> DEFAULT, ..."""
    return [word.partition(">")[0] for word in precision_config.split("precision ")[1:]]


def _around(op: ir.Operation) -> Iterator[ir.Operation]:
    parent = op.parent
    while parent is not None:
        yield parent.operation
        parent = parent.operation.parent
