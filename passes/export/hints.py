"""Hints about automatic axes inside of the body, in the form of one partitioner or the other.

    sdy.sharding_constraint %x <@mesh, [{"j"}, {?}]>                                       Shardy
    custom_call @Sharding(%x) {mhlo.sharding = "{devices=[2,1,4]<=... last_tile_dims={manual}}",
                               backend_config = "unspecified_dims=[1]"}                    GSPMD

JAX emits hints for the partitioner that it lowers for. A module that was imported may be exported
for the other one: GSPMD aborts on values without hints, and Shardy is not run if a module has
custom calls for GSPMD.
"""

from __future__ import annotations

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import sdy

from ..ir.body_form import BodyForm
from ..ir.collective_ops import call_target
from ..ir.find_ops import find_ops
from ..ir.sharding_text import full_sharding, region_sharding
from .sharding_calls import sharding_call

CONSTRAINT = "sdy.sharding_constraint"


def convert_hints(root: ir.Operation, form: BodyForm, partitioner: str) -> None:
    """Rewrites the hints of the other partitioner, which say nothing without automatic axes."""
    if partitioner == "gspmd":
        for op in find_ops(root, [CONSTRAINT]):
            hint_for_gspmd(op, form)
    elif form.is_partly_manual:
        for op in find_ops(root, ["stablehlo.custom_call"]):
            if call_target(op) == "Sharding" and len(op.operands) == len(op.results) == 1:
                _to_shardy(op, form)


def hint_for_gspmd(op: ir.Operation, form: BodyForm) -> None:
    """Rewrites a hint; one about axes of another mesh, or about parts of axes, is dropped."""
    sharding = sdy.TensorShardingAttr(op.attributes["sharding"])
    dims = [sdy.DimensionShardingAttr(dim) for dim in sharding.dimension_shardings]
    refs = [[sdy.AxisRefAttr(axis) for axis in dim.axes] for dim in dims]
    axes = [[ref.name for ref in dim] for dim in refs]
    named = [axis for dim in axes for axis in dim]
    value = op.operands[0]
    is_known = form.is_partly_manual and all(axis in form.automatic for axis in named)
    if is_known and all(ref.sub_axis_info is None for dim in refs for ref in dim):
        unspecified = [k for k, dim in enumerate(dims) if not dim.is_closed]
        config = f"unspecified_dims=[{','.join(map(str, unspecified))}]" if unspecified else ""
        text = full_sharding(form.mesh, axes, form.region)
        with ir.InsertionPoint(op), op.location:
            value = sharding_call("Sharding", value, value.type, text, config)
    op.results[0].replace_all_uses_with(value)
    op.erase()


def _to_shardy(op: ir.Operation, form: BodyForm) -> None:
    """Hints that leave every dimension to the partitioner; others stay."""
    type_ = op.results[0].type
    if not isinstance(type_, ir.RankedTensorType) or "mhlo.sharding" not in op.attributes:
        return
    text = ir.StringAttr.get(region_sharding(form.mesh, type_.rank, form.region))
    if op.attributes["mhlo.sharding"] != text:
        return
    dims = [sdy.DimensionShardingAttr.get([], is_closed=False) for _ in range(type_.rank)]
    with ir.InsertionPoint(op), op.location:
        constraint = sdy.ShardingConstraintOp(
            op.operands[0], sdy.TensorShardingAttr.get(form.mesh.symbol, dims)
        )
    op.results[0].replace_all_uses_with(constraint.result)
    op.erase()
