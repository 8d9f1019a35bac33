"""Shardy's own collectives in a module that is simulated.

Those that move pieces of full arrays do not change them. An `sdy.all_reduce` over manual axes adds
the blocks of a region, as StableHLO's does. One over other axes, or a `sdy.reduce_scatter`, adds
the summands that devices hold of an array: the whole array, as it is simulated, is their sum. That
they hold summands is written in the sharding of the operand, or follows from an operation that
contracts a dimension that is split.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import func, sdy, stablehlo
from shmap_passes.import_.outside_ops import MOVES_PIECES, SUMS
from shmap_passes.import_.shardy_collectives import named_axes, reduce_blocks
from shmap_passes.ir.body_form import MANUAL_AXES
from shmap_passes.ir.boundary import SHARDING, value_attributes
from shmap_passes.ir.mesh import Mesh
from shmap_passes.ir.ops import defining_op, walk
from shmap_passes.ir.types import Value
from shmap_passes.ir.unverified import manual_axes

_CONTRACTS = frozenset(
    f"stablehlo.{name}" for name in ("convolution", "dot", "dot_general", "gather", "reduce")
)
_TO_SUMMANDS = frozenset({"sdy.sharded_to_unreduced", "sdy.replicated_to_unreduced"})


def resolve_shardy_collectives(module: ir.Operation, mesh: Mesh) -> None:
    """Rewrites or erases Shardy's collectives; those that stay cannot be simulated."""
    for op in [op for op in walk(module) if op.name in MOVES_PIECES | SUMS]:
        axes, parts = named_axes(op)
        manual = set(_manual_axes(op))
        if op.name == "sdy.all_reduce" and axes and set(axes) <= manual and not parts:
            refs = ir.ArrayAttr.get([stablehlo.AxisRefAttr.get(axis) for axis in axes])
            reduce_blocks(op, stablehlo.ReplicaGroupMeshAxesAttr.get(_attribute(mesh), refs))
        elif not set(axes) & manual and (
            op.name in MOVES_PIECES | _TO_SUMMANDS or _holds_summands(op.operands[0], axes)
        ):
            op.results[0].replace_all_uses_with(op.operands[0])
            op.erase()


def _manual_axes(op: ir.Operation) -> Iterator[str]:
    """The axes that are manual where an op is, as far as its function says it."""
    parent = op.parent
    while parent is not None:
        if parent.operation.name == "sdy.manual_computation":
            yield from manual_axes(parent.operation.attributes["manual_axes"]) or ()
        if parent.operation.name == "func.func" and MANUAL_AXES in parent.operation.attributes:
            yield from manual_axes(parent.operation.attributes[MANUAL_AXES]) or ()
        parent = parent.operation.parent


def _holds_summands(value: Value, axes: Sequence[str]) -> bool:
    """Whether devices along `axes` hold summands of a full array."""
    if set(axes) <= _unreduced(value):
        return True
    op = defining_op(value)
    if op is None or op.name not in _CONTRACTS:
        return False
    split = {axis for operand in op.operands for axis in _splitting(operand)}
    return set(axes) <= split


def _unreduced(value: Value) -> set[str]:
    sharding = _sharding(value)
    if sharding is None:
        return set()
    return {sdy.AxisRefAttr(axis).name for axis in sharding.unreduced_axes}


def _splitting(value: Value) -> set[str]:
    sharding = _sharding(value)
    if sharding is None:
        return set()
    dims = [sdy.DimensionShardingAttr(dim) for dim in sharding.dimension_shardings]
    return {sdy.AxisRefAttr(axis).name for dim in dims for axis in dim.axes}


def _sharding(value: Value) -> sdy.TensorShardingAttr | None:
    """The sharding that is written beside a value."""
    op = defining_op(value)
    if op is None:
        return _sharding_of_argument(ir.BlockArgument(value))
    for name in ("out_sharding", "sharding"):
        if op.name.startswith("sdy.") and name in op.attributes:
            return sdy.TensorShardingAttr(op.attributes[name])
    for name in ("out_shardings", SHARDING):
        if name in op.attributes and sdy.TensorShardingPerValueAttr.isinstance(op.attributes[name]):
            number = ir.OpResult(value).result_number
            listed = sdy.TensorShardingPerValueAttr(op.attributes[name]).shardings
            return sdy.TensorShardingAttr(listed[number])
    return None


def _sharding_of_argument(value: ir.BlockArgument[ir.Type]) -> sdy.TensorShardingAttr | None:
    owner = value.owner.owner
    if isinstance(owner, func.FuncOp):
        named = value_attributes(owner, "arg_attrs", len(owner.arguments))[value.arg_number]
        if SHARDING in named:
            return sdy.TensorShardingAttr(named[SHARDING])
    return None


def _attribute(mesh: Mesh) -> ir.Attribute:
    axes = [stablehlo.MeshAxisAttr.get(name, size) for name, size in mesh.axes]
    return stablehlo.MeshAttr.get(ir.ArrayAttr.get(axes), None)
