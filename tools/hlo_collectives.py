"""Counts the collectives in the text of an optimized HLO module."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

_KINDS = (
    "all-reduce|all-gather|reduce-scatter|all-to-all|ragged-all-to-all|collective-permute"
    "|collective-broadcast"
)
# An asynchronous collective is two instructions; its "-done" has the type of its result.
_TYPE = r"\((?:[^()]|\([^()]*\))*\)|\S+"
_INSTRUCTION = re.compile(rf" = (?P<type>{_TYPE}) (?P<kind>{_KINDS})(?:-done)?\(")
_ARRAY = re.compile(r"\b(?P<element>[a-z]+(?P<bits>\d*)\w*)\[(?P<sizes>[\d,]*)\]")


@dataclass(frozen=True)
class Collectives:
    """How often a kind of collective stands in a program, and the bytes of one device's results."""

    kind: str
    count: int
    bytes: int


def collectives(hlo: str) -> list[Collectives]:
    """The kinds of collectives in the text `hlo`, by name. Loop bodies count once."""
    found: dict[str, list[int]] = {}
    for match in _INSTRUCTION.finditer(hlo):
        found.setdefault(match["kind"], []).append(_bytes(match["type"]))
    return [Collectives(kind, len(sizes), sum(sizes)) for kind, sizes in sorted(found.items())]


def _bytes(type_: str) -> int:
    """Bytes of an array type or of a tuple of them; elements of less than a byte are packed."""
    total = 0
    for array in _ARRAY.finditer(type_):
        elements = math.prod(int(size) for size in array["sizes"].split(",") if size)
        total += math.ceil(elements * int(array["bits"] or 8) / 8)
    return total
