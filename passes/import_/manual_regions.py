"""The meshes and shardings of `sdy.manual_computation`, whose meshes must be inlined."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import func, sdy
from jaxlib.mlir.dialects.builtin import ModuleOp

from ..base import PassRefused, Violation
from ..ir.boundary import SHARDING, Unreduced, value_attributes
from ..ir.mesh import Mesh
from ..ir.ops import is_token
from ..ir.types import Value
from ..ir.unverified import manual_axes
from .body_of import free_symbol
from .placement import Placement


def common_mesh(module: ModuleOp, regions: Sequence[ir.Operation]) -> tuple[Mesh, tuple[str, ...]]:
    """The mesh and the manual axes of all regions."""
    violations: list[Violation] = []
    found: dict[tuple[Mesh, tuple[str, ...]], ir.Operation] = {}
    for region in regions:
        meshes = {sharding.mesh_or_ref for sharding in _shardings(region)}
        axes = manual_axes(region.attributes["manual_axes"]) or ()
        complaint = "; ".join(filter(None, map(_mesh_complaint, meshes)))
        if not meshes:
            complaint = "takes and returns nothing, so it is on no mesh; remove it"
        if complaint:
            violations.append(Violation(region.location, f"the region {complaint}"))
            continue
        for mesh in meshes:
            found.setdefault((_mesh(mesh), axes), region)
    if not violations and len(found) > 1:
        (one, _), *others = found.items()
        violations += [
            Violation(
                region.location,
                f"the region is on {mesh} with manual axes {_quoted(axes)}, and another on "
                f"{one[0]} with {_quoted(one[1])}; a module in body form has one mesh and one set "
                "of manual axes: import them one at a time",
            )
            for (mesh, axes), region in others
        ]
    if violations:
        raise PassRefused(violations)
    ((mesh, axes),) = found
    return Mesh(free_symbol(module, mesh.symbol), mesh.axes), axes


def _mesh_complaint(mesh: ir.Attribute) -> str:
    if not sdy.MeshAttr.isinstance(mesh):
        return f"is on the mesh {mesh}, which the module does not declare; declare it with sdy.mesh"
    if not list(sdy.MeshAttr(mesh).axes):
        return (
            f"is on {mesh}, a mesh without axes: it runs on one device, and nothing of it is per "
            "device; take it out of the region"
        )
    if list(sdy.MeshAttr(mesh).device_ids):
        return (
            f"is on {mesh}, which lists device ids; devices are positions in the mesh in body "
            "form: leave the ids to whoever places the program"
        )
    return ""


def _mesh(attribute: ir.Attribute) -> Mesh:
    axes = (sdy.MeshAxisAttr(axis) for axis in sdy.MeshAttr(attribute).axes)
    return Mesh("mesh", tuple((axis.name, axis.size) for axis in axes))


def _shardings(region: ir.Operation) -> list[sdy.TensorShardingAttr]:
    return [*_per_value(region, "in_shardings"), *_per_value(region, "out_shardings")]


def _per_value(region: ir.Operation, name: str) -> list[sdy.TensorShardingAttr]:
    shardings = sdy.TensorShardingPerValueAttr(region.attributes[name]).shardings
    return [sdy.TensorShardingAttr(each) for each in shardings]


def _placement(sharding: sdy.TensorShardingAttr, manual: Sequence[str]) -> Placement | str:
    """How a sharding splits over the manual axes, or why it cannot be read.

    What it says about automatic axes is a hint to the partitioner.
    """
    refs = [
        [sdy.AxisRefAttr(axis) for axis in sdy.DimensionShardingAttr(dim).axes]
        for dim in sharding.dimension_shardings
    ]
    unreduced = [sdy.AxisRefAttr(axis) for axis in sharding.unreduced_axes]
    parts = [
        ref.name
        for ref in (*(ref for dim in refs for ref in dim), *unreduced)
        if ref.sub_axis_info is not None and ref.name in manual
    ]
    if parts:
        return f"is split over part of axis {_quoted(parts)}; only whole axes can be manual"
    axes = tuple(ref.name for ref in unreduced)
    reduction = getattr(sharding, "reduction_op", None) if axes else None
    dims = tuple(tuple(ref.name for ref in dim if ref.name in manual) for dim in refs)
    return Placement(dims, Unreduced(axes, reduction))


def hints_of(main: func.FuncOp, mesh: Mesh, manual: Sequence[str]) -> dict[Value, Placement]:
    """How the arguments of @main are split where no region says it."""
    found: dict[Value, Placement] = {}
    arguments = list(main.entry_block.arguments)
    attributes = value_attributes(main, "arg_attrs", len(arguments))
    for argument, named in zip(arguments, attributes, strict=True):
        if SHARDING not in named or is_token(argument.type):
            continue
        sharding = sdy.TensorShardingAttr(named[SHARDING])
        placement = _placement(sharding, manual)
        on_mesh = sdy.MeshAttr.isinstance(sharding.mesh_or_ref)
        if (
            isinstance(placement, Placement)
            and on_mesh
            and _mesh(sharding.mesh_or_ref).axes == mesh.axes
            and placement.block_type(argument.type, mesh) is not None
        ):
            found[argument] = placement
    return found


def placements(
    region: ir.Operation,
    name: str,
    kind: str,
    blocks: Iterable[Value],
    manual: Sequence[str],
    violations: list[Violation],
) -> list[Placement | None]:
    found: list[Placement | None] = []
    shardings = _per_value(region, name)
    for k, (value, sharding) in enumerate(zip(blocks, shardings, strict=True)):
        placement = None if is_token(value.type) else _placement(sharding, manual)
        if isinstance(placement, str):
            violations.append(Violation(region.location, f"{kind} {k} of the region {placement}"))
            placement = None
        found.append(placement)
    return found


def _quoted(axes: Sequence[str]) -> str:
    return ", ".join(f'"{axis}"' for axis in axes) or "none"
