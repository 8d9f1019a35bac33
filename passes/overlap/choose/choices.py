"""Chooses what to do at each site of a module, for a machine."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import replace

from jaxlib.mlir import ir
from jaxlib.mlir.dialects.builtin import ModuleOp

from ...cost.machine import Machine
from ...cost.overlap import Plan
from ...ir.body_form import read_body_form
from ...ir.dataflow import Dataflows, dataflows
from ..find.independence import Independence
from ..rewrite.released import changes_nothing
from .asynchronous import asynchronous
from .decision import WHOLES, Choice, Decision, Effort
from .gathered_products import kept_too_long
from .joined_rows import joined_rows, separated
from .lives import Lives
from .loop_families import families
from .memory import too_large
from .recomputed import too_large_beside
from .reduced import reduced
from .shared_products import left_for_others, sharing
from .site import SUMS, Site
from .sites import find_sites
from .vmem import REASON, kept_in_vmem, rows_fit


def choices(
    module: ModuleOp,
    machine: Machine | None,
    effort: Effort = "auto",
    may_round: bool = False,
    only_sums: bool = False,
) -> tuple[Choice, ...]:
    """A choice for each site of a module in body form, but softmax that is left, in program order.

    Args:
      machine: what the program is compiled for; None if its figures are not known: then nothing is
        taken, unless forced.
      may_round: whether sums may be rounded on their way, which changes results.
      only_sums: whether to consider only products whose results are summed, and softmax.
    """
    # A ring is faster on TPUs, and what is forced elsewhere is what TPUs have.
    form = read_body_form(module)
    is_tpu = machine is not None and machine.is_tpu
    is_forced = effort == "force"
    if form.is_partly_manual:
        plan = Plan(None, reason=_AUTOMATIC)
        return tuple(Choice(site, None, plan) for site in find_sites(module, form, blocks=False))
    sites = find_sites(
        module,
        form,
        blocks=machine is not None and not is_tpu,
        rows=machine is not None and may_round and not is_forced,
        sequences=is_tpu and not is_forced,
        exchanged=(machine is None or is_tpu) and not is_forced,
        exponentials=is_tpu or is_forced,
    )
    if only_sums:
        sites = [site for site in sites if site.pattern in (*SUMS, "softmax")]
    if not sites:
        return ()
    if machine is not None and len(machine.places) != form.mesh.size:
        machine = None
    decide = Decision(form, machine, effort, may_round)
    of_collectives = [site for site in sites if site.pattern != "softmax"]
    found = dict[Site, Choice]()
    if of_collectives:
        known = _of_collectives(module, of_collectives, decide, is_forced=is_forced)
        found |= dict(zip(of_collectives, known, strict=True))
    # Nothing waits for communication at a softmax, so those that are left are not reported.
    free = (s for s in sites if s.pattern == "softmax" and not s.has_instructions)
    found |= {choice.site: choice for choice in map(decide.alone, free) if choice.form is not None}
    return tuple(found[site] for site in sites if site in found)


_AUTOMATIC = "some axes of the mesh are automatic"
_INSTRUCTED = "it has instructions to XLA: frontend attributes, or moves to the host"


def _of_collectives(
    module: ModuleOp, sites: Sequence[Site], decide: Decision, *, is_forced: bool
) -> tuple[Choice, ...]:
    """The choices for sites that communicate, of which there is one."""
    machine = decide.machine
    is_tpu = machine is not None and machine.is_tpu
    chosen = {
        site: Choice(site, None, Plan(None, reason=_INSTRUCTED))
        for site in sites
        if site.has_instructions
    }
    loops = [s for s in sites if s.pattern == "gathering-loop" and s not in chosen]
    chosen |= {
        choice.site: choice for family in families(loops) for choice in decide.together(family)
    }
    # What is in a site that is rewritten as a whole stays as it is.
    rewritten = [site for site, choice in chosen.items() if choice.form is not None]
    for site in sorted(sites, key=_is_part):
        reason = _part_of(rewritten, site) if rewritten else ""
        if reason:
            rewritten = [each for each in rewritten if each != site]
            chosen[site] = Choice(site, None, Plan(None, reason=reason))
        elif site not in chosen and site.pattern not in WHOLES:
            chosen[site] = decide.alone(site)
            if chosen[site].form is not None and site.pattern in _WITH_PARTS:
                rewritten.append(site)
    flows = dataflows(module)
    lives = Lives(flows)
    if not is_forced:
        if is_tpu:
            chosen |= _rings_beside_sums(chosen, decide)
        found = {site: choice.form for site, choice in chosen.items()}
        forms = {site: form for site, form in found.items() if form is not None}
        rows = joined_rows(forms, flows, machine)
        refused = too_large(forms, rows, flows, lives, machine) | too_large_beside(found, machine)
        refused |= separated(forms, rows) | reduced(forms, flows, machine)
        for site, reason in refused.items():
            plan = replace(chosen[site].plan, name=None, reason=reason)
            chosen[site] = Choice(site, None, plan)
        chosen |= asynchronous(chosen, decide, flows, lives)
        chosen |= kept_in_vmem(chosen, decide, flows, lives)
    chosen |= left_for_others(chosen)
    for site in sites:
        if site in chosen:
            continue
        if rows_fit(site, machine, lives):
            chosen |= decide.as_a_whole(site, chosen)
        else:
            chosen[site] = Choice(site, None, Plan(None, reason=REASON))
    found = [chosen[site] for site in sites]
    if not any(choice.form and choice.site.pattern == "gathering-loop" for choice in found):
        found = list(_not_ordered_in_vain(found, flows))
    return _together(_shared(found), machine)


def _rings_beside_sums(chosen: Mapping[Site, Choice], decide: Decision) -> dict[Site, Choice]:
    """Rings for gathers in blocks where a sum has a form, even if they save little by themselves.

    What is computed between a gather and a sum then goes from piece to piece. With 32768 rows of
    4096, and 8192 between, in bf16 on eight devices of v5p, the products of a gather should take
    92% of their time in a ring; e took 2.56 ms with it, and 3.10 without, and 130 MiB for 321.
    """
    sums = [
        site
        for site, choice in chosen.items()
        if choice.form is not None and site.pattern == "product-scatter"
    ]
    summing = {site.op.block for site in sums}
    rings = {
        site: decide.alone(site, 1.0)
        for site, choice in chosen.items()
        if site.pattern == "gather-product" and site.op.block in summing and not site.kept
        # What is in a site that is rewritten as a whole has no plan.
        if choice.form is None and choice.plan.expected is not None
        if not sharing(site, sums)
    }
    return {site: choice for site, choice in rings.items() if choice.form is not None}


def _shared(found: Sequence[Choice]) -> tuple[Choice, ...]:
    """Choices with the forms of sites that are alike marked as such."""
    if len(found) < 2:
        return tuple(found)
    alike = Counter(_kind(choice) for choice in found if choice.form is not None)
    return tuple(
        replace(choice, form=replace(choice.form, shared=True))
        if choice.form is not None and alike[_kind(choice)] > 1
        else choice
        for choice in found
    )


def _not_ordered_in_vain(found: Sequence[Choice], flows: Dataflows) -> Iterator[Choice]:
    """Choices without the order of products around sums that have nothing to be ordered.

    Args:
      found: none for a loop, of which the steps become operations of its block.
    """
    known: dict[ir.Block, Independence] = {}
    for choice in found:
        form, site = choice.form, choice.site
        if form is not None and form.ordered and site.pattern in SUMS:
            block = site.op.block
            independence = known.setdefault(block, Independence(flows.of(block)))
            stores = form.name == "columns"
            if changes_nothing(site.op, site.products, stores, independence):
                choice = replace(choice, form=replace(form, ordered=False))
        yield choice


def _together(found: Sequence[Choice], machine: Machine | None) -> tuple[Choice, ...]:
    """Choices with the gathers marked whose products are computed together.

    Only if something is rewritten, as else the program stays as it is.
    """
    if not any(choice.is_rewritten for choice in found):
        return tuple(found)
    kept = {*kept_too_long(found, machine)}
    return tuple(
        replace(choice, is_together=True) if choice.site.op in kept else choice for choice in found
    )


def _kind(choice: Choice) -> Hashable:
    """Equal for sites that probably are."""
    site = choice.site
    return (choice.form, site.pattern, site.shapes, site.axes, site.element, site.location.attr)


_WITH_PARTS = ("gathering-loop", "gather-scatter", "exchange-block")
"""Patterns of sites that may hold others."""


def _is_part(site: Site) -> int:
    """Orders sites: loops, blocks, and what can be in them."""
    return [*_WITH_PARTS, site.pattern].index(site.pattern)


def _part_of(rewritten: Sequence[Site], site: Site) -> str:
    """Why a site stays as it is, if it is in one of some that are rewritten as a whole."""
    loops = [other for other in rewritten if other.pattern == "gathering-loop"]
    around = {*_around(site.op)} if site.pattern == "gathering-loop" else set[ir.Operation]()
    if any(site.op in other.collectives or other.op in around for other in loops):
        return "it overlaps other steps of a loop that is unrolled"
    products = set(site.products)
    blocks = (other for other in rewritten if other.pattern == "gather-scatter")
    if any(products & {*other.products} for other in blocks):
        return "it is in a block whose rows are computed in stages"
    exchanged = (other for other in rewritten if other.pattern == "exchange-block")
    if any(site.op in other.collectives for other in exchanged):
        return "it is in a block that is exchanged in chunks"
    return ""


def _around(op: ir.Operation) -> Iterator[ir.Operation]:
    parent = op.parent
    while parent is not None:
        yield parent.operation
        parent = parent.operation.parent
