"""Finds the collectives among the instructions of an HLO program, and what they move."""

from __future__ import annotations

import re
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

from shmap_compiler.base.device_groups import Groups, Pairs, group_axes, pair_axes
from shmap_compiler.collectives import RECORDS, Payload
from shmap_compiler.explain import hlo
from shmap_compiler.explain.hlo import Computation, Instruction, Module
from shmap_compiler.explain.replica_groups import read_groups, read_pairs

_PAYLOADS = {record.hlo: record.payload for record in RECORDS if record.hlo}
KINDS = tuple(sorted(_PAYLOADS))
"""The HLO instructions that collectives become."""

_WRITTEN = (
    {record.primitive.name for record in RECORDS}
    | {form.name for record in RECORDS for form in record.forms}
    | {kind.replace("-", "_") for kind in KINDS}
)
"""How JAX names collectives that a program has, and how StableHLO does."""

if _unpriced := set(KINDS) - set(SENT_SHARES):
    raise NotImplementedError(f"shmap_passes.cost.collective_time does not know {_unpriced}")

_STARTS = {f"{kind}-start": kind for kind in KINDS}
_DONES = {f"{kind}-done" for kind in KINDS} | {"async-done", "call-done"}
_WRAPPERS = ("async-start", "call-update", "fusion")
_WAITING = "AsyncCollectiveDone"
"""The custom call at the end of a fusion of libtpu's that waits for a collective."""


@dataclass(frozen=True)
class Collective:
    """A collective instruction.

    Attributes:
      name: of the instruction.
      source: the user's line, "" if XLA kept none.
      scope: the operation that it comes from, with the named scopes around it.
      payload: bytes on one device of the operand or of the result, whichever is larger.
      groups: the devices that work together; none for a permute.
      pairs: (from, to) of a permute; none for others.
      starts: whether the device goes on while it runs, and waits for it in another instruction.
      channel: its number in the program, which the parts of a collective in several fusions share;
        "" if it has none.
      rings: over how many rings, each in one direction, the compiler sends it; None if it does not
        say.
    """

    name: str
    kind: str
    source: str
    scope: str
    payload: int
    groups: Groups
    pairs: Pairs
    starts: bool
    channel: str = ""
    rings: int | None = None

    @property
    def written(self) -> bool:
        """Whether it comes from a collective in the user's program.

        Others were added by the partitioner, which names them after the operation that needs them.
        """
        return self.scope.rpartition("/")[2].partition("[")[0] in _WRITTEN

    @property
    def size(self) -> int:
        """Devices in a group; of a permute, those that send."""
        if self.kind == "collective-permute":
            return len(self.pairs)
        return max(map(len, self.groups), default=1)

    @property
    def sent(self) -> float:
        """Bytes that one device sends."""
        if self.kind == "collective-permute" and all(a == b for a, b in self.pairs):
            return 0.0
        return sent_bytes(self.kind, self.payload, self.size)

    def axes(self, mesh: Mapping[str, int]) -> tuple[str, ...] | None:
        """The mesh axes along which it communicates; None if groups are not along whole axes."""
        if self.kind == "collective-permute":
            return pair_axes(self.pairs, mesh) if self.pairs else ()
        return group_axes(self.groups, mesh)

    def cost(self, places: Sequence[Coordinates], network: Network) -> Cost:
        if self.kind == "collective-permute":
            return cost_of_pairs(self.payload, self.pairs, places, network)
        return cost_of_groups(self.kind, self.payload, self.groups, places, network, self.rings)


def is_done(module: Module, instruction: Instruction) -> bool:
    """Whether the device waits here for something that was started, perhaps a collective."""
    return instruction.opcode in _DONES or _ends_with(module, instruction) == _WAITING


def start_of(
    module: Module,
    computation: Computation,
    done: Instruction,
    started: Mapping[str, Collective],
) -> str | None:
    """The name of the collective, of those `started`, that an instruction waits for."""
    if done.opcode == "fusion":
        found = next(_within(module, done), None)
        channel = found[1].channel if found else ""
        return next((name for name, c in started.items() if channel and c.channel == channel), None)
    name = done.operands[0] if done.operands else ""
    while name in computation.instructions and computation[name].opcode == "async-update":
        name = computation[name].operands[0]
    return name if name in started else None


def read_collective(
    module: Module, computation: Computation, instruction: Instruction, device_count: int
) -> Collective | None:
    """The collective that an instruction is, starts, or has inside; None if it is none.

    libtpu writes some collectives in several pieces: a fusion that starts one, products that run
    beside it and carry it on, and a fusion that waits for it. The first one counts. Collectives on
    the SparseCore are a `call-start`, which launches a program there, a `call-update`, which begins
    it, and a `call-done`; libtpu of JAX 0.10 begins it with a `call-start` that has operands.
    """
    opcode = instruction.opcode
    if opcode in KINDS or opcode in _STARTS:
        where, inner = computation, instruction
    elif opcode in _WRAPPERS or _begins_call(instruction):
        holder = computation[instruction.operands[0]] if opcode == "call-update" else instruction
        found = next(_within(module, holder), None)
        if found is None:
            return None
        where, inner = found
    else:
        return None
    starting = _ends_with(module, instruction) == hlo.STARTING
    if opcode == "fusion" and not starting and inner.channel in module.started_channels:
        return None
    kind = _STARTS.get(inner.opcode, inner.opcode)
    if kind == "all-reduce" and inner is not instruction and _is_scattered(where, inner):
        kind = "reduce-scatter"
    permutes = kind == "collective-permute"
    groups = () if permutes else read_groups(inner, device_count)
    apart = opcode in (*_STARTS, "async-start", "call-update", "call-start") or starting
    return Collective(
        name=instruction.name,
        kind=kind,
        source=_source(module, where, inner) or module.source(instruction),
        scope=_scope(module, inner) or instruction.scope,
        payload=_payload(where, inner, kind, max(map(len, groups), default=1)),
        groups=groups,
        pairs=read_pairs(inner) if permutes else (),
        starts=apart and '"is_sync":true' not in instruction.attributes,
        channel=inner.channel,
        rings=_rings(instruction.attributes + inner.attributes),
    )


def _begins_call(instruction: Instruction) -> bool:
    """Whether it is a `call-start` that no `call-update` follows."""
    return instruction.opcode == "call-start" and bool(instruction.operands)


def _ends_with(module: Module, instruction: Instruction) -> str | None:
    """The target of the custom call with which a fusion ends."""
    if instruction.opcode != "fusion":
        return None
    return module.computations[instruction.called[0]].result.call_target


def _is_scattered(computation: Computation, sum_: Instruction) -> bool:
    """Whether what is kept of a sum in a fusion is a slice: how libtpu writes a reduce-scatter."""
    users = [i for i in computation if sum_.name in i.operands]
    slices = [i for i in users if i.opcode == "dynamic-slice" and i.bytes < sum_.bytes]
    return bool(users) and len(slices) == len(users) and sum_.name != computation.root


def _rings(attributes: str) -> int | None:
    """Over how many rings libtpu sends a collective, if it tells the algorithm.

    Gathers "1D" and "StrategyRing" go both ways round one ring. Each color of a unidirectional
    strategy, and each of a SparseCore's, is a ring in one direction.
    """
    if colors := attributes.count('"phase_rings"'):
        return colors * (2 if "ICI_RING_TYPE_BIDIR" in attributes else 1)
    emitter = re.search(r'"emitter":"(\w+)"', attributes)
    strategy = re.search(r'"strategy":"(\w+)".*?colors:(\d+)', attributes)
    if strategy is not None:
        return int(strategy[2]) * (1 if strategy[1].startswith("UniDirection") else 2)
    return 2 if emitter is not None and emitter[1].startswith("1D") else None


def _within(module: Module, instruction: Instruction) -> Iterator[tuple[Computation, Instruction]]:
    for name in instruction.called:
        called = module.computations[name]
        for inner in called:
            if inner.opcode in KINDS or inner.opcode in _STARTS:
                yield called, inner
            yield from _within(module, inner)


def _payload(computation: Computation, instruction: Instruction, kind: str, size: int) -> int:
    operands = [computation[name].bytes for name in instruction.operands]
    if kind == "collective-permute":
        # A tuple of results, each of an operand: several permutes, combined. Otherwise operands
        # after the first are a place for the result, and offsets in it.
        combined = instruction.type.startswith("(" if instruction.opcode in KINDS else "((")
        return sum(operands) if combined else operands[0]
    if _PAYLOADS[kind] is Payload.FIRST_OPERAND:
        return operands[0]
    return sum(operands) * (size if _PAYLOADS[kind] is Payload.GATHERED else 1)


def _scope(module: Module, instruction: Instruction) -> str:
    """The operation of a collective; XLA drops it from some, but not from how they add."""
    near = (instruction, *module.within(instruction))
    return next((i.scope for i in near if i.scope), "")


def _source(module: Module, computation: Computation, instruction: Instruction) -> str:
    """The line of a collective; XLA drops it from some it moved, but not from what they combine."""
    own = module.source(instruction)
    if own:
        return own
    near = [*module.within(instruction), *(computation[name] for name in instruction.operands)]
    return next(filter(None, map(module.source, near)), "")
