"""Combines neighboring small all_reduces into one all_reduce of the concatenated values.

The cost of a small all_reduce is its latency. Programs often compute several small sums in a row:
losses, counts, norms.

Before:  %1 = "stablehlo.all_reduce"(%a) <{... axes = ["i"]}> ({ add })    // tensor<f32>
         %2 = "stablehlo.all_reduce"(%b) <{... axes = ["i"]}> ({ add })    // tensor<2x2xf32>
After:   %0 = stablehlo.concatenate %a, %b, dim = 0                        // flat: tensor<5xf32>
         %3 = "stablehlo.all_reduce"(%0) <{... axes = ["i"]}> ({ add })
         %1 = stablehlo.slice %3 [0:1]                                     // and their shapes back
         %2 = stablehlo.slice %3 [1:5]
Needs:   to run after every pass that matches all_reduces.
Leaves:  of neighboring all_reduces over the same axes, of one reduction and element type, as few
         as buffers of `limit` bytes allow. The axes may be in another order for integers, whose sum
         is the same in any order. Those with frontend attributes (passes/ir/instructions.py) and
         those of unknown size stay.

Neighbors have no other collective, no call, loop or branch between them, and the results of the
earlier ones are not used before the last, so no value is delayed. Values larger than `limit` are
not combined: the copies before and after would cost more than the latency. XLA itself combines
large neighbors, into one all_reduce of several operands (on CPU, neighbors of any size, so both
ways end in one all-reduce). A module cannot contain such an all_reduce: XLA rejects it inside a
manual region, in both partitioner forms, as of jaxlib 0.10.2 and 0.12.0.1. If some axes are
automatic, nothing is combined: values with different shardings over those axes would have to be
resharded first.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo
from jaxlib.mlir.dialects.builtin import ModuleOp

from ..base import Count, Pass
from ..ir.body_form import read_body_form
from ..ir.collective_ops import (
    ALL_REDUCE,
    CHANNEL_HANDLE,
    COLLECTIVES,
    collectives_of,
    depends_on_order,
    is_axis_index,
    reduction,
    whole_axes,
)
from ..ir.find_ops import find_ops
from ..ir.instructions import has_instructions
from ..ir.types import Value

# Ops that may hold collectives or have effects.
_END_OF_RUN = COLLECTIVES | {
    "func.call",
    "sdy.manual_computation",
    "stablehlo.case",
    "stablehlo.composite",
    "stablehlo.custom_call",
    "stablehlo.if",
    "stablehlo.infeed",
    "stablehlo.outfeed",
    "stablehlo.recv",
    "stablehlo.send",
    "stablehlo.while",
}


@dataclass(frozen=True)
class CombineAllReduces(Pass):
    """Combines neighboring small all_reduces into one all_reduce of the concatenated values."""

    name = "shmap-combine-all-reduces"
    code = "SHM-P09"
    keeps_bits = True
    needs_body_form = True

    limit: Count = 1024

    def run(self, module: ModuleOp) -> bool:
        small = [op for op in collectives_of(module) if _end(op, self.limit).kind is not None]
        if len(small) < 2:
            return False
        if read_body_form(module).is_partly_manual:
            return False
        ends = [
            _end(op, self.limit)
            for op in find_ops(module.operation, _END_OF_RUN)
            if not is_axis_index(op)
        ]
        by_block: dict[ir.Block, list[_End]] = {}
        for end in ends:
            by_block.setdefault(end.op.block, []).append(end)
        for ends in by_block.values():
            for run in _runs(ends, self.limit):
                _combine([end.op for end in run])
        return True


@dataclass(frozen=True)
class _End:
    """What may end a run: an all_reduce that may also belong to one, or something else.

    Attributes:
      kind: equal for all_reduces that can be combined; None for what cannot be.
      bytes: the size of its result, if it can be combined.
    """

    op: ir.Operation
    kind: Hashable | None = None
    bytes: int = 0


def _end(op: ir.Operation, limit: int) -> _End:
    if op.name != ALL_REDUCE or CHANNEL_HANDLE in op.attributes:
        return _End(op)
    if not _type(op.results[0]).has_static_shape or _bytes(op) > limit:
        return _End(op)
    kind = None if has_instructions(op) else _kind(op)
    return _End(op) if kind is None else _End(op, kind, _bytes(op))


def _kind(op: ir.Operation) -> Hashable | None:
    axes, combine, element = whole_axes(op), reduction(op), _type(op.results[0]).element_type
    if axes is None or combine is None or _bits(element) is None:
        return None
    return axes if depends_on_order(op) else frozenset(axes), combine, element


def _type(value: Value) -> ir.RankedTensorType:
    return ir.RankedTensorType(value.type)


def _elements(op: ir.Operation) -> int:
    return math.prod(_type(op.results[0]).shape)


def _bits(element: ir.Type) -> int | None:
    return element.width if isinstance(element, ir.IntegerType | ir.FloatType) else None


def _bytes(op: ir.Operation) -> int:
    return _elements(op) * (_bits(_type(op.results[0]).element_type) or 0) // 8


def _runs(ends: Sequence[_End], limit: int) -> list[list[_End]]:
    """Those of `ends`, all in one block, that can be combined: two or more each."""
    runs: list[list[_End]] = [[]]
    for end in ends:
        if not _joins(end, runs[-1], limit):
            runs.append([])
        if end.kind is not None:
            runs[-1].append(end)
    return [run for run in runs if len(run) > 1]


def _joins(end: _End, run: Sequence[_End], limit: int) -> bool:
    if not run or end.kind != run[0].kind:
        return False
    return sum(e.bytes for e in (*run, end)) <= limit and not _is_wanted_before(end.op, run)


def _is_wanted_before(op: ir.Operation, run: Sequence[_End]) -> bool:
    """Whether `op`, or something before it, uses a result of the run."""
    users = (use.owner.operation for each in run for use in each.op.results[0].uses)
    return any(not op.is_before_in_block(_ancestor_in(op.block, user)) for user in users)


def _ancestor_in(block: ir.Block, op: ir.Operation) -> ir.Operation:
    """The op of `block` that is or holds `op`."""
    return op if op.block == block else _ancestor_in(block, op.block.owner.operation)


def _combine(run: Sequence[ir.Operation]) -> None:
    """One all_reduce at the place of the last."""
    last = run[-1]
    sizes = [_elements(op) for op in run]
    with ir.InsertionPoint(last), last.location:
        flat = [
            stablehlo.reshape(_flat(op.results[0], size), op.operands[0])
            for op, size in zip(run, sizes, strict=True)
        ]
        together = stablehlo.concatenate(flat, 0)
        combined = ir.Operation.create(
            ALL_REDUCE,
            results=[together.type],
            operands=[together],
            attributes={name: last.attributes[name] for name in last.attributes},
            regions=1,
        )
        last.regions[0].blocks[0].append_to(combined.regions[0])
        start = 0
        for op, size in zip(run, sizes, strict=True):
            part = stablehlo.slice(combined.results[0], [start], [start + size], [1])
            result = stablehlo.reshape(op.results[0].type, part)
            op.results[0].replace_all_uses_with(result)
            start += size
    for op in run:
        op.erase()


def _flat(value: Value, size: int) -> ir.Type:
    return ir.RankedTensorType.get([size], _type(value).element_type)
