"""Calls of JAX's library in the user's lines, which operations are shown as again.

`jax.nn.softmax(x)` becomes half a dozen operations. Locations say which call of the user's they
come from. Where a connected part of them, without collectives, computes what that call computes on
the blocks of one device, it is written as that call.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from jaxlib.mlir import ir
from shmap_passes.ir.collective_ops import COLLECTIVES, is_axis_index
from shmap_passes.ir.ops import defining_op

from shmap_compiler.unjit.replacing_call import (
    ReplacingCall,
    as_call,
    behind,
    constants,
    is_inside,
)
from shmap_compiler.unjit.spelling.draws import is_draw
from shmap_compiler.unjit.types import is_tensor
from shmap_compiler.unjit.user_calls import library_call_at
from shmap_compiler.unjit.user_lines import frames_of, is_backward

_MOST_BEHIND = 2
_MOST_RESULTS = 8
_NOT_INSIDE = {"stablehlo.while", "stablehlo.if", "stablehlo.case", *COLLECTIVES}


def find_calls(block: ir.Block, outermost: str) -> Iterator[ReplacingCall]:
    """The calls that operations of a block are.

    Args:
      outermost: the jitted function.
    """
    known = constants()
    groups: dict[tuple[Any, ...], list[ir.Operation]] = {}
    for each in list(block.operations)[:-1]:
        op = each.operation
        if op.name in _NOT_INSIDE or is_axis_index(op) or is_draw(op) or op in known:
            continue
        location = str(op.location)
        frames = () if is_backward(location) else frames_of(location, outermost)
        if frames and all(map(is_tensor, op.results)):
            groups.setdefault(frames, []).append(op)
    for frames, group in groups.items():
        text = library_call_at(frames[0].path, frames[0].line, frames[0].column)
        if text is None:
            continue
        for ops in _connected(group):
            # `softmax(x) @ w` begins where its call does: the last ones may not be the call's.
            wholes = [
                ops[:count]
                for count in range(len(ops), max(len(ops) - _MOST_BEHIND, 1) - 1, -1)
                if not any(map(_is_used_around, ops[: count - 1], [ops[:count]] * count))
            ]
            # Where the derivative uses what is computed on the way, the call's result is among it.
            parts = [behind(op.results[0], ops) for op in ops if _is_result(op)]
            for part in [*wholes, *parts[-_MOST_RESULTS:][::-1]]:
                found = as_call(part, text)
                if found is not None:
                    yield found
                    break


def _is_used_around(op: ir.Operation, ops: Sequence[ir.Operation]) -> bool:
    """Whether an operation that is not among others uses a result."""
    users = [use.owner.operation for result in op.results for use in result.uses]
    return any(not is_inside(user, ops) for user in users)


def _is_result(op: ir.Operation) -> bool:
    """Whether a result is used by the program, and not only by its derivative."""
    users = [use.owner.operation for result in op.results for use in result.uses]
    return not all(is_backward(str(user.location)) for user in users)


def _connected(group: list[ir.Operation]) -> Iterator[list[ir.Operation]]:
    """The connected parts of some operations, each in order."""
    part: dict[Any, list[ir.Operation]] = {}
    for op in group:
        mine = [op]
        for operand in op.operands:
            source = defining_op(operand)
            if source in part and part[source] is not mine:
                mine = part[source] + [each for each in mine if each not in part[source]]
                for each in mine:
                    part[each] = mine
        for each in mine:
            part[each] = mine
    seen: set[int] = set()
    for op in group:
        if id(part[op]) not in seen:
            seen.add(id(part[op]))
            yield sorted(part[op], key=group.index)
