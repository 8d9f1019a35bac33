"""Reads the text of an optimized HLO module: what `explain` needs to know of it.

XLA gives programs compiled for other machines as text only. Instructions of a scheduled module
stand in the order in which they run.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path


@dataclass(frozen=True)
class Instruction:
    """One instruction: `%name = type opcode(operands), attributes`.

    Attributes:
      operands: names of instructions of the same computation; for a constant, none.
      text: what stands between the parentheses of the operands.
      attributes: all that follows them.
    """

    name: str
    type: str
    opcode: str
    operands: tuple[str, ...]
    text: str
    attributes: str

    @property
    def bytes(self) -> int:
        """Bytes of the result."""
        return type_bytes(self.type)

    @property
    def memory_bytes(self) -> int:
        """Bytes of the result in the memory of the device: without those in a TPU's VMEM."""
        return sum(
            type_bytes(array) for array in array_types(self.type) if memory_space(array) == DEVICE
        )

    def attribute(self, pattern: str) -> str | None:
        """What the first group of `pattern` matches in the attributes."""
        match = re.search(pattern, self.attributes)
        return match[1] if match else None

    @property
    def call_target(self) -> str:
        """What a custom call calls; "" for other instructions."""
        return self.attribute(r'\bcustom_call_target="([^"]+)"') or ""

    @property
    def channel(self) -> str:
        """The channel of a collective, "" if it has none."""
        return self.attribute(r"\bchannel_id=(\d+)") or ""

    @property
    def scope(self) -> str:
        """The name of the operation that it comes from, with the named scopes around it."""
        return self.attribute(r'\bop_name="((?:[^"\\]|\\.)*)"') or ""

    @cached_property
    def called(self) -> tuple[str, ...]:
        """Names of the computations it calls, in the order in which it names them."""
        return tuple(
            name
            for names in _CALLS.findall(self.attributes)
            for name in re.findall(r"%([\w.\-]+)", names)
        )


@dataclass(frozen=True)
class Computation:
    """Instructions by name, in the order in which they run, and the name of the last one."""

    name: str
    instructions: Mapping[str, Instruction]
    root: str

    def __iter__(self) -> Iterator[Instruction]:
        return iter(self.instructions.values())

    def __getitem__(self, name: str) -> Instruction:
        return self.instructions[name]

    @property
    def result(self) -> Instruction:
        return self.instructions[self.root]

    @cached_property
    def parameters(self) -> Mapping[str, int]:
        """The numbers of its parameters, by name."""
        return {i.name: int(i.text) for i in self if i.opcode == "parameter"}


@dataclass(frozen=True)
class Module:
    """A program of one device.

    Attributes:
      frames: the line of source, "file:line", by the number of a stack frame.
      aliased_results: the numbers of results that are written in the place of arguments.
    """

    computations: Mapping[str, Computation]
    entry: Computation
    frames: Mapping[str, str] = field(default_factory=dict)
    aliased_results: frozenset[int] = frozenset()

    @cached_property
    def started_channels(self) -> frozenset[str]:
        """The channels of collectives that one fusion starts and others carry on."""
        return frozenset(
            instruction.channel
            for computation in self.computations.values()
            if computation.result.call_target == STARTING
            for instruction in computation
            if instruction.channel
        )

    def source(self, instruction: Instruction) -> str:
        """The user's line that an instruction comes from, "" where XLA kept none."""
        frame = instruction.attribute(r"\bstack_frame_id=(\d+)")
        return self.frames.get(frame, "") if frame else ""

    def within(self, instruction: Instruction) -> Iterator[Instruction]:
        """The instructions of all that an instruction calls, at any depth."""
        for name in instruction.called:
            for inner in self.computations[name]:
                yield inner
                yield from self.within(inner)


DEVICE, HOST = 0, 5
"""The numbers of memories in layouts: `bf16[8,128]{1,0:T(8,128)S(5)}` is on the host."""

STARTING = "AsyncCollectiveStart"
"""The custom call at the end of a fusion of libtpu's that starts a collective."""

_CALLS = re.compile(
    r"\b(?:calls|to_apply|condition|body|branch_computations|true_computation|false_computation)"
    r"=(\{[^}]*\}|%[\w.\-]+)"
)
_COMPUTATION = re.compile(r"(?P<entry>ENTRY )?%(?P<name>[\w.\-]+) \(.*\{$")
_INSTRUCTION = re.compile(r"\s+(?P<root>ROOT )?%(?P<name>[\w.\-]+) = (?P<rest>.*)")
_FILE = re.compile(r'(\d+) "(.*)"$')
_LOCATION = re.compile(r"(\d+) \{file_name_id=(\d+) .*?\bline=(\d+)")
_FRAME = re.compile(r"(\d+) \{file_location_id=(\d+)(?: parent_frame_id=(\d+))?")
_LIBRARY = re.compile(r"[/\\](?:site|dist)-packages[/\\]")
_ROOT = Path(__file__).parents[2]
_OWN = tuple(str(_ROOT / folder) + os.sep for folder in ("shmap_compiler", "passes", "tools"))
"""Where this package is, if it is not among the installed libraries but in a checkout."""
_SPACE = re.compile(r"(?P<tiles>T\([^}]*)?S\((?P<space>\d)\)[^}]*\}")
_TYPE = re.compile(r"\b[a-z]+\d*\w*\[[\d,<=]*\](?:\{[^}]*\})?")
_ARRAY = re.compile(r"\b(?P<element>[a-z]+(?P<bits>\d*)\w*)\[(?P<sizes>[\d,<=]*)\]")


def parse(text: str) -> Module:
    """The module that XLA printed as `text`."""
    computations: dict[str, Computation] = {}
    entry: Computation | None = None
    lines = iter(text.splitlines())
    for line in lines:
        if match := _COMPUTATION.match(line):
            computation = _read_computation(match["name"], lines)
            computations[computation.name] = computation
            entry = computation if match["entry"] else entry
    if entry is None:
        raise ValueError("no text of an HLO module: it has no ENTRY computation")
    return Module(computations, entry, _read_frames(text), _read_aliases(text))


def _read_computation(name: str, lines: Iterator[str]) -> Computation:
    instructions: dict[str, Instruction] = {}
    root = ""
    for line in lines:
        if line.startswith("}"):
            break
        if match := _INSTRUCTION.match(line):
            instruction = _read_instruction(match["name"], match["rest"])
            instructions[instruction.name] = instruction
            root = instruction.name if match["root"] or not root else root
    return Computation(name, instructions, root)


def _read_instruction(name: str, rest: str) -> Instruction:
    """From what follows the `=`. Types of tuples, and layouts, have parentheses of their own."""
    end = _closing(rest, 0) + 1 if rest.startswith("(") else rest.index(" ")
    opened = rest.index("(", end)
    closed = _closing(rest, opened)
    text = rest[opened + 1 : closed]
    opcode = rest[end:opened].strip()
    names = () if opcode == "constant" else tuple(re.findall(r"%([\w.\-]+)", text))
    return Instruction(name, rest[:end], opcode, names, text, rest[closed + 1 :])


def _closing(text: str, opened: int) -> int:
    """Where the parenthesis that opens at `opened` is closed."""
    depth = 0
    for match in re.finditer(r"[()]", text[opened:]):
        depth += 1 if match[0] == "(" else -1
        if depth == 0:
            return opened + match.start()
    return len(text)


def _read_aliases(text: str) -> frozenset[int]:
    """The numbers of results in the place of arguments: `input_output_alias={ {1}: (0, ...) }`."""
    match = re.search(r"^HloModule .*?\binput_output_alias=\{(.*?\)) \}", text, re.MULTILINE)
    return frozenset(int(n or 0) for n in re.findall(r"\{(\d*)\}: \(", match[1] if match else ""))


def _read_frames(text: str) -> dict[str, str]:
    """The line of each stack frame, from the tables before the computations."""
    tables: dict[str, list[str]] = {}
    table: list[str] = []
    for line in text.splitlines():
        if line in ("FileNames", "FunctionNames", "FileLocations", "StackFrames"):
            table = tables.setdefault(line, [])
        elif line.startswith(("%", "ENTRY")):
            break
        else:
            table.append(line)

    def read(name: str, pattern: re.Pattern[str]) -> dict[str, tuple[str, ...]]:
        matches = [pattern.match(line) for line in tables.get(name, ())]
        return {match[1]: match.groups()[1:] for match in matches if match}

    files = read("FileNames", _FILE)
    places = {
        key: f"{files[file][0]}:{line}"
        for key, (file, line) in read("FileLocations", _LOCATION).items()
        if file in files
    }
    frames = read("StackFrames", _FRAME)
    return {key: _users_line(key, frames, places) for key in frames}


def _users_line(
    frame: str, frames: Mapping[str, tuple[str, ...]], places: Mapping[str, str]
) -> str:
    """The innermost line of a stack that is in no library and not in this package, if there is one.

    Else the innermost line that is not in this package, "" if there is none.

    XLA counts parents from one more than frames.
    """
    line = ""
    key, seen = frame, 0
    while key in frames and seen <= len(frames):
        place, parent = frames[key]
        here = places.get(place, "")
        if here and not here.startswith(_OWN):
            line = line or here
            if not _LIBRARY.search(here):
                return here
        key, seen = str(int(parent or 0) - 1), seen + 1
    return line


def type_bytes(type_: str) -> int:
    """Bytes of an array type or of a tuple of them; elements of less than a byte are packed."""
    return sum(math.ceil(elements * bits / 8) for _, bits, elements in _arrays(type_))


def array_types(type_: str) -> list[str]:
    """The types of all arrays of a type, with their layouts."""
    return _TYPE.findall(type_)


def memory_space(type_: str) -> int:
    """The memory of an array: `DEVICE`, `HOST`, or one inside of a TPU.

    Without tiles, as on GPUs, 1 is the part of the device's memory that NCCL can use.
    """
    match = _SPACE.search(type_)
    if match is None:
        return DEVICE
    space = int(match["space"])
    return space if match["tiles"] or space == HOST else DEVICE


def shape(type_: str) -> tuple[int, ...]:
    """The sizes of an array type."""
    match = _ARRAY.search(type_)
    assert match is not None, f"no array type: {type_}"
    return _sizes(match)


def element(type_: str) -> str:
    """The element type of the first array of a type, "" if it has none."""
    match = _ARRAY.search(type_)
    return match["element"] if match else ""


def elements(types: str) -> list[str]:
    """The element types of all arrays of a type."""
    return [element for element, _, _ in _arrays(types)]


def _arrays(type_: str) -> Iterator[tuple[str, int, int]]:
    for match in _ARRAY.finditer(type_):
        bits = int(match["bits"] or (8 if match["element"] == "pred" else 0))
        yield match["element"], bits, math.prod(_sizes(match))


def _sizes(match: re.Match[str]) -> tuple[int, ...]:
    return tuple(int(size.lstrip("<=")) for size in match["sizes"].split(",") if size)
