"""Groups of devices, and the mesh axes along which they extend.

Devices are positions in the mesh, row major. A mesh is a dict from the names of its axes to their
sizes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

Groups = tuple[tuple[int, ...], ...]
Pairs = tuple[tuple[int, int], ...]
"""Of transfers: (from, to) of each."""


def group_axes(groups: Groups, mesh: Mapping[str, int]) -> tuple[str, ...] | None:
    """The mesh axes along which groups extend; None if they are not groups along whole axes."""
    found = {frozenset(group) for group in groups}
    extent = _extent(groups, mesh)
    return extent if found == _sets_along(extent, mesh) else None


def pair_axes(pairs: Pairs, mesh: Mapping[str, int]) -> tuple[str, ...]:
    """The mesh axes along which a collective-permute moves data."""
    return _extent(pairs, mesh)


def _extent(sets: Groups | Pairs, mesh: Mapping[str, int]) -> tuple[str, ...]:
    """The axes along which members of a set have different coordinates."""
    shape = tuple(mesh.values())
    differ = np.zeros(len(shape), bool)
    for members in sets:
        coordinates = np.array(np.unravel_index(np.array(members), shape))
        differ |= (coordinates != coordinates[:, :1]).any(axis=1)
    return tuple(axis for axis, different in zip(mesh, differ, strict=True) if different)


def _sets_along(axes: tuple[str, ...], mesh: Mapping[str, int]) -> set[frozenset[int]]:
    names = list(mesh)
    order = [names.index(a) for a in names if a not in axes] + [names.index(a) for a in axes]
    ids = np.arange(math.prod(mesh.values())).reshape(tuple(mesh.values())).transpose(order)
    size = math.prod(mesh[a] for a in axes)
    return {frozenset(group) for group in ids.reshape(-1, size).tolist()}
