"""Finds the arrays that are in the memory of a device while a computation runs.

They follow from the order of the instructions. An array is live from the instruction that writes it
to the last one that reads it, or that reads something in the same buffer. Tuples, bitcasts, loops
and updates of a slice use the buffers of their operands; elementwise operations and all-reduces
write over an operand that nothing reads later. Tiles are padded, and arrays in a TPU's VMEM do not
count.

The compiler decides where buffers are placed. What it reserves includes the gaps between them,
scratch space, and room for results before they are written.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from shmap_compiler.explain.hlo import (
    DEVICE,
    Computation,
    Instruction,
    Module,
    memory_space,
    type_bytes,
)
from shmap_compiler.explain.shared_buffers import shared_buffers


@dataclass(frozen=True)
class Buffer:
    """An array in memory, other than an argument.

    Attributes:
      instruction: the one that writes it first.
      type: of the array, without its layout.
      bytes: in memory, with the padding of its tiles.
      source: the user's line, "" if XLA kept none.
      scope: the operation that it comes from, with the named scopes around it.
      result: whether it is a result of its computation.
    """

    instruction: str
    type: str
    bytes: int
    source: str
    scope: str
    result: bool = False


@dataclass(frozen=True)
class Liveness:
    """The buffers of one computation.

    Attributes:
      spans: by buffer, the numbers of the first and the last instruction at which it is live.
      bytes: of all buffers that are live at each instruction.
    """

    spans: Mapping[Buffer, tuple[int, int]]
    bytes: tuple[int, ...]

    def at(self, index: int) -> tuple[Buffer, ...]:
        """The buffers that are live at an instruction, the largest first."""
        live = [b for b, (first, last) in self.spans.items() if first <= index <= last]
        return tuple(sorted(live, key=lambda b: (-b.bytes, b.instruction)))


def liveness(module: Module, computation: Computation) -> Liveness:
    """The buffers of a computation, without those of computations that it calls.

    Parameters are the caller's buffers. So are results, except those of the entry computation.
    """
    return _Walk(module, computation).run()


def array_bytes(type_: str) -> int:
    """Bytes of an array in the memory of a device, with the padding of its tiles; 0 if elsewhere.

    Examples:
      >>> array_bytes("bf16[8192,1,4096]{2,1,0:T(2,128)(2,1)}") == 8192 * 2 * 4096 * 2
      True
      >>> array_bytes("bf16[8,128]{1,0:T(8,128)(2,1)S(1)}")
      0
    """
    if memory_space(type_) != DEVICE:
        return 0
    match = _TILED.search(type_)
    if match is None:
        return type_bytes(type_)
    sizes = [int(n) for n in match["sizes"].split(",") if n]
    order = [int(n) for n in match["order"].split(",") if n]
    tile = [int(n) for n in match["tile"].split(",") if n]
    padded = list(sizes)
    for dimension, side in zip(order, reversed(tile), strict=False):
        padded[dimension] = math.ceil(sizes[dimension] / side) * side
    elements = math.prod(sizes)
    return type_bytes(type_) * math.prod(padded) // elements if elements else 0


_TILED = re.compile(r"\[(?P<sizes>[\d,]*)\]\{(?P<order>[\d,]*):T\((?P<tile>[\d,]+)\)")


@dataclass
class _Made:
    """A buffer while the computation is walked."""

    origin: Instruction
    type: str
    bytes: int
    first: int
    last: int
    result: bool = False


# A value is a buffer, a tuple of values, or None: a buffer that does not count.
_Value: TypeAlias = "int | tuple[_Value, ...] | None"


class _Walk:
    """Follows values through the instructions of a computation, in order."""

    def __init__(self, module: Module, computation: Computation):
        self.module, self.computation = module, computation
        self.values: dict[str, _Value] = {}
        self.holders: dict[int, list[str]] = defaultdict(list)
        self.made: list[_Made] = []
        self.read_until = {
            name: index
            for index, instruction in enumerate(computation)
            for name in (() if instruction.opcode in _NAMES else instruction.operands)
        }

    def run(self) -> Liveness:
        for index, instruction in enumerate(self.computation):
            value = self._value(index, instruction)
            self.values[instruction.name] = value
            for buffer in _flat(value):
                self.holders[buffer].append(instruction.name)
            if instruction.opcode not in _NAMES:
                for name in (*instruction.operands, instruction.name):
                    for buffer in _flat(self.values.get(name)):
                        self.made[buffer].last = index
        self._keep_results()
        return self._liveness()

    def _keep_results(self) -> None:
        """Results live to the end, or are the caller's; so are those in the place of arguments."""
        root, last = self.values.get(self.computation.root), len(self.computation.instructions) - 1
        entry = self.computation is self.module.entry
        parts = root if isinstance(root, tuple) else (root,)
        for number, part in enumerate(parts):
            counts = entry and number not in self.module.aliased_results
            for buffer in _flat(part):
                self.made[buffer].last = last if counts else -1
                self.made[buffer].result = True

    def _liveness(self) -> Liveness:
        spans: dict[Buffer, tuple[int, int]] = {}
        change = [0] * (len(self.computation.instructions) + 1)
        for made in self.made:
            if made.last < made.first or not made.bytes:
                continue
            buffer = Buffer(
                made.origin.name,
                _bare(made.type),
                made.bytes,
                *self._origin(made.origin),
                made.result,
            )
            while buffer in spans:
                buffer = replace(buffer, instruction=f"{buffer.instruction}'")
            spans[buffer] = made.first, made.last
            change[made.first] += made.bytes
            change[made.last + 1] -= made.bytes
        live, total = [], 0
        for step in change[:-1]:
            total += step
            live.append(total)
        return Liveness(spans, tuple(live))

    def _origin(self, instruction: Instruction) -> tuple[str, str]:
        """Line and operation of what an instruction writes; of a copy, those of what it copies."""
        own = self.module.source(instruction)
        known = self.computation.instructions
        if not own and instruction.opcode in _COPIES and instruction.operands[0] in known:
            return self._origin(known[instruction.operands[0]])
        holder = (
            known[instruction.operands[0]] if instruction.opcode == "call-update" else instruction
        )
        near = [instruction, *reversed([*self.module.within(holder)])]
        source = own or next(filter(None, map(self.module.source, near)), "")
        return source, next((i.scope for i in near if i.scope), "")

    # ------------------------------------------------------------------------------- instructions

    def _value(self, index: int, instruction: Instruction) -> _Value:
        opcode = instruction.opcode
        operands = [self.values.get(name) for name in instruction.operands]
        if opcode in ("parameter", "constant"):
            return None
        if opcode == "tuple":
            return tuple(operands)
        if opcode == "get-tuple-element":
            return _element(operands[0], int(instruction.attribute(r"\bindex=(\d+)") or 0))
        if opcode in _SAME:
            return operands[0]
        if opcode == "call-update" or opcode.endswith("-start"):
            return self._started(index, instruction, operands)
        if opcode.endswith("-update"):
            return operands[0]
        if opcode.endswith("-done"):
            done = operands[0] if operands else None
            whole = not isinstance(done, tuple) or opcode == "all-reduce-done"
            return done if whole else _element(done, 0 if opcode == "copy-done" else 1)
        return self._written(index, instruction, operands)

    def _started(self, index: int, instruction: Instruction, operands: Sequence[_Value]) -> _Value:
        """The type of a start has its operands, its results, and what keeps count of it.

        A copy names its result first, and an all-reduce works in the place of its operands.
        """
        if instruction.opcode == "all-reduce-start":
            return operands[0] if len(operands) == 1 else tuple(operands)
        own = 0 if instruction.opcode == "copy-start" else 1
        return tuple(
            self._new(index, instruction, type_) if k == own else None
            for k, type_ in enumerate(_parts(instruction.type))
        )

    def _written(self, index: int, instruction: Instruction, operands: Sequence[_Value]) -> _Value:
        parts = _parts(instruction.type)
        values: list[_Value] = []
        for number, type_ in enumerate(parts or [instruction.type]):
            updated, alike = shared_buffers(self.module, instruction, number)
            alike = [k for k in alike if self._can_replace(index, instruction, k, type_)]
            shared = updated if updated is not None else next(iter(alike), None)
            if shared is not None and shared < len(operands):
                values.append(operands[shared])
            else:
                values.append(self._new(index, instruction, type_))
        return tuple(values) if parts else values[0]

    def _can_replace(self, index: int, instruction: Instruction, k: int, type_: str) -> bool:
        """Whether operand `k` is a buffer of the same size that nothing reads later."""
        buffer = self.values.get(instruction.operands[k])
        if not isinstance(buffer, int) or self.made[buffer].bytes != array_bytes(type_):
            return False
        return all(self.read_until.get(name, -1) <= index for name in self.holders[buffer])

    def _new(self, index: int, origin: Instruction, type_: str) -> _Value:
        if parts := _parts(type_):
            return tuple(self._new(index, origin, part) for part in parts)
        self.made.append(_Made(origin, type_, array_bytes(type_), index, index))
        return len(self.made) - 1


_NAMES = {"bitcast", "get-tuple-element", "tuple"}
"""These neither read nor write: they are other names for a buffer."""

_COPIES = {"copy", "copy-start", "slice-start"}
_SAME = {"bitcast", "while", "opt-barrier"}


def _flat(value: _Value) -> Iterator[int]:
    if isinstance(value, tuple):
        for part in value:
            yield from _flat(part)
    elif value is not None:
        yield value


def _element(value: _Value, index: int) -> _Value:
    return value[index] if isinstance(value, tuple) and index < len(value) else None


def _bare(type_: str) -> str:
    """An array type without its layout and the comments between types."""
    return re.sub(r"\{[^}]*\}|/\*.*?\*/", "", type_)


def _parts(type_: str) -> list[str]:
    """The types in a tuple type; none for an array type."""
    parts, depth, begin = [], 0, 1
    for k, letter in enumerate(type_ if type_.startswith("(") else ""):
        depth += (letter in "({[") - (letter in ")}]")
        if (letter == "," and depth == 1) or depth == 0:
            parts.append(type_[begin:k].strip())
            begin = k + 1
    return [part for part in parts if part]
