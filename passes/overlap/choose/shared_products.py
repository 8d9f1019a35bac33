"""Leaves a gather or a sum out if another would have a form for the same product.

    %g = all_gather(%x)
    %p = dot_general(%g, %w)              for the gather, in pieces that are joined
    %y = reduce_scatter(%p)               and then not what the pass for sums looks for

Gathers are rewritten first, and what has become pieces is not a product of a sum any more, nor of
another gather.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from jaxlib.mlir import ir

from .decision import Choice
from .site import GATHERS, SUMS, Site


def left_for_others(chosen: Mapping[Site, Choice]) -> dict[Site, Choice]:
    """The choices for sites whose products have another form, which saves more."""
    formed = [choice for choice in chosen.values() if choice.is_rewritten]
    gathers = [choice for choice in formed if choice.site.pattern in GATHERS]
    sums = [choice for choice in formed if choice.site.pattern in SUMS]
    left: dict[Site, Choice] = {}
    kept: dict[Site, Choice] = {}
    multiplied = set[ir.Operation]()
    for each in sorted(gathers, key=_saved, reverse=True):
        if multiplied.isdisjoint(each.site.products):
            kept[each.site] = each
            multiplied.update(each.site.products)
        else:
            left[each.site] = _without(each, "another gather")
    for each in sorted(sums, key=_saved, reverse=True):
        others = [kept[site] for site in sharing(each.site, kept) if site not in left]
        if others and _saved(each) > sum(map(_saved, others)):
            left |= {other.site: _without(other, "a sum") for other in others}
        elif others:
            left[each.site] = _without(each, "a gather")
    return left


def sharing(site: Site, others: Collection[Site]) -> list[Site]:
    """Those of some other sites that have a product of a site."""
    products = set(site.products)
    return [other for other in others if not products.isdisjoint(other.products)]


def _saved(choice: Choice) -> float:
    """The seconds that a form saves; zero if it is forced."""
    plan = choice.plan
    return plan.plain - plan.expected if plan.plain and plan.expected else 0.0


def _without(choice: Choice, other: str) -> Choice:
    reason = f"a product of it is computed in pieces for {other}"
    return Choice(choice.site, None, replace(choice.plan, name=None, reason=reason))
