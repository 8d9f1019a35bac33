"""Counts the collectives of an optimized HLO module."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Collectives:
    """How often a kind of collective occurs in a program, and the bytes of one device's results."""

    kind: str
    count: int
    bytes: int


def collectives(hlo: str) -> list[Collectives]:
    """The kinds of collectives in the text `hlo`, by name. Loop bodies count once."""
    from shmap_compiler.explain.collective import KINDS
    from shmap_compiler.explain.hlo import parse

    found: dict[str, list[int]] = {}
    for computation in parse(hlo).computations.values():
        for instruction in computation:
            # Of an asynchronous one, its "-done" has the type of its result.
            kind = instruction.opcode.removesuffix("-done")
            if kind in KINDS:
                found.setdefault(kind, []).append(instruction.bytes)
    return [Collectives(kind, len(sizes), sum(sizes)) for kind, sizes in sorted(found.items())]
