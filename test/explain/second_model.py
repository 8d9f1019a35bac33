"""A second model of schedules, which shares no code with the product, to compare it with.

It reads the text of a module line by line. It is made for the stored programs only: eight devices,
tori that do not wrap around, one node of GPUs.
"""

from __future__ import annotations

import itertools
import json
import math
import re
from dataclasses import dataclass, field
from typing import Any

BITS = {"pred": 8, "bf16": 16, "f16": 16, "f32": 32, "s32": 32, "u32": 32, "s8": 8, "u8": 8}
KINDS = ("all-gather", "all-reduce", "all-to-all", "collective-permute", "reduce-scatter")
CYCLES_PER_SECOND = {"v5e": 1.5e9, "v5p": 1.75e9, "v6e": 1.75e9, "tpu7x": 2.2e9}
LINK = {"v5e": 50e9, "v5p": 100e9, "v6e": 100e9, "tpu7x": 100e9}

# Links into the chip of a group that has the fewest, by devices in the group. All eight devices
# are one ring through 2x4 or 2x2x1 chips, and use all links of 2x2x2 unless the compiler takes a
# ring. Of the mesh of four by two, "j" is one link, and "i" a line of four; in 2x2x2, "i" is every
# second corner of the cube, and no two of them are neighbors: one link at a time.
LINKS = {
    ("v5e", 8): 2,
    ("v6e", 8): 2,
    ("v5p", 8): 3,
    ("tpu7x", 8): 2,
    ("v5e", 4): 1,
    ("v6e", 4): 1,
    ("v5p", 4): 1,
    ("v5e", 2): 1,
    ("v6e", 2): 1,
    ("v5p", 2): 1,
}
RING_OF_TWO_DIRECTIONS = re.compile(r'"emitter":"1DAllGather|phase_rings')


@dataclass
class Line:
    name: str
    type: str
    opcode: str
    operands: list[str]
    rest: str

    def number(self, pattern: str) -> int | None:
        match = re.search(pattern, self.rest)
        return int(match[1]) if match else None

    @property
    def called(self) -> list[str]:
        return re.findall(r"(?:calls|to_apply|body)=%([\w.\-]+)", self.rest)


@dataclass
class Totals:
    computing: float = 0.0
    wire: float = 0.0
    total: float = 0.0
    flops: float = 0.0
    sent: dict[str, float] = field(default_factory=dict)

    def add(self, other: Totals, times: int) -> None:
        self.computing += times * other.computing
        self.wire += times * other.wire
        self.total += times * other.total
        self.flops += times * other.flops
        for kind, count in other.sent.items():
            self.sent[kind] = self.sent.get(kind, 0) + times * count


class Reader:
    def __init__(self, text: str, chip: str, loops: dict[str, int]):
        self.chip, self.loops = chip, loops
        self.places = [tuple(place) for place in json.loads(text.splitlines()[0][3:])["places"]]
        self.computations: dict[str, list[Line]] = {}
        self.entry = ""
        lines: list[Line] = []
        for text_line in text.splitlines()[1:]:
            if header := re.match(r"(ENTRY )?%([\w.\-]+) \(.*\{$", text_line):
                lines = self.computations[header[2]] = []
                self.entry = header[2] if header[1] else self.entry
            elif " = " in text_line and text_line.startswith("  "):
                lines.append(_line(text_line))

    # ------------------------------------------------------------------------------ one computation

    def run(self, name: str | None = None) -> Totals:
        """Replays a computation: instructions one by one, links free from some time on."""
        found = Totals()
        spans: list[tuple[float, float]] = []
        free: dict[Any, float] = {}
        free_host: dict[bool, float] = {}
        pending: dict[str, float] = {}
        lines = self.computations[name or self.entry]
        types = {line.name: line.type for line in lines}
        for line in lines:
            inner = self.collective(line)
            base = line.opcode.removesuffix("-start").removesuffix("-done")
            if self.waits(line):
                key = self.waits_for(line, pending)
                found.total = max(found.total, pending.pop(key)) if key else found.total
            elif inner is not None and not (line.opcode == "fusion" and self.carries_on(inner)):
                where = types if inner is line else self.types_around(inner)
                kind, seconds, sent, busy = self.price(line, inner, where)
                begins = {link: max(found.total, free.get(link, 0.0)) for link in busy}
                if kind == "collective-permute":
                    end = max((begins[k] + t for k, t in busy.items()), default=found.total)
                    free.update({link: begins[link] + t for link, t in busy.items()})
                    begin = min(begins.values(), default=found.total)
                else:
                    begin = max([found.total, *free.values()])
                    end = begin + seconds
                    free = {"all": end, **dict.fromkeys(free, end)}
                if kind == "collective-permute" and "all" in free:
                    late = max(begin, free["all"])
                    begin, end = late, max(end, late + seconds)
                spans.append((begin, end))
                found.sent[kind] = found.sent.get(kind, 0) + sent
                apart = line.opcode.endswith("-start") or line.opcode == "call-update"
                apart = apart or (line.opcode == "fusion" and self.root_target(line) == "Start")
                if apart and '"is_sync":true' not in line.rest:
                    pending[line.name] = end
                else:
                    found.total = max(found.total, end)
            elif line.opcode == "while":
                body = re.search(r"body=%([\w.\-]+)", line.rest)
                assert body is not None
                known = line.number(r'"known_trip_count":\{"n":"(\d+)"')
                found.add(self.run(body[1]), known or self.loops["*"])
            elif line.opcode in ("call", "conditional") and line.called:
                found.add(self.run(line.called[0]), 1)
            elif self.chip == "h100" and self.of_the_host(line, types):
                to_host = "update" in line.name
                moved = (
                    _bytes(types[line.operands[1]])
                    if to_host
                    else _bytes(line.type) - _bytes(types[line.operands[0]])
                )
                end = max(found.total, free_host.get(to_host, 0.0)) + moved / 55e9
                free_host[to_host] = pending[line.name] = end
            elif line.opcode.endswith("-done") and line.operands[0] in pending:
                found.total = max(found.total, pending.pop(line.operands[0]))
            elif not re.search(r"-(start|done|update)$", line.opcode) and base not in KINDS:
                seconds, flops = self.time(line, types)
                if self.chip == "h100":
                    taken = self.taken(line) if flops else 24 / 132
                    seconds = _beside(spans, found.total, seconds, taken)
                found.computing += seconds
                found.total += seconds
                found.flops += flops
        until = 0.0
        for begin, end in sorted(spans):
            found.wire += max(0.0, end - max(begin, until))
            until = max(until, end)
        return found

    # ---------------------------------------------------------------------------------- collectives

    def collective(self, line: Line) -> Line | None:
        """The collective in an instruction; of a SparseCore's, in what its `call-start` calls."""
        if line.opcode.removesuffix("-start") in KINDS:
            return line
        if line.opcode == "call-update":
            name = line.operands[0]
            everything = [item for lines in self.computations.values() for item in lines]
            line = next(item for item in everything if item.name == name)
        elif line.opcode not in ("fusion", "async-start") and not (
            line.opcode == "call-start" and line.operands  # as libtpu of JAX 0.10 writes it
        ):
            return None
        for name in line.called:
            for inner in self.computations[name]:
                found = self.collective(inner)
                if found is not None:
                    return found
        return None

    def root_target(self, line: Line) -> str:
        targets = re.findall(
            r'"AsyncCollective(Start|Done)"',
            " ".join(item.rest for name in line.called for item in self.computations[name]),
        )
        return targets[-1] if targets else ""

    def carries_on(self, inner: Line) -> bool:
        """Whether a fusion that is neither start nor whole has a collective begun elsewhere."""
        channel = re.search(r"channel_id=\d+", inner.rest)
        around = next(lines for lines in self.computations.values() if inner in lines)
        started = any('"AsyncCollectiveStart"' in item.rest for item in around)
        if channel is None or started:
            return False
        return any(
            any(channel[0] + "," in item.rest for item in lines)
            and any('"AsyncCollectiveStart"' in item.rest for item in lines)
            for lines in self.computations.values()
        )

    def waits(self, line: Line) -> bool:
        if line.opcode == "fusion":
            return self.root_target(line) == "Done"
        return line.opcode in ("call-done", "async-done") or (
            line.opcode.endswith("-done") and line.opcode.removesuffix("-done") in KINDS
        )

    def waits_for(self, line: Line, pending: dict[str, float]) -> str | None:
        if line.opcode == "fusion":
            # libtpu has one such collective under way at a time, and names it like its start.
            return next((k for k in pending if k.startswith("async-collective-start")), None)
        return line.operands[0] if line.operands[0] in pending else None

    @staticmethod
    def of_the_host(line: Line, types: dict[str, str]) -> bool:
        """Whether a slice moves to an array of the host, or from it."""
        first = types[line.operands[0]] if line.operands else ""
        return line.opcode == "fusion-start" and first.endswith("S(5)}")

    def types_around(self, inner: Line) -> dict[str, str]:
        lines = next(lines for lines in self.computations.values() if inner in lines)
        return {line.name: line.type for line in lines}

    def price(self, line: Line, inner: Line, types: dict[str, str]):
        """(kind, seconds, bytes sent by one device, seconds by link) of a collective."""
        kind = inner.opcode.removesuffix("-start")
        sizes = [_bytes(types[name]) for name in inner.operands]
        if kind == "collective-permute":
            tuples = inner.type.startswith("((") or (
                inner.type.startswith("(") and inner.opcode == kind
            )
            payload = sum(sizes) if tuples else sizes[0]
            text = re.search(r"source_target_pairs=\{(.*?)\}\}", inner.rest)
            assert text is not None
            pairs = [tuple(map(int, p)) for p in re.findall(r"\{?(\d+),(\d+)", text[1])]
            busy = self.permute(payload, pairs)
            return kind, max(busy.values(), default=0.0), payload, busy
        if kind == "all-reduce" and line.opcode == "fusion" and "scatter" in line.called[0]:
            kind = "reduce-scatter"
        size = self.group_size(inner.rest)
        payload = sum(sizes) * (size if kind == "all-gather" else 1)
        share = payload * (size - 1) / size * (2 if kind == "all-reduce" else 1)
        return kind, self.group(kind, payload, share, size, line.rest + inner.rest), share, {}

    @staticmethod
    def group_size(rest: str) -> int:
        if match := re.search(r"replica_groups=mesh\[(.*?)\] \{(.*?)\}", rest):
            sizes = dict(re.findall(r"'(\w+)'=(\d+)", match[1]))
            return math.prod(int(sizes[axis]) for axis in re.findall(r"'(\w+)'", match[2]))
        if match := re.search(r"replica_groups=\[\d+,(\d+)\]", rest):
            return int(match[1])
        match = re.search(r"replica_groups=\{\{([\d,]+)\}", rest)
        assert match is not None, rest[:200]
        return len(match[1].split(","))

    def group(self, kind: str, payload: float, share: float, size: int, rest: str) -> float:
        if self.chip == "h100":
            return _measured(kind, payload, size)
        links = LINKS[self.chip, size]
        if RING_OF_TWO_DIRECTIONS.search(rest):
            links = min(links, 2)
        if kind == "all-to-all":
            # Half of the bytes of half of the devices, over the links that cross the middle of the
            # longest dimension: two on 2x4, four on 2x2x2, two for the four chips of 2x2x1.
            across = {"v5e": 2, "v6e": 2, "v5p": 4, "tpu7x": 2}[self.chip]
            return size / 2 * payload / 2 / (across * LINK[self.chip])
        return max(share / (links * LINK[self.chip]), 1e-6)

    def permute(self, payload: float, pairs: list[tuple[int, ...]]) -> dict[Any, float]:
        busy: dict[Any, float] = {}
        for a, b in pairs:
            if a == b:
                continue
            if self.chip == "h100":
                for port in (("out", a), ("in", b)):
                    busy[port] = busy.get(port, 0.0) + _measured("collective-permute", payload, 8)
                continue
            here = list(self.places[a])
            for dimension, goal in enumerate(self.places[b]):
                while here[dimension] != goal:
                    there = list(here)
                    there[dimension] += 1 if goal > here[dimension] else -1
                    link = (tuple(here), tuple(there))
                    busy[link] = busy.get(link, 0.0) + payload / LINK[self.chip]
                    here = there
        return busy

    # -------------------------------------------------------------------------------------- compute

    def time(self, line: Line, types: dict[str, str]) -> tuple[float, float]:
        flops = self.products(line, types)
        if self.chip != "h100":
            cycles = line.number(r'"estimated_cycles":"(\d+)"')
            return (cycles or 0) / CYCLES_PER_SECOND[self.chip], flops
        if line.opcode not in ("fusion", "custom-call", "copy", "dot", "concatenate", "transpose"):
            return 0.0, flops
        # Of kernels that only take or replace slices, what the whole arrays have is too much; the
        # time of products does not depend on it.
        return max(
            flops / (0.7 * 989.5e12), self.moved(line, types) / (0.85 * 3.35e12)
        ) + 3e-6, flops

    def products(self, line: Line, types: dict[str, str]) -> float:
        if line.opcode == "fusion":
            return sum(
                self.products(inner, {item.name: item.type for item in self.computations[name]})
                for name in line.called
                for inner in self.computations[name]
            )
        out = math.prod(_shape(line.type))
        if line.opcode == "convolution":
            labels = re.search(r"dim_labels=\w+_(\w+)->", line.rest)
            assert labels is not None
            kernel = _shape(types[line.operands[1]])
            used = [n for n, label in zip(kernel, labels[1], strict=True) if label != "o"]
            return 2 * out * math.prod(used)
        contracted = re.search(r"lhs_contracting_dims=\{([\d,]*)\}", line.rest)
        if contracted is None and "__cublas" in line.rest:
            contracted = re.search(r'"lhs_contracting_dimensions":\[([\d,"]*)\]', line.rest)
        if contracted is None:
            return 0.0
        left = _shape(types[line.operands[0]])
        return 2 * out * math.prod(left[int(d)] for d in re.findall(r"\d+", contracted[1]))

    def taken(self, line: Line) -> float:
        """Of the speed of a product, by rounds of 132 tiles of 128x256: measured on an H100."""
        sizes = [math.prod(_shape(line.type))] if line.opcode != "fusion" else []
        for name in line.called if line.opcode == "fusion" else ():
            sizes += [
                math.prod(_shape(inner.type))
                for inner in self.computations[name]
                if inner.opcode == "dot"
            ]
        tiles = max(sizes) / 32768
        slower = 1.74 if tiles <= 132 else 1.33 if tiles <= 528 else 1.23 if tiles <= 1056 else 1.1
        return 1 - 1 / slower

    def moved(self, line: Line, types: dict[str, str]) -> float:
        if line.opcode == "fusion":
            inside = self.computations[line.called[0]]
            small = {item.name: item.type for item in inside}
            slices = [item for item in inside if item.opcode.endswith("slice")]
            if slices:
                return 2 * max(
                    _bytes(small[i.operands[1]] if "update" in i.opcode else i.type) for i in slices
                )
        return _bytes(line.type) + sum(_bytes(types[name]) for name in line.operands)


# Seconds of payloads that the stored programs have, from the same published table as the product
# uses, by linear interpolation by hand between its neighbors: (bytes, GB/s).
_TABLE = {
    ("all-gather", 8): [(2**24, 204), (2**25, 259), (2**26, 314), (2**27, 344), (2**28, 368)],
    ("all-gather", 2): [(2**24, 278), (2**25, 348), (2**26, 417)],
    ("all-reduce", 8): [(2**26, 177), (2**27, 200), (2**28, 213)],
    ("all-reduce", 4): [(2**25, 154), (2**26, 170), (2**27, 182)],
    ("reduce-scatter", 8): [(2**24, 194), (2**25, 251), (2**26, 307), (2**27, 326), (2**28, 348)],
    ("all-to-all", 8): [(2**25, 253), (2**26, 307), (2**27, 325)],
    ("collective-permute", 8): [(2**23, 65.3), (2**24, 70.5), (2**25, 74.3), (2**26, 76.5)],
}


def _beside(spans: list[tuple[float, float]], now: float, alone: float, taken: float) -> float:
    """How long work takes, by bisection, if what runs beside it takes a share of its speed."""

    def done(seconds: float) -> float:
        meanwhile = sum(max(0.0, min(e, now + seconds) - max(b, now)) for b, e in spans)
        return seconds - taken * meanwhile

    low, high = alone, 2 * alone
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if done(middle) < alone else (low, middle)
    return high


def _measured(kind: str, payload: float, size: int) -> float:
    rows = [(count, count / (rate * 1e9)) for count, rate in _TABLE[kind, size]]
    for (low, first), (high, second) in itertools.pairwise(rows):
        if low <= payload <= high:
            return first + (payload - low) / (high - low) * (second - first)
    raise ValueError(f"no figures for {kind} of {payload} bytes")


def _line(text: str) -> Line:
    left, _, right = text.strip().partition(" = ")
    type_, depth = "", 0
    for position, letter in enumerate(right):
        depth += (letter in "({") - (letter in ")}")
        if letter == " " and depth == 0:
            type_, right = right[:position], right[position + 1 :]
            break
    opcode, _, rest = right.partition("(")
    depths = itertools.accumulate((c == "(") - (c == ")") for c in rest)
    end = next((position for position, depth in enumerate(depths) if depth == -1), len(rest))
    operands = re.findall(r"%([\w.\-]+)", rest[:end])
    return Line(left.removeprefix("ROOT ").lstrip("%"), type_, opcode, operands, rest[end:])


def _shape(type_: str) -> list[int]:
    match = re.search(r"\[([\d,]*)\]", type_)
    return [int(n) for n in match[1].split(",") if n] if match else []


def _bytes(type_: str) -> float:
    return sum(
        BITS[element] / 8 * math.prod(int(n) for n in sizes.split(",") if n)
        for element, sizes in re.findall(r"\b([a-z]+\d*)\[([\d,]*)\]", type_)
        if element in BITS
    )
