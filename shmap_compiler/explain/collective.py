"""Finds the collectives among the instructions of an HLO program, and what they move."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from shmap_passes.cost.collective_time import (
    SENT_SHARES,
    Coordinates,
    Cost,
    cost_of_groups,
    cost_of_pairs,
    sent_bytes,
)
from shmap_passes.cost.networks import Network

from shmap_compiler.collectives import RECORDS, Payload
from shmap_compiler.explain.hlo import Computation, Instruction, Module
from shmap_compiler.explain.replica_groups import (
    Groups,
    Pairs,
    group_axes,
    pair_axes,
    read_groups,
    read_pairs,
)

_PAYLOADS = {record.hlo: record.payload for record in RECORDS if record.hlo}
KINDS = tuple(sorted(_PAYLOADS))
"""The HLO instructions that collectives become."""

if _unpriced := set(KINDS) - set(SENT_SHARES):
    raise NotImplementedError(f"shmap_passes.cost.collective_time does not know {_unpriced}")

_STARTS = {f"{kind}-start": kind for kind in KINDS}
_DONES = {f"{kind}-done" for kind in KINDS} | {"async-done"}


@dataclass(frozen=True)
class Collective:
    """A collective instruction.

    Attributes:
      name: of the instruction.
      source: the user's line, "" if XLA kept none.
      payload: bytes on one device of the operand or of the result, whichever is larger.
      groups: the devices that work together; none for a permute.
      pairs: (from, to) of a permute; none for others.
      starts: whether the device goes on while it runs, and waits for it in another instruction.
    """

    name: str
    kind: str
    source: str
    payload: int
    groups: Groups
    pairs: Pairs
    starts: bool

    @property
    def size(self) -> int:
        """Devices in a group; of a permute, those that send."""
        return len(self.pairs) if self.pairs else max(map(len, self.groups), default=1)

    @property
    def sent(self) -> float:
        """Bytes that one device sends."""
        return sent_bytes(self.kind, self.payload, self.size)

    def axes(self, mesh: Mapping[str, int]) -> tuple[str, ...] | None:
        """The mesh axes along which it communicates; None if groups are not along whole axes."""
        return pair_axes(self.pairs, mesh) if self.pairs else group_axes(self.groups, mesh)

    def cost(self, places: Sequence[Coordinates], network: Network) -> Cost:
        if self.kind == "collective-permute":
            return cost_of_pairs(self.payload, self.pairs, places, network)
        return cost_of_groups(self.kind, self.payload, self.groups, places, network)


def is_done(instruction: Instruction) -> bool:
    """Whether the device waits here for something that was started, perhaps a collective."""
    return instruction.opcode in _DONES


def read_collective(
    module: Module, computation: Computation, instruction: Instruction, device_count: int
) -> Collective | None:
    """The collective that an instruction is, starts, or has inside; None if it is none."""
    opcode = instruction.opcode
    if opcode in KINDS or opcode in _STARTS:
        where, inner = computation, instruction
    elif opcode in ("async-start", "fusion"):
        found = next(_within(module, instruction), None)
        if found is None:
            return None
        where, inner = found
    else:
        return None
    kind = _STARTS.get(inner.opcode, inner.opcode)
    permutes = kind == "collective-permute"
    groups = () if permutes else read_groups(inner, device_count)
    return Collective(
        name=instruction.name,
        kind=kind,
        source=_source(module, where, inner) or module.source(instruction),
        payload=_payload(where, inner, kind, max(map(len, groups), default=1)),
        groups=groups,
        pairs=read_pairs(inner) if permutes else (),
        starts=opcode in _STARTS or opcode == "async-start",
    )


def _within(module: Module, instruction: Instruction) -> Iterator[tuple[Computation, Instruction]]:
    for name in instruction.called:
        called = module.computations[name]
        for inner in called:
            if inner.opcode in KINDS:
                yield called, inner
            yield from _within(module, inner)


def _payload(computation: Computation, instruction: Instruction, kind: str, size: int) -> int:
    operands = [computation[name].bytes for name in instruction.operands]
    if _PAYLOADS[kind] is Payload.FIRST_OPERAND:
        return operands[0]
    return sum(operands) * (size if _PAYLOADS[kind] is Payload.GATHERED else 1)


def _source(module: Module, computation: Computation, instruction: Instruction) -> str:
    """The line of a collective; XLA drops it from some it moved, but not from what they combine."""
    own = module.source(instruction)
    if own:
        return own
    near = [*module.within(instruction), *(computation[name] for name in instruction.operands)]
    return next(filter(None, map(module.source, near)), "")
