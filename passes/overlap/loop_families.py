"""Which loops are unrolled together: those that fill stacks and those that read them.

The loop of a gradient reads what the loop of the function has put in stacks, step by step. If both
are unrolled, no stack remains. If one of them is, libtpu fills stacks by copies of whole ones,
which costs more than an unrolled loop gains.
"""

from __future__ import annotations

from collections.abc import Sequence

from jaxlib.mlir import ir

from .loops import WHILE, counted_loop, stacks
from .sites import Site


def families(loops: Sequence[Site]) -> list[list[Site]]:
    """Sites of the pattern "gathering-loop"; those that share stacks are together."""
    known = {site.op: site for site in loops}
    found: list[set[Site]] = []
    for site in loops:
        family = {site, *(known[op] for op in readers(site.op) if op in known)}
        common = [each for each in found if each & family]
        found = [each for each in found if each not in common]
        found.append(family.union(*common))
    return [sorted(family, key=loops.index) for family in found]


def readers(op: ir.Operation) -> list[ir.Operation]:
    """The loops that read stacks which a loop fills."""
    loop = counted_loop(op)
    filled = stacks(loop) if loop is not None else {}
    users = [use.owner.operation for number in filled for use in op.results[number].uses]
    return list(dict.fromkeys(user for user in users if user.name == WHILE))


def stacked_bytes(op: ir.Operation) -> int:
    """Bytes that a step of a loop puts in stacks for other loops."""
    loop = counted_loop(op)
    filled = stacks(loop) if loop is not None else {}
    return sum(
        bytes_
        for number, bytes_ in filled.items()
        if any(use.owner.operation.name == WHILE for use in op.results[number].uses)
    )
