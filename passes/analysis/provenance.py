"""Where a value became varying along a mesh axis: the way back through ops, regions and calls."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import func

from ..ir.collective_ops import COLLECTIVES
from ..ir.ops import defining_op, terminator, walk
from ..ir.types import BlockArgument, Value
from .replication import Varying
from .replication_rules import leaf_mask


@dataclass(frozen=True)
class ValueRef:
    """A value, and the calls that led to the function it stands in, the innermost last."""

    value: Value
    calls: tuple[ir.Operation, ...] = ()


def origin(
    value: Value, axis: str, varying: Varying, functions: Mapping[str, func.FuncOp]
) -> Value:
    """The nearest value that `value` depends on and that varies along `axis` by itself.

    That is an argument of @main, the result of a collective, an axis index or a foreign call.
    """
    seen, queue = set(), deque([ValueRef(value)])
    while queue:
        place = queue.popleft()
        if place in seen:
            continue
        seen.add(place)
        sources = [p for p in _sources(place, functions) if axis in varying.of(p.value)]
        if not sources and not _is_source(place.value, axis, varying):
            sources = [p for p in _deciders(place) if axis in varying.of(p.value)]
        if not sources and not _is_end_of_wrong_call(place.value):
            return place.value
        queue.extend(sources)
    return value


def described(start: Value) -> str:
    """What makes a value of `origin` vary, for an error."""
    op = defining_op(start)
    if op is None:
        number = ir.BlockArgument(start).arg_number
        return f"argument {number}, which devices along the axis hold parts of"
    return f"this {op.name.removeprefix('stablehlo.')}"


def _is_source(value: Value, axis: str, varying: Varying) -> bool:
    op = defining_op(value)
    if op is None:
        return False
    return op.name in COLLECTIVES or axis in varying.bits.names(leaf_mask(op, 0, varying.bits))


def _is_end_of_wrong_call(value: Value) -> bool:
    """An argument of a function that varies in another of its calls only."""
    if not isinstance(value, ir.BlockArgument):
        return False
    holder = value.owner.owner
    return isinstance(holder, func.FuncOp) and holder.name.value != "main"


def _sources(place: ValueRef, functions: Mapping[str, func.FuncOp]) -> Iterator[ValueRef]:
    """The values that `place` is computed from."""
    if isinstance(place.value, ir.BlockArgument):
        yield from _sources_of_argument(place, place.value)
        return
    result = ir.OpResult(place.value)
    op, index, calls = result.owner.operation, result.result_number, place.calls
    if op.name in ("func.call", "stablehlo.composite"):
        attribute = "callee" if op.name == "func.call" else "decomposition"
        callee = functions.get(ir.FlatSymbolRefAttr(op.attributes[attribute]).value)
        if callee is not None and not callee.is_external:
            yield ValueRef(terminator(callee.entry_block).operands[index], (*calls, op))
    elif op.name in _PROGRAMS:
        blocks = [region.blocks[0] for region in op.regions]
        if op.name == "stablehlo.while":
            del blocks[0]  # its condition
            yield ValueRef(op.operands[index], calls)
        for value in (*(terminator(block).operands[index] for block in blocks), *_decides(op)):
            yield ValueRef(value, calls)
    else:
        yield from _operands_anywhere_in(op, calls)


def _sources_of_argument(place: ValueRef, argument: BlockArgument) -> Iterator[ValueRef]:
    op, index, calls = argument.owner.owner.operation, argument.arg_number, place.calls
    if op.name == "func.func":
        if calls:
            yield ValueRef(calls[-1].operands[index], calls[:-1])
    elif op.name in _PROGRAMS:
        yield ValueRef(op.operands[index], calls)
        if op.name == "stablehlo.while":
            yield ValueRef(terminator(op.regions[1].blocks[0]).operands[index], calls)
    else:
        yield from _operands_anywhere_in(op, calls)


_PROGRAMS = ("sdy.manual_computation", "stablehlo.case", "stablehlo.if", "stablehlo.while")


def _deciders(place: ValueRef) -> Iterator[ValueRef]:
    """What decides whether, or how often, a device computes the value."""
    value, calls = place.value, place.calls
    op = defining_op(value)
    op = ir.BlockArgument(value).owner.owner if op is None else op.parent
    while op is not None:
        yield from (ValueRef(decider, calls) for decider in _decides(op.operation))
        if isinstance(op, func.FuncOp) and calls:
            op, calls = calls[-1], calls[:-1]
        op = op.operation.parent


def _decides(op: ir.Operation) -> list[Value]:
    if op.name == "stablehlo.while":
        return list(terminator(op.regions[0].blocks[0]).operands)
    return [op.operands[0]] if op.name in ("stablehlo.case", "stablehlo.if") else []


def _operands_anywhere_in(op: ir.Operation, calls: tuple[ir.Operation, ...]) -> Iterator[ValueRef]:
    for inner in walk(op):
        yield from (ValueRef(operand, calls) for operand in inner.operands)
