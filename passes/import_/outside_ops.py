"""Which ops on full arrays each device can do on its blocks, and which have effects."""

from __future__ import annotations

from jaxlib.mlir import ir

from ..ir.collective_ops import COLLECTIVES, call_target
from ..ir.constants import CONSTANT, is_splat
from ..ir.ops import defining_op, walk
from ..ir.types import Value

CONTROL_FLOW = frozenset({"stablehlo.while", "stablehlo.if", "stablehlo.case"})
_PER_DEVICE = frozenset({"stablehlo.partition_id", "stablehlo.replica_id"})
_EFFECTS = frozenset(f"stablehlo.{name}" for name in ("infeed", "outfeed", "send", "recv", "rng"))
MOVES_PIECES = frozenset(
    f"sdy.{name}" for name in ("all_gather", "all_slice", "all_to_all", "collective_permute")
)
"""Collectives of Shardy's that do not change a full array."""
_TO_SUMMANDS = ("sharded_to_unreduced", "replicated_to_unreduced")
SUMS = frozenset(f"sdy.{name}" for name in ("all_reduce", "reduce_scatter", *_TO_SUMMANDS))
"""Those that sum an array of which each device holds a summand, or make such an array."""
_HINTS = MOVES_PIECES | {"sdy.sharding_constraint", "sdy.reshard"}


def is_hint(op: ir.Operation) -> bool:
    """Whether an op only says how its operand should be split."""
    if op.name in _HINTS:
        return True
    return op.name == "stablehlo.custom_call" and call_target(op) == "Sharding"


def inner_ops(op: ir.Operation) -> list[ir.Operation]:
    return walk(op)[1:] if len(op.regions) else []


def all_operands(op: ir.Operation) -> list[Value]:
    """The operands of an op, and of the ops inside it."""
    return [*op.operands, *(value for inner in inner_ops(op) for value in inner.operands)]


def has_effect(op: ir.Operation) -> bool:
    return any(_acts(each) for each in [op, *inner_ops(op)])


def _acts(op: ir.Operation) -> bool:
    if op.name == "stablehlo.custom_call" and "has_side_effect" in op.attributes:
        return ir.BoolAttr(op.attributes["has_side_effect"]).value
    acts = _EFFECTS | COLLECTIVES | _PER_DEVICE | SUMS
    return op.name in acts


def rank(value: Value) -> int:
    return ir.RankedTensorType(value.type).rank


def shape(value: Value) -> list[int] | None:
    type_ = value.type
    return list(type_.shape) if isinstance(type_, ir.RankedTensorType) else None


def is_dead(op: ir.Operation) -> bool:
    return not has_effect(op) and not any(list(result.uses) for result in op.results)


def splat(value: Value) -> ir.Operation | None:
    """The op that makes a constant with equal elements, of any shape; None for other values."""
    op = defining_op(value)
    if op is None:
        return None
    if op.name == CONSTANT:
        return op if is_splat(op) else None
    if op.name == "stablehlo.broadcast_in_dim" and not rank(op.operands[0]):
        return op
    return None
