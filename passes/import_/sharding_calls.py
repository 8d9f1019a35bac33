"""The custom calls at the boundary of a region, with the shardings that belong to each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import func

from ..base import PassRefused, Violation
from ..ir.boundary import value_attributes
from ..ir.collective_ops import call_target
from ..ir.find_ops import find_ops
from ..ir.ops import defining_op
from .hlo_sharding import HloSharding, read_hlo_sharding

ENTERS, LEAVES = "SPMDFullToShardShape", "SPMDShardToFullShape"
SHARDING = "mhlo.sharding"


@dataclass(frozen=True)
class ShardingCall:
    """`@SPMDFullToShardShape` or `@SPMDShardToFullShape`.

    Attributes:
      op: the call.
      enters: which of the two it is.
      full: how the full array is split.
      region: the sharding of the block, which says over which devices the region is manual; None
        if the module does not say.
      before: the `@Sharding` call whose result is the operand, if there is one.
    """

    op: ir.Operation
    enters: bool
    full: HloSharding
    region: HloSharding | None
    before: ir.Operation | None

    @property
    def is_nested(self) -> bool:
        """Whether the full array is a block of another region."""
        return self.full.is_in_region

    @property
    def shardings(self) -> list[HloSharding]:
        """Those whose digits must be products of axes."""
        return [self.full] if self.region is None else [self.full, self.region]


def read_calls(root: ir.Operation) -> list[ShardingCall]:
    """The calls inside `root`, inner before outer.

    Raises:
      PassRefused: some sharding is missing or cannot be read.
    """
    violations: list[Violation] = []
    found: list[ShardingCall] = []
    for op in find_ops(root, ["stablehlo.custom_call"]):
        target = call_target(op)
        if target not in (ENTERS, LEAVES):
            continue
        if not _is_unary(op):
            text = f"@{target} takes and gives one tensor of static shape"
            violations.append(Violation(op.location, text))
            continue
        enters = target == ENTERS
        before = _sharding_before(op)
        around = _read(_text_of_operand(op, before))
        own = _read(sharding_text(op))
        full, region = (around, own) if enters else (own, around)
        if not isinstance(full, HloSharding):
            what = "operand" if enters else "result"
            text = f"the sharding of @{target}'s {what} {full}; {_FIX}"
            violations.append(Violation(op.location, text))
            continue
        in_region = isinstance(region, HloSharding) and region.is_in_region
        found.append(
            ShardingCall(op, enters, full, region if in_region else None, before)  # type: ignore[arg-type]
        )
    if violations:
        raise PassRefused(violations)
    return found


_FIX = 'give it one as in mhlo.sharding = "{devices=[4,1,2]<=[8] last_tile_dim_replicate}"'


def _read(text: str | None) -> HloSharding | str:
    """A sharding, or what is wrong with it."""
    if text is None:
        return "is missing"
    sharding = read_hlo_sharding(text)
    return f'"{text}" {sharding}' if isinstance(sharding, str) else sharding


def sharding_text(op: ir.Operation) -> str | None:
    """The `mhlo.sharding` of an op."""
    if SHARDING not in op.attributes or not isinstance(op.attributes[SHARDING], ir.StringAttr):
        return None
    return ir.StringAttr(op.attributes[SHARDING]).value


def _is_unary(op: ir.Operation) -> bool:
    values: list[Any] = [*op.operands, *op.results]
    return len(op.operands) == len(op.results) == 1 and all(
        isinstance(value.type, ir.RankedTensorType) and value.type.has_static_shape
        for value in values
    )


def _sharding_before(op: ir.Operation) -> ir.Operation | None:
    source = defining_op(op.operands[0])
    if source is None or source.name != "stablehlo.custom_call":
        return None
    is_unary = call_target(source) == "Sharding" and _is_unary(source)
    return source if is_unary else None


def _text_of_operand(op: ir.Operation, before: ir.Operation | None) -> str | None:
    """The sharding of the operand: of the op that makes it, or of the argument that it is."""
    if before is not None:
        return sharding_text(before)
    source = defining_op(op.operands[0])
    if source is not None:
        return sharding_text(source)
    argument: Any = ir.BlockArgument(op.operands[0])
    function = argument.owner.owner
    if not isinstance(function, func.FuncOp):
        return None
    named = value_attributes(function, "arg_attrs", len(function.type.inputs))
    attributes = named[argument.arg_number]
    if SHARDING not in attributes or not isinstance(attributes[SHARDING], ir.StringAttr):
        return None
    return ir.StringAttr(attributes[SHARDING]).value
