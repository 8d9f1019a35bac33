"""Leaves out chunks of exchanges that would need more memory, because a gradient exchanges again.

With `jax.checkpoint` the gradient of a layer of experts exchanges tokens again, and their
cotangents. If the options are passed that chunks of the forward pass need, libtpu also starts the
exchanges of the gradient beside its products, and keeps whole arrays of both in memory.
"""

from __future__ import annotations

from collections.abc import Mapping

from ...cost.libtpu_memory import keeps_exchanged
from ...cost.machine import Machine
from ..form import Form
from .site import Site


def too_large_beside(forms: Mapping[Site, Form | None], machine: Machine | None) -> dict[Site, str]:
    """The pairs of exchanges whose chunks are to be left out, and why.

    Args:
      forms: of all sites of a module; None for those that are left as they are.
    """
    if machine is None or not machine.is_tpu:
        return {}
    left = [site for site, form in forms.items() if form is None]
    blocks = [site.op.block for site in left if site.pattern == "exchange-block"]
    if not blocks:
        return {}
    reason = "chunks would need more memory, as a gradient exchanges again what it computes"
    return {
        site: reason
        for site, form in forms.items()
        if form is not None
        and site.pattern == "all-to-all"
        and (site.op.block in blocks or keeps_exchanged(machine))
    }
