"""Hints about automatic axes inside of a region, from devices to axes of the module's mesh.

    custom_call @Sharding(%x) {backend_config = "unspecified_dims=[1]",
        mhlo.sharding = "{devices=[2,1,4]<=[4,2]T(1,0) last_tile_dims={manual}}"}
    sdy.sharding_constraint %x <@mesh, [{"axis_1"}, {?}]>

`export/hints.py` writes the former of the latter. A hint that is not a product of
axes stays as it is.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import sdy

from ..ir.collective_ops import REDUCING, call_target
from ..ir.find_ops import find_ops
from ..ir.mesh import Mesh
from ..ir.ops import defining_op
from .hlo_sharding import read_hlo_sharding
from .outside_ops import inner_ops, is_hint
from .placement import Placement
from .sharding_calls import ENTERS, LEAVES, sharding_text

_UNSPECIFIED = re.compile(r"unspecified_dims=\[([\d,]*)\]")


def erase_hints_in_reductions(root: ir.Operation) -> None:
    """Erases the hints about scalars by which JAX hides how collectives combine values."""
    for collective in find_ops(root, REDUCING):
        for op in inner_ops(collective):
            if is_hint(op):
                op.results[0].replace_all_uses_with(op.operands[0])
                op.erase()


def name_hints(calls: Iterable[ir.Operation], mesh: Mesh, manual: Sequence[str]) -> None:
    """Rewrites those of `calls` that are hints in a region which is manual along some axes."""
    for op in calls:
        if call_target(op) != "Sharding" or _is_at_border(op):
            continue
        placement = _placement(op, mesh, manual)
        if placement is None:
            continue
        text = ir.StringAttr(op.attributes["backend_config"]).value if _is_text(op) else ""
        found = _UNSPECIFIED.search(text)
        left = {int(k) for k in found[1].split(",") if k} if found else set()
        dims = [
            sdy.DimensionShardingAttr.get(
                [sdy.AxisRefAttr.get(axis) for axis in axes], is_closed=k not in left
            )
            for k, axes in enumerate(placement.dims)
        ]
        with ir.InsertionPoint(op), op.location:
            sharding = sdy.TensorShardingAttr.get(mesh.symbol, dims)
            constraint = sdy.ShardingConstraintOp(op.operands[0], sharding)
        op.results[0].replace_all_uses_with(constraint.result)
        op.erase()


def name_meshes_of_hints(ops: Iterable[ir.Operation], mesh: Mesh) -> None:
    """Names the mesh of the module in constraints that hold an equal one."""
    for op in ops:
        sharding = sdy.TensorShardingAttr(op.attributes["sharding"])
        inline = sharding.mesh_or_ref
        if sdy.MeshAttr.isinstance(inline) and _axes(sdy.MeshAttr(inline)) == mesh.axes:
            parts = list(sharding.dimension_shardings), list(sharding.replicated_axes)
            if not list(sharding.unreduced_axes):
                op.attributes["sharding"] = sdy.TensorShardingAttr.get(mesh.symbol, *parts)


def _axes(mesh: sdy.MeshAttr) -> tuple[tuple[str, int], ...]:
    if list(mesh.device_ids):
        return ()
    axes = (sdy.MeshAxisAttr(axis) for axis in mesh.axes)
    return tuple((axis.name, axis.size) for axis in axes)


def _is_at_border(op: ir.Operation) -> bool:
    """Whether the call belongs to a call around a region in the region."""
    source = defining_op(op.operands[0])
    near = [use.owner.operation for use in op.results[0].uses]
    return any(
        each.name == "stablehlo.custom_call" and call_target(each) in (ENTERS, LEAVES)
        for each in [*near, *([] if source is None else [source])]
    )


def _placement(op: ir.Operation, mesh: Mesh, manual: Sequence[str]) -> Placement | None:
    """How the block is split along automatic axes; None if the call does not say it."""
    text, type_ = sharding_text(op), op.results[0].type
    if text is None or not isinstance(type_, ir.RankedTensorType):
        return None
    sharding = read_hlo_sharding(text)
    if isinstance(sharding, str) or sharding.group("manual", mesh) != _in_order(manual, mesh):
        return None
    placement = sharding.placement(type_.rank, mesh)
    if placement is None or placement.unreduced.axes:
        return None
    return None if set(manual) & {axis for dim in placement.dims for axis in dim} else placement


def _in_order(axes: Sequence[str], mesh: Mesh) -> tuple[str, ...]:
    return tuple(axis for axis in mesh.names if axis in axes)


def _is_text(op: ir.Operation) -> bool:
    return isinstance(op.attributes.get("backend_config"), ir.StringAttr)
