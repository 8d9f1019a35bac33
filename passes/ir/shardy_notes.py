"""What Shardy writes into a module for itself and changes no value; it is removed before reading.

%1 = sdy.data_flow_edge %0, sdy.propagation_barrier %0          %0
%1 = sdy.named_computation<"f">(%0) (%b) { body }               the body, with %0 for %b
sdy.sharding_group %0 group_id=1                                nothing
sdy.constant dense<1.0>                                         stablehlo.constant dense<1.0>
{sdy.propagation_edges = ..., sdy.original_func_name = ...}     nothing
"""

from __future__ import annotations

import re

from jaxlib.mlir import ir

from .constants import for_stablehlo
from .find_ops import find_ops
from .ops import terminator, walk

_IDENTITIES = frozenset({"sdy.data_flow_edge", "sdy.propagation_barrier"})
_NAMED = "sdy.named_computation"
_CONSTANT = "sdy.constant"
_ATTRIBUTES = re.compile(
    r"sdy\.(\w*propagation_edges|\w*sharding_origin(s|_name)|origin_sharding\w*"
    r"|original_func_name|func_manual_axes)"
)


def erase_shardy_notes(root: ir.Operation) -> None:
    """Erases the notes inside `root`."""
    for op in find_ops(root, [*sorted(_IDENTITIES), _NAMED, _CONSTANT, "sdy.sharding_group"]):
        if op.name in _IDENTITIES:
            op.results[0].replace_all_uses_with(op.operands[0])
        elif op.name == _NAMED:
            inline_region(op)
        elif op.name == _CONSTANT:
            _write_for_stablehlo(op)
        op.erase()
    for op in walk(root):
        for name in list(op.attributes):
            if _ATTRIBUTES.fullmatch(name):
                del op.attributes[name]
        for which in ("arg_attrs", "res_attrs"):
            if op.name == "func.func" and which in op.attributes:
                op.attributes[which] = _without_notes(ir.ArrayAttr(op.attributes[which]))


def inline_region(op: ir.Operation) -> None:
    """Moves the ops of the only block of `op` before it, and replaces its results by theirs."""
    block = op.regions[0].blocks[0]
    end = terminator(block)
    for argument, operand in zip(list(block.arguments), list(op.operands), strict=True):
        argument.replace_all_uses_with(operand)
    for result, value in zip(list(op.results), list(end.operands), strict=True):
        result.replace_all_uses_with(value)
    for view in list(block.operations):
        if view.operation != end:
            view.operation.move_before(op)


def _write_for_stablehlo(constant: ir.Operation) -> None:
    with ir.InsertionPoint(constant), constant.location:
        constant.results[0].replace_all_uses_with(for_stablehlo(constant))


def _without_notes(values: ir.ArrayAttr) -> ir.ArrayAttr:
    """The attributes of each value of a signature, without notes."""
    return ir.ArrayAttr.get(
        [
            ir.DictAttr.get(
                {each.name: each.attr for each in named if not _ATTRIBUTES.fullmatch(each.name)}
            )
            for named in map(ir.DictAttr, values)
        ]
    )
