"""Reads from an HLO program which devices work together in a collective.

Devices are positions in the mesh, row major. XLA writes groups in three ways: as lists, as a grid
of numbers with dimensions exchanged (`[4,2]<=[2,4]T(1,0)`), and by mesh axes
(`mesh['i'=4,'j'=2] {'j'}`).
"""

from __future__ import annotations

import itertools
import math
import re
from dataclasses import dataclass

import numpy as np

from shmap_compiler.base.device_groups import Groups, Pairs
from shmap_compiler.explain.hlo import Instruction


@dataclass(frozen=True)
class AlongAxes:
    """How groups are named by axes of a mesh.

    Attributes:
      mesh: the name and the size of each of its axes.
      parts: the axes that the groups are along, first one major, each with where the part of it
        that they take begins and ends: the part of size 4 after one of size 2 is from 2 to 8.
    """

    mesh: tuple[tuple[str, int], ...]
    parts: tuple[tuple[str, int, int], ...]


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
        named = _named(match)
        count = math.prod(size for _, size in named.mesh)
        return _listed(named, _device_ids(match[2]) if match[2] else np.arange(count))
    raise ValueError(f"groups in a form that is not known: {text[:60]}")


def along_axes(text: str) -> AlongAxes | None:
    """How the groups that a text begins with are named by axes; None if they are not."""
    match = _BY_AXES.match(text)
    return None if match is None else _named(match)


_BY_AXES = re.compile(r"mesh\[(.*?)\](?:, device_ids=\(([^ ]+)\))? \{(.*?)\}(?=[,\s]|$)")
"""A mesh and some of its axes, whose names may hold any characters."""


def _named(match: re.Match[str]) -> AlongAxes:
    sizes = {name: int(size) for name, size in re.findall(r"'(.+?)'=(\d+)(?:,|$)", match[1])}
    parts = []
    for name, before, length in re.findall(r"'(.+?)'(?::\((\d+)\)(\d+))?(?:, ?|$)", match[3]):
        low = int(before or 1)
        parts.append((name, low, low * int(length) if length else sizes[name]))
    return AlongAxes(tuple(sizes.items()), tuple(parts))


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


def _listed(named: AlongAxes, ids: np.ndarray) -> Groups:
    """The devices of groups along axes of a mesh that has these devices, row major."""
    split: list[int] = []
    where: dict[tuple[str, int], int] = {}
    for name, size in named.mesh:
        edges = {1, size}
        for part, low, high in named.parts:
            if part == name:
                edges |= {low, high}
        for low, high in itertools.pairwise(sorted(edges)):
            where[name, low] = len(split)
            split.append(high // low)
    grouped: list[int] = []
    for part, low, high in named.parts:
        grouped += [d for (name, edge), d in where.items() if name == part and low <= edge < high]
    rest = [d for d in range(len(split)) if d not in grouped]
    size = math.prod(split[d] for d in grouped)
    return _rows(ids.reshape(split).transpose(*rest, *grouped).reshape(-1, size))
