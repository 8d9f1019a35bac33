"""Meshes as text: `i=4,j=2`, axes in order, the last one with neighbouring devices."""

from __future__ import annotations

import math
import re

import jax
import numpy as np
from jax.sharding import AbstractMesh, AxisType, Mesh

from ..usage import Mistake, UsageError, shortened

_NEEDED = "AXIS=SIZE,..., as in i=4,j=2, with distinct names and sizes of at least 1"


def parse(text: str) -> dict[str, int]:
    """Axis names and sizes, in order. Raises UsageError with everything that is wrong."""
    sizes: dict[str, int] = {}
    mistakes: list[Mistake] = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*([^\W\d]\w*)\s*=\s*(\d{1,18})\s*", part)
        if match is None or int(match[2]) == 0:
            mistakes.append(_mistake(text, f"{shortened(part)!r}", "write a name, = and a size"))
        elif match[1] in sizes:
            mistakes.append(_mistake(text, f"axis {match[1]!r} twice", "rename one of the two"))
        else:
            sizes[match[1]] = int(match[2])
    if mistakes:
        raise UsageError(*mistakes)
    return sizes


def make(sizes: dict[str, int], like: Mesh | AbstractMesh | None) -> Mesh | AbstractMesh:
    """The mesh of these sizes: of the first devices, or without devices if there are too few.

    Axes that the mesh `like` has too keep their axis types; others are automatic.
    """
    types = dict(zip(like.axis_names, like.axis_types, strict=True)) if like is not None else {}
    axis_types = tuple(types.get(name, AxisType.Auto) for name in sizes)
    shape, names, count = tuple(sizes.values()), tuple(sizes), math.prod(sizes.values())
    devices = jax.devices()
    if count > len(devices):
        return AbstractMesh(shape, names, axis_types=axis_types)
    return Mesh(np.array(devices[:count]).reshape(shape), names, axis_types=axis_types)


def _mistake(text: str, found: str, fix: str) -> Mistake:
    return Mistake(f"--mesh {shortened(text)!r}", found, _NEEDED, fix)
