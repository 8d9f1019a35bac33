"""Which loops are unrolled together: those that fill stacks and those that read them.

The loop of a gradient reads what the loop of the function has put in stacks, step by step. If both
are unrolled, no stack remains. If one of them is, libtpu fills stacks by copies of whole ones,
which costs more than an unrolled loop gains.
"""

from __future__ import annotations

from collections.abc import Sequence

from .site import Site


def families(loops: Sequence[Site]) -> list[list[Site]]:
    """Sites of the pattern "gathering-loop"; those that share stacks are together."""
    known = {site.op: site for site in loops}
    found: list[set[Site]] = []
    for site in loops:
        family = {site, *(known[op] for op in site.readers if op in known)}
        common = [each for each in found if each & family]
        found = [each for each in found if each not in common]
        found.append(family.union(*common))
    return [sorted(family, key=loops.index) for family in found]
