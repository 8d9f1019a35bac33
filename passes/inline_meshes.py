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

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import sdy, stablehlo
from jaxlib.mlir.dialects.builtin import ModuleOp

from .base import Pass
from .support.body_form import walk

# Where Shardy and StableHLO keep shardings and groups. Looking only here spares a scan of every
# attribute of every op.
_HOLDERS = (
    "sdy.sharding",
    "sharding",
    "in_shardings",
    "out_shardings",
    "out_sharding",
    "arg_attrs",
    "res_attrs",
    "replica_groups",
)


@dataclass(frozen=True)
class InlineMeshes(Pass):
    """Writes the mesh into every attribute that names it, and drops `sdy.mesh`."""

    name = "shmap-inline-meshes"

    def run(self, module: ModuleOp) -> None:
        ops = walk(module.operation)
        declarations = [op for op in ops if op.name == "sdy.mesh"]
        meshes = {
            ir.StringAttr(op.attributes["sym_name"]).value: op.attributes["mesh"]
            for op in declarations
        }
        inlined = _Inlined(meshes)
        for op in ops:
            attributes = op.attributes
            # Most ops have none, and this runs at every lowering.
            for name in _HOLDERS if len(attributes) else ():
                if name in attributes:
                    attributes[name] = inlined[attributes[name]]
        for op in declarations:
            op.erase()


class _Inlined(dict[ir.Attribute, ir.Attribute]):
    """An attribute -> the same with each mesh symbol in it replaced by the mesh.

    Made once each: hundreds of arguments have few different shardings.
    """

    def __init__(self, meshes: Mapping[str, ir.Attribute]):
        self.meshes = meshes

    def __missing__(self, attribute: ir.Attribute) -> ir.Attribute:
        self[attribute] = found = self._inline(attribute)
        return found

    def _inline(self, attribute: ir.Attribute) -> ir.Attribute:
        if isinstance(attribute, ir.ArrayAttr):
            return ir.ArrayAttr.get([self[element] for element in attribute])
        if isinstance(attribute, ir.DictAttr):
            return ir.DictAttr.get({named.name: self[named.attr] for named in attribute})
        if sdy.TensorShardingPerValueAttr.isinstance(attribute):
            shardings = sdy.TensorShardingPerValueAttr(attribute).shardings
            return sdy.TensorShardingPerValueAttr.get([self[each] for each in shardings])
        return _with_mesh(attribute, self.meshes)


def _with_mesh(attribute: ir.Attribute, meshes: Mapping[str, ir.Attribute]) -> ir.Attribute:
    """A sharding or replica groups with the mesh in place of its symbol; others as they are."""
    if sdy.TensorShardingAttr.isinstance(attribute):
        sharding = sdy.TensorShardingAttr(attribute)
        return sdy.TensorShardingAttr.get(
            _mesh_of(sharding.mesh_or_ref, meshes),
            list(sharding.dimension_shardings),
            list(sharding.replicated_axes),
            list(sharding.unreduced_axes),
        )
    if stablehlo.ReplicaGroupMeshAxesAttr.isinstance(attribute):
        groups = stablehlo.ReplicaGroupMeshAxesAttr(attribute)
        mesh = groups.mesh
        if isinstance(mesh, ir.FlatSymbolRefAttr):
            mesh = _stablehlo_mesh(meshes[mesh.value])
        return stablehlo.ReplicaGroupMeshAxesAttr.get(mesh, groups.axes)
    return attribute


def _mesh_of(mesh_or_ref: ir.Attribute, meshes: Mapping[str, ir.Attribute]) -> ir.Attribute:
    if isinstance(mesh_or_ref, ir.FlatSymbolRefAttr):
        return meshes[mesh_or_ref.value]
    return mesh_or_ref


def _stablehlo_mesh(mesh: ir.Attribute) -> ir.Attribute:
    """Shardy's mesh in StableHLO's own words."""
    axes = (sdy.MeshAxisAttr(axis) for axis in sdy.MeshAttr(mesh).axes)
    return stablehlo.MeshAttr.get(
        ir.ArrayAttr.get([stablehlo.MeshAxisAttr.get(axis.name, axis.size) for axis in axes])
    )
