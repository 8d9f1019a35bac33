"""Inlines the mesh into every attribute that names it, and removes `sdy.mesh`.

The module is often inlined into the module of an enclosing `jit`, which has meshes of its own, and
only functions are moved. A sharding with an inline mesh is valid anywhere.

Before:  sdy.mesh @mesh = <["i"=4]>
         ... in_shardings=[<@mesh, [{"i"}]>]
         ... replica_group_mesh_axes<mesh = @mesh, axes = [...]>
After:   ... in_shardings=[<mesh<["i"=4]>, [{"i"}]>]
         ... replica_group_mesh_axes<mesh = #stablehlo.mesh<axes=[<name = "i", size = 4>]>, ...>
Needs:   a body for each function, and at most one mesh per name, which MLIR's symbol tables
         guarantee.
Leaves:  no `sdy.mesh` and no reference to one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from jaxlib.mlir import ir, passmanager
from jaxlib.mlir.dialects import func, sdy, stablehlo
from jaxlib.mlir.dialects.builtin import ModuleOp

from ..base import Pass, PassRefused, Violation
from ..ir.body_form import read_mesh
from ..ir.collective_ops import GROUPED, GROUPS, group_axes
from ..ir.find_ops import find_ops
from ..ir.memoize import memoized


@dataclass(frozen=True)
class InlineMeshes(Pass):
    """Inlines the mesh into every attribute that names it, and removes `sdy.mesh`."""

    name = "shmap-inline-meshes"
    code = "SHM-P12"
    keeps_bits = True
    ends_body_form = True

    def add_to(
        self,
        manager: passmanager.PassManager,
        refused: list[Violation],
        before: Pass | None = None,
    ) -> None:
        """StableHLO's groups are written by `run`, and then the rest by Shardy's own pass."""
        super().add_to(manager, refused, before)
        manager.add("sdy-inline-meshes")

    def run(self, module: ModuleOp) -> None:
        declared = [
            op for op in module.body.operations if isinstance(op, func.FuncOp) and op.is_external
        ]
        if declared:  # Shardy's pass ends the process at them.
            raise PassRefused(
                Violation(op.location, f"@{op.name.value} has no body; define it, or remove it")
                for op in declared
            )
        grouped = [
            (op, symbol)
            for op in find_ops(module.operation, GROUPED)
            if (symbol := _symbol(op.attributes[GROUPS]))
        ]
        if not grouped:
            return
        ops = [op for op in module.body.operations if isinstance(op, sdy.MeshOp)]
        meshes = {ir.StringAttr(op.sym_name).value: _stablehlo_mesh(op.mesh) for op in ops}
        axes_of = {mesh.symbol: mesh.names for mesh in map(read_mesh, ops)}
        violations = [
            Violation(
                op.location,
                f"the groups are on mesh @{symbol}, which the module lacks; {_have(meshes)}",
            )
            for op, symbol in grouped
            if symbol not in meshes
        ]
        violations += [
            Violation(
                op.location,
                f'the groups are over axis "{axis}", which @{symbol} lacks; name one of its axes',
            )
            for op, symbol in grouped
            for axis in (group_axes(op) or ())
            if symbol in axes_of and axis not in axes_of[symbol]
        ]
        if violations:
            raise PassRefused(violations)
        for op, symbol in grouped:
            op.attributes[GROUPS] = _on_mesh(op.attributes[GROUPS], meshes[symbol])


@memoized
def _on_mesh(groups: ir.Attribute, mesh: ir.Attribute) -> ir.Attribute:
    """The groups over the same axes of `mesh`."""
    axes = stablehlo.ReplicaGroupMeshAxesAttr(groups).axes
    return stablehlo.ReplicaGroupMeshAxesAttr.get(mesh, axes)


@memoized
def _symbol(groups: ir.Attribute) -> str | None:
    """The symbol of the mesh by whose axes groups are named, if they have one."""
    if not stablehlo.ReplicaGroupMeshAxesAttr.isinstance(groups):
        return None
    mesh = stablehlo.ReplicaGroupMeshAxesAttr(groups).mesh
    return mesh.value if isinstance(mesh, ir.FlatSymbolRefAttr) else None


def _have(meshes: Mapping[str, ir.Attribute]) -> str:
    names = ", ".join(f"@{name}" for name in meshes)
    return f"name one of {names}" if names else "declare it with sdy.mesh"


def _stablehlo_mesh(mesh: ir.Attribute) -> ir.Attribute:
    """Converts a mesh of Shardy's to StableHLO's attribute."""
    axes = (sdy.MeshAxisAttr(axis) for axis in sdy.MeshAttr(mesh).axes)
    ids = np.array(list(sdy.MeshAttr(mesh).device_ids), np.int64)
    return stablehlo.MeshAttr.get(
        ir.ArrayAttr.get([stablehlo.MeshAxisAttr.get(axis.name, axis.size) for axis in axes]),
        ir.DenseElementsAttr.get(ids.data) if len(ids) else None,
    )
