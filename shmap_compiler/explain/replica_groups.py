"""Reads from an HLO program which devices work together in a collective.

Devices are positions in the mesh, row major. XLA writes groups in three ways: as lists, as a grid
of numbers with dimensions exchanged (`[4,2]<=[2,4]T(1,0)`), and by mesh axes
(`mesh['i'=4,'j'=2] {'j'}`).
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Mapping

import numpy as np

from shmap_compiler.base.device_groups import Groups, Pairs
from shmap_compiler.explain.hlo import Instruction


def read_pairs(instruction: Instruction) -> Pairs:
    """(from, to) of each transfer of a collective-permute."""
    text = instruction.attribute(r"\bsource_target_pairs=\{((?:\{\d+,\d+\},?)*)\}") or ""
    return tuple((int(a), int(b)) for a, b in re.findall(r"\{(\d+),(\d+)\}", text))


def read_groups(instruction: Instruction, device_count: int) -> Groups:
    """The groups of any other collective; without any, all devices are one group.

    Raises:
      ValueError: the groups are written in another way.
    """
    return groups_of_text(instruction.attribute(r"\breplica_groups=(.*)") or "{}", device_count)


def groups_of_text(text: str, device_count: int) -> Groups:
    """The groups that a text begins with: what follows `replica_groups=` in an instruction.

    Raises:
      ValueError: the groups are written in another way.
    """
    if text.startswith("{}"):
        return (tuple(range(device_count)),)
    if text.startswith("{{"):
        lists = re.findall(r"\{([\d,]+)\}", text[: text.index("}}") + 2])
        return tuple(tuple(map(int, ids.split(","))) for ids in lists)
    if match := re.match(r"\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?", text):
        shape, sizes = _numbers(match[1]), _numbers(match[2])
        order = _numbers(match[3]) if match[3] else range(len(sizes))
        ids = np.arange(math.prod(sizes)).reshape(sizes).transpose(tuple(order))
        return _rows(ids.reshape(shape))
    if match := _BY_AXES.match(text):
        sizes = {name: int(size) for name, size in re.findall(r"'(.+?)'=(\d+)(?:,|$)", match[1])}
        ids = _device_ids(match[2]) if match[2] else np.arange(math.prod(sizes.values()))
        return _along(ids.reshape(tuple(sizes.values())), sizes, match[3])
    raise ValueError(f"groups in a form that is not known: {text[:60]}")


_BY_AXES = re.compile(r"mesh\[(.*?)\](?:, device_ids=\(([^ ]+)\))? \{(.*?)\}(?=[,\s]|$)")
"""A mesh and some of its axes, whose names may hold any characters."""


def _device_ids(text: str) -> np.ndarray:
    """The ids of a mesh in its own order: a list, or a grid with dimensions exchanged."""
    if match := re.fullmatch(r"\[([\d,]+)\](?:T\(([\d,]+)\))?", text):
        sizes = _numbers(match[1])
        order = _numbers(match[2]) if match[2] else range(len(sizes))
        return np.arange(math.prod(sizes)).reshape(sizes).transpose(tuple(order)).ravel()
    if re.fullmatch(r"[\d,]+", text):
        return np.array(_numbers(text))
    raise ValueError(f"device ids in a form that is not known: {text[:60]}")


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split(",")))


def _rows(ids: np.ndarray) -> Groups:
    return tuple(tuple(row) for row in ids.reshape(-1, ids.shape[-1]).tolist())


def _along(ids: np.ndarray, sizes: Mapping[str, int], axes: str) -> Groups:
    """Groups along axes, or parts of axes: `'i':(2)4` is the part of size 4 after one of size 2."""
    split: list[int] = []
    where: dict[tuple[str, int], int] = {}
    parts = re.findall(r"'(.+?)'(?::\((\d+)\)(\d+))?(?:, ?|$)", axes)
    for name, size in sizes.items():
        edges = {1, size}
        for part, before, length in parts:
            if part == name and length:
                edges |= {int(before), int(before) * int(length)}
        for low, high in itertools.pairwise(sorted(edges)):
            where[name, low] = len(split)
            split.append(high // low)
    grouped: list[int] = []
    for name, before, length in parts:
        low = int(before or 1)
        high = low * int(length) if length else sizes[name]
        grouped += [d for (n, edge), d in where.items() if n == name and low <= edge < high]
    rest = [d for d in range(len(split)) if d not in grouped]
    size = math.prod(split[d] for d in grouped)
    return _rows(ids.reshape(split).transpose(*rest, *grouped).reshape(-1, size))
