"""Leaves out chunks of exchanges that would need more memory than the plain program.

With `jax.checkpoint` the gradient of a layer of experts exchanges tokens again, and their
cotangents. If the options are passed that chunks of the forward pass need, libtpu also starts the
exchanges of the gradient beside its products, and keeps whole arrays of both in memory.

Chunks of experts of a device need as much memory as the plain program in such a gradient, and less
time: two layers of 64 experts on eight devices took 190 ms instead of 226 on v5e, and 2244 MiB
instead of 2191; 76 instead of 81 on v5p, and 2734 MiB instead of 2824. If the gradient keeps what
the forward pass has exchanged, libtpu computes gradients of other weights while the first chunk is
exchanged, and has more arrays in memory: one layer took 71 ms instead of 84 on v5e, and 2507 MiB
instead of 2051.
"""

from __future__ import annotations

from collections.abc import Mapping

from ...cost.libtpu_memory import keeps_exchanged
from ...cost.machine import Machine
from ..form import Form
from .site import Site


def too_large_beside(forms: Mapping[Site, Form | None], machine: Machine | None) -> dict[Site, str]:
    """The sites of exchanges whose chunks are to be left out, and why.

    Args:
      forms: of all sites of a module; None for those that are left as they are.
    """
    if machine is None or not machine.is_tpu:
        return {}
    kept = _of_what_is_kept(forms)
    forms = {**forms, **dict.fromkeys(kept)}
    left = [site for site, form in forms.items() if form is None]
    blocks = [site.op.block for site in left if site.pattern == "exchange-block"]
    if not blocks:
        return kept
    reason = "chunks would need more memory, as a gradient exchanges again what it computes"
    return kept | {
        site: reason
        for site, form in forms.items()
        if form is not None
        and site.pattern == "all-to-all"
        and (site.op.block in blocks or keeps_exchanged(machine))
    }


def _of_what_is_kept(forms: Mapping[Site, Form | None]) -> dict[Site, str]:
    """The blocks of exchanges whose gradients keep what was exchanged in the forward pass.

    Where gradients exchange again, each layer also has a pair of exchanges in the forward pass,
    except perhaps the last one, whose result the gradient does not need.
    """
    blocks = [site for site in forms if site.pattern == "exchange-block"]
    inside = {op for site in blocks for op in site.collectives}
    pairs = [site for site in forms if site.pattern == "all-to-all" and site.op not in inside]
    if pairs and len(pairs) >= len(blocks) - 1:
        return {}
    several = [site for site in blocks if len(site.segments) > 1 and forms[site] is not None]
    reason = "chunks would need more memory, as the gradient keeps what was exchanged before"
    return dict.fromkeys(several, reason)
