"""Why a form cannot be built at a site, although it may be expected to gain.

The passes that rewrite ask the same, and leave what has an obstacle as it is.
"""

from __future__ import annotations

from ...cost.overlap import one_row
from ...ir.body_form import BodyForm
from ...ir.types import shape_of
from ..find.gathers import Gather
from ..find.scatters import ScatteredProducts, SummedProducts
from ..form import Form
from ..rewrite.rings import can_go_round, is_small_enough
from ..rewrite.scatter_chunks import can_sum_in_chunks
from ..rewrite.scatter_ring import can_scatter_by_ring
from .gather_sites import columns_of
from .site import Site

_ROUND = ("ring", "partial-sums", "row-chunks")
_OF_CUT = ("rows", "chunks", "stages", "summed-chunks")
"""Forms in chunks of the `cut` of a site."""


def obstacle(site: Site, form: Form, body: BodyForm) -> str:
    """Why a form cannot be built at a site; empty if it can."""
    if form.name in _ROUND and not can_go_round(site.op, body, site.count):
        if not is_small_enough(site.count, body):
            return f"the group or the mesh has too many devices for {form.name}"
        return f"{form.name} needs all devices, and only some may reach it, as in a branch"
    if form.name == "ring" and site.cut < 2:
        return one_row(site.pattern)
    if not _is_cut(site, form, body):
        return f"it cannot be cut into equal pieces for {form.name}"
    return ""


def _is_cut(site: Site, form: Form, body: BodyForm) -> bool:
    """Whether there are as many equal pieces as a form has."""
    if form.name in _OF_CUT:
        return form.chunks(site.cut) > 0
    found = site.found
    if isinstance(found, Gather) and site.pattern == "gather-contraction":
        dimension = columns_of(found)
        return dimension is not None and form.chunks(shape_of(found.op.operands[0])[dimension]) > 0
    if isinstance(found, ScatteredProducts) and form.name == "partial-sums":
        return can_scatter_by_ring(found, body, form)
    return not isinstance(found, SummedProducts) or can_sum_in_chunks(found, form)
