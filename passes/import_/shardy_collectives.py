"""Shardy's own collectives in the regions of a module that is imported.

Shardy writes `sdy.all_gather`, `sdy.all_reduce` and others when it makes explicit what its
partitioner will send. On full arrays, outside of regions, those that move pieces do not change the
array: each says how it is split from there on. In a region only an all_reduce can name manual axes;
Shardy rejects all others there, because they never change the type of their operand.

    sdy.all_reduce {"i"} %0 out_sharding=<@mesh, [{}]>           in a region, "i" manual
    stablehlo.all_reduce(%0) ... axes = ["i"], with an add       in body form; max and min alike
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from ..base import Violation
from ..ir.mesh import Mesh
from .name_groups import groups_over
from .outside_ops import MOVES_PIECES, SUMS

SHARDY_COLLECTIVES = MOVES_PIECES | SUMS
_REDUCTIONS = {0: "stablehlo.add", 1: "stablehlo.maximum", 2: "stablehlo.minimum"}
"""By `sdy.ReductionOp`."""


def to_stablehlo(ops: Iterable[ir.Operation], manual: Sequence[str], mesh: Mesh) -> list[Violation]:
    """Rewrites Shardy's collectives of regions over manual axes; returns those that have no form.

    Moves over automatic axes are left to the partitioner, as constraints, and sums over them stay.
    """
    violations: list[Violation] = []
    for op in ops:
        axes, parts = named_axes(op)
        if not set(axes) & set(manual):
            if op.name in MOVES_PIECES:
                _constrain(op)
            continue
        if parts or not set(axes) <= set(manual):
            text = (
                f"{op.name} is over {_quoted(axes)}, which are not whole manual axes; split it "
                "into one over whole manual axes and one over others"
            )
        else:
            reduce_blocks(op, groups_over(axes, mesh))
            continue
        violations.append(Violation(op.location, text))
    return violations


def _constrain(op: ir.Operation) -> None:
    with ir.InsertionPoint(op), op.location:
        made = ir.Operation.create(
            "sdy.sharding_constraint",
            results=[op.results[0].type],
            operands=[op.operands[0]],
            attributes={"sharding": op.attributes["out_sharding"]},
        )
    op.results[0].replace_all_uses_with(made.results[0])
    op.erase()


def named_axes(op: ir.Operation) -> tuple[tuple[str, ...], bool]:
    """The axes that an op names, and whether it names parts of some.

    The bindings read no lists of axes, but print them: `#sdy<axis_ref_list{"i", "j":(1)2}>`.
    """
    found: list[str] = []
    parts = False
    for named in (op.attributes[k] for k in range(len(op.attributes))):
        text = str(named.attr)
        if named.name not in ("out_sharding", "reduction_op"):
            found += re.findall(r'"([^"]*)"', text)
            parts = parts or '":(' in text
    return tuple(dict.fromkeys(found)), parts


def reduce_blocks(op: ir.Operation, groups: ir.Attribute) -> None:
    """Replaces an `sdy.all_reduce` over manual axes by StableHLO's, on these groups of devices."""
    value = op.operands[0]
    # An earlier Shardy knows sums only.
    kind = op.attributes.get("reduction_op")
    reduction = _REDUCTIONS[ir.IntegerAttr(kind).value if kind is not None else 0]
    with ir.InsertionPoint(op), op.location:
        scalar = ir.RankedTensorType.get([], ir.RankedTensorType(value.type).element_type)
        made = ir.Operation.create(
            "stablehlo.all_reduce",
            results=[value.type],
            operands=[value],
            attributes={"replica_groups": groups},
            regions=1,
        )
        with ir.InsertionPoint(made.regions[0].blocks.append(scalar, scalar)) as body:
            pair = list(body.block.arguments)
            combined = ir.Operation.create(reduction, results=[scalar], operands=pair)
            stablehlo.return_([combined.results[0]])
    op.results[0].replace_all_uses_with(made.results[0])
    op.erase()


def _quoted(axes: Sequence[str]) -> str:
    return ", ".join(f'"{axis}"' for axis in axes)
