"""Collectives as body form has them: no channel, groups named by axes of the module's mesh.

    all_reduce ... channel_handle = <handle = 1, type = 1>, use_global_device_ids,
                   replica_groups = dense<[[0, 1], [2, 3], [4, 5], [6, 7]]>
    all_reduce ... replica_groups = ..._axes<mesh = @mesh, axes = ["j"]>         on a mesh i=4, j=2

Groups that are no product of axes stay lists of devices, which body form has, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import sdy, stablehlo

from ..base import Violation
from ..ir.collective_ops import (
    ALL_REDUCE,
    CHANNEL_HANDLE,
    GROUPED,
    GROUPS,
    device_ids,
    group_axes,
    group_mesh,
    lists_one_replica,
    split_group_axes,
)
from ..ir.mesh import MOST_LISTED, Mesh
from .digits import axes_of, digits_of_groups

_ATTRIBUTES_OF_OTHERS = ("use_global_device_ids", "mhlo.sharding", "sdy.sharding")


def to_body_form(collectives: Iterable[ir.Operation], mesh: Mesh) -> list[Violation]:
    """Rewrites the collectives of a region on `mesh`; returns those that are not read.

    Meshes by which groups are named must be inlined.
    """
    violations: list[Violation] = []
    for op in collectives:
        if op.name in GROUPED:
            violations += _name_groups(op, mesh)
        for name in (CHANNEL_HANDLE, *_ATTRIBUTES_OF_OTHERS):
            if name in op.attributes:
                del op.attributes[name]
    return violations


def listed_groups(op: ir.Operation) -> list[list[int]] | None:
    """The groups of a collective that lists device ids; None for other collectives."""
    if op.name not in GROUPED or group_axes(op) is not None:
        return None
    return device_ids(op, GROUPS)


def named_mesh(op: ir.Operation) -> Mesh | None:
    """The mesh by whose axes a collective names its groups; None if there is none to be read."""
    if op.name not in GROUPED or group_axes(op) is None:
        return None
    attribute = group_mesh(op)
    if not stablehlo.MeshAttr.isinstance(attribute):
        return None
    mesh = stablehlo.MeshAttr(attribute)
    if mesh.device_ids is not None:
        return None
    axes = (stablehlo.MeshAxisAttr(axis) for axis in ir.ArrayAttr(mesh.axes))
    return Mesh("mesh", tuple((axis.name, axis.size) for axis in axes))


def _name_groups(op: ir.Operation, mesh: Mesh) -> Iterator[Violation]:
    axes = group_axes(op)
    if axes is None:
        found = _axes_of_listed(op, mesh)
    else:
        named = named_mesh(op)
        if named is None or split_group_axes(op) or any(a not in named.sizes for a in axes):
            yield Violation(
                op.location,
                f"the groups {op.attributes[GROUPS]} cannot be read: they must be whole axes of a "
                "mesh without device ids; list the devices of each group instead",
            )
            return
        found = axes if named.axes == mesh.axes else _axes_in(mesh, named, axes)
        if found is None:
            if named.size != mesh.size or named.size > MOST_LISTED:
                yield Violation(
                    op.location,
                    f"the groups are over axes of {named}, and the region is on {mesh}, which has "
                    "other devices; name axes of the latter",
                )
                return
            ids = np.array(named.groups(axes), np.int64)
            op.attributes[GROUPS] = ir.DenseElementsAttr.get(ids.data)
    if found is not None:
        op.attributes[GROUPS] = groups_over(found, mesh)


def groups_over(axes: Sequence[str], mesh: Mesh) -> ir.Attribute:
    """The groups of a collective in body form, first axis major."""
    refs = [stablehlo.AxisRefAttr.get(axis) for axis in axes]
    symbol = ir.FlatSymbolRefAttr.get(mesh.symbol)
    return stablehlo.ReplicaGroupMeshAxesAttr.get(symbol, ir.ArrayAttr.get(refs))


def _axes_in(mesh: Mesh, named: Mesh, axes: Sequence[str]) -> tuple[str, ...] | None:
    """Axes of another mesh as axes of this one."""
    if named.size != mesh.size or named.size > MOST_LISTED:
        return None
    return axes_of_groups(named.groups(axes), mesh)


def _axes_of_listed(op: ir.Operation, mesh: Mesh) -> tuple[str, ...] | None:
    groups = device_ids(op, GROUPS)
    if lists_one_replica(op, groups):
        return mesh.names
    found = axes_of_groups(groups, mesh)
    if found is None and op.name == ALL_REDUCE:
        # The order of the members matters to all others only.
        found = axes_of_groups([sorted(group) for group in groups], mesh)
    return found


def axes_of_groups(groups: list[list[int]], mesh: Mesh) -> tuple[str, ...] | None:
    """The axes, in the order of the members, of groups that hold every device of the mesh once."""
    if sum(map(len, groups)) != mesh.size:
        return None  # checked first: a mesh may have more devices than can be listed
    if sorted(device for group in groups for device in group) != list(range(mesh.size)):
        return None
    digits = digits_of_groups(groups)
    if digits is None:
        return None
    if not digits:
        trivial = tuple(name for name, size in mesh.axes if size == 1)
        return trivial[:1] or None
    axes = axes_of(digits, mesh)
    if axes is None or {*map(tuple, groups)} != {*map(tuple, mesh.groups(axes))}:
        return None
    return axes


def sdy_mesh(mesh: Mesh) -> ir.Attribute:
    """The attribute of `sdy.mesh`."""
    return sdy.MeshAttr.get([sdy.MeshAxisAttr.get(name, size) for name, size in mesh.axes])
