"""How the arguments and results of a compiled program are split, by axes of its mesh."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np
from jax.sharding import Mesh as JaxMesh
from jax.sharding import NamedSharding, PartitionSpec
from shmap_passes.import_.placement import Placement
from shmap_passes.ir.mesh import Mesh

from shmap_compiler.base.untyped import Unchecked


class NotOnMesh(Exception):
    """A sharding that is not along whole axes of the mesh."""


def mesh_of(shardings: Iterable[Unchecked]) -> JaxMesh | None:
    """The mesh that shardings are on: the one with most axes; None if there is none."""
    meshes = [s.mesh for s in shardings if isinstance(s, NamedSharding)]
    known = [mesh for mesh in meshes if isinstance(mesh, JaxMesh) and not mesh.empty]
    return max(known, key=lambda mesh: len(mesh.shape), default=None)


def passes_mesh(mesh: JaxMesh) -> Mesh:
    """The mesh as the passes know it."""
    return Mesh("mesh", tuple(dict(mesh.shape).items()))


def placement(sharding: Unchecked, shape: Sequence[int], mesh: JaxMesh) -> Placement:
    """The axes that split each dimension of an array.

    Raises:
      NotOnMesh: they are none of whole axes, or the array is a sum of shares.
    """
    if isinstance(sharding, NamedSharding) and _is_same(sharding.mesh, mesh):
        spec = sharding.spec
        if getattr(spec, "unreduced", None):
            raise NotOnMesh(f"{spec}, whose devices hold shares of a sum")
        entries = [*spec, *[None] * (len(shape) - len(spec))]
        return Placement(tuple(map(_axes, entries)))
    if sharding is None or math.prod(shape) == 0 or sharding.is_fully_replicated:
        return Placement(((),) * len(shape))
    windows = sharding.devices_indices_map(tuple(shape))
    positions = [windows[device] for device in mesh.devices.flat]
    dims = []
    for dim, size in enumerate(shape):
        starts = np.array([window[dim].indices(size)[0] for window in positions])
        dims.append(_axes_of_starts(starts.reshape(mesh.devices.shape), mesh, str(sharding)))
    return Placement(tuple(dims))


def _is_same(one: Unchecked, mesh: JaxMesh) -> bool:
    """Whether two meshes have the same axes, in one order, and the same devices along them."""
    if list(one.shape.items()) != list(mesh.shape.items()):
        return False
    return not isinstance(one, JaxMesh) or np.array_equal(one.device_ids, mesh.device_ids)


def _axes(entry: Unchecked) -> tuple[str, ...]:
    if entry is None or entry is PartitionSpec.UNCONSTRAINED:
        return ()
    return (entry,) if isinstance(entry, str) else tuple(entry)


def _axes_of_starts(starts: np.ndarray, mesh: JaxMesh, text: str) -> tuple[str, ...]:
    """The axes along which blocks of one dimension begin elsewhere, major axis first."""
    steps = []
    for dim, name in enumerate(mesh.axis_names):
        if starts.shape[dim] > 1:
            step = int(np.diff(starts, axis=dim).flat[0])
            if step:
                steps.append((step, name))
    steps.sort(reverse=True)
    axes = tuple(name for _, name in steps)
    grid = [np.arange(size) for size in starts.shape]
    expected = np.zeros(starts.shape, int)
    block = steps[-1][0] if steps else 0
    for name in axes:
        dim = mesh.axis_names.index(name)
        shape = [-1 if d == dim else 1 for d in range(starts.ndim)]
        expected = expected * starts.shape[dim] + grid[dim].reshape(shape)
    if np.any(expected * block != starts):
        raise NotOnMesh(text)
    return axes
