"""Writes the mesh into every attribute that names it, and drops `sdy.mesh`.

A module of ours is often merged into the module of an enclosing `jit`, which has meshes of its own,
and merging moves functions only. A sharding that holds its mesh can go anywhere.

Before:  sdy.mesh @mesh = <["i"=4]>
         ... in_shardings=[<@mesh, [{"i"}]>]
         ... replica_group_mesh_axes<mesh = @mesh, axes = [...]>
After:   ... in_shardings=[<mesh<["i"=4]>, [{"i"}]>]
         ... replica_group_mesh_axes<mesh = #stablehlo.mesh<axes=[<name = "i", size = 4>]>, ...>
Needs:   at most one mesh per name, which MLIR's symbol tables assure.
Leaves:  no `sdy.mesh` and no reference to one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from jaxlib.mlir import ir, passmanager
from jaxlib.mlir.dialects import sdy, stablehlo
from jaxlib.mlir.dialects.builtin import ModuleOp

from .base import Pass, Problem
from .support.collective_ops import GROUPED, GROUPS
from .support.find_ops import find_ops


@dataclass(frozen=True)
class InlineMeshes(Pass):
    """Writes the mesh into every attribute that names it, and drops `sdy.mesh`."""

    name = "shmap-inline-meshes"
    ends_body_form = True

    def add_to(
        self,
        manager: passmanager.PassManager,
        refused: list[Problem],
        before: Pass | None = None,
    ) -> None:
        """StableHLO's groups are written by `run`, and then the rest by Shardy's own pass."""
        super().add_to(manager, refused, before)
        manager.add("sdy-inline-meshes")

    def run(self, module: ModuleOp) -> None:
        meshes = {
            ir.StringAttr(op.sym_name).value: _stablehlo_mesh(op.mesh)
            for op in module.body.operations
            if isinstance(op, sdy.MeshOp)
        }
        for op in find_ops(module.operation, GROUPED):
            op.attributes[GROUPS] = _with_mesh(op.attributes[GROUPS], meshes)


def _with_mesh(groups: ir.Attribute, meshes: Mapping[str, ir.Attribute]) -> ir.Attribute:
    """Replica groups with the mesh in place of its symbol; others as they are."""
    if not stablehlo.ReplicaGroupMeshAxesAttr.isinstance(groups):
        return groups
    groups = stablehlo.ReplicaGroupMeshAxesAttr(groups)
    if not isinstance(groups.mesh, ir.FlatSymbolRefAttr):
        return groups
    return stablehlo.ReplicaGroupMeshAxesAttr.get(meshes[groups.mesh.value], groups.axes)


def _stablehlo_mesh(mesh: ir.Attribute) -> ir.Attribute:
    """Shardy's mesh in StableHLO's own words."""
    axes = (sdy.MeshAxisAttr(axis) for axis in sdy.MeshAttr(mesh).axes)
    return stablehlo.MeshAttr.get(
        ir.ArrayAttr.get([stablehlo.MeshAxisAttr.get(axis.name, axis.size) for axis in axes])
    )
