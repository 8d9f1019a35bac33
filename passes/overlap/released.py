"""Orders products around one that is computed in chunks, so that they need less memory together.

A compiler that hides transfers takes what is independent of a chunk for the time of its transfer.
An array that only such an operation reads stays in memory until then.
"""

from __future__ import annotations

from collections.abc import Iterator

from jaxlib.mlir import ir

from ..ir.elementwise import ELEMENTWISE
from ..ir.ops import Position, defining_op, free_values, is_token, terminator
from ..ir.types import Value, array_bytes
from .pieces import barrier
from .products import DOT
from .stored import FEW_BYTES, is_fused

_ALIKE = ("stablehlo.broadcast_in_dim", "stablehlo.constant", "stablehlo.iota")


def release(op: ir.Operation, product: ir.Operation, rows: int) -> None:
    """Has the last other readers of large arrays computed before a product.

    Products are moved that read an array that neither `product` reads nor anything that needs
    `op`, if that array is larger than what they compute for others.

    Args:
      op: the sum of `product` over devices.
      rows: the number of the operand of `product` that becomes one that is there when they are
        computed. Only what is built before `op` may read it.
    """
    found = [_last(each) for each in _releasing(op, product)]
    if not found:
        return
    for value in found:
        _move_before(ir.OpResult(value).owner.operation, op)
    with ir.InsertionPoint(op), op.location:
        product.operands[rows] = barrier(product.operands[rows], *found)[0]


def store_once(product: ir.Operation) -> None:
    """Has operands of a product that are computed element by element stored as they are.

    If chunks read such an array, libtpu stores it apart from the product that it is computed from,
    also if other products read it, which compute it again. With a barrier only the array is stored:
    on v6e e with 8192 rows of 8192, and 131072 between, on 2 groups of 8, took 7.39 ms for 8.21,
    and 384 MiB of temporaries for 640. It is left so if others read what it is computed from.
    """
    for operand in dict.fromkeys(product.operands):
        op = defining_op(operand)
        if op is None or op.block != product.block or not _is_computed_once(operand, op):
            continue
        with ir.InsertionPoint(_next(op)), op.location:
            (stored,) = barrier(operand)
        copy = ir.OpResult(stored).owner.operation
        operand.replace_all_uses_except(stored, [copy])


def _is_computed_once(value: Value, op: ir.Operation) -> bool:
    """Whether a value is computed element by element from what is read only through it."""
    if op.name not in ELEMENTWISE:
        return False
    made: set[ir.Operation] = set()
    values = [value]
    while values:
        source = defining_op(values.pop())
        if source is None or source in made or source.name in _ALIKE:
            continue
        made.add(source)
        if is_fused(source.name):
            values += source.operands
    uses = (use for each in made - {op} for result in each.results for use in result.uses)
    return all(use.owner.operation in made for use in uses)


def _releasing(op: ir.Operation, product: ir.Operation) -> list[ir.Operation]:
    """The products that are the last to read large arrays, in program order."""
    after, before = _following(op), _needed(op)
    end = terminator(op.block)
    arrays: list[tuple[int, Value]] = []
    for each in op.block.operations:
        source = each.operation
        if source not in after and source != product and not is_fused(source.name):
            values = (value for value in source.results if not is_token(value.type))
            arrays += [(array_bytes(value), value) for value in values]
    found: dict[ir.Operation, None] = {}
    for size, value in sorted(arrays, key=lambda each: -each[0]):
        if size <= FEW_BYTES:
            break
        readers = dict.fromkeys(_readers(value))
        others = [each for each in readers if each not in before and each not in found]
        if product in readers or any(each in after or each.name != DOT for each in others):
            continue
        results = [result for each in others for result in each.results]
        # What is returned has its place all the time.
        kept = [result for result in results if {*_readers(result)} != {end}]
        if others and sum(map(array_bytes, kept)) + FEW_BYTES < size:
            found |= dict.fromkeys(others)
    return sorted(found, key=Position)


def _last(op: ir.Operation) -> Value:
    """What is computed in the end where the result of an operation is read."""
    value = op.results[0]
    while True:
        users = [use.owner.operation for use in value.uses]
        is_one = len(users) == 1 and users[0].block == op.block and len(users[0].operands) == 1
        if not is_one or not is_fused(users[0].name):
            return value
        value = users[0].results[0]


def _move_before(op: ir.Operation, place: ir.Operation) -> None:
    """Moves an operation, with what it needs, before another, of whose results it needs none."""
    moved = [each for each in (*_needed(op), op) if not each.is_before_in_block(place)]
    for each in sorted(moved, key=Position):
        each.move_before(place)


def _next(op: ir.Operation) -> ir.Operation:
    ops = iter(op.block.operations)
    while next(ops).operation != op:
        pass
    return next(ops).operation


def _readers(value: Value) -> Iterator[ir.Operation]:
    """The operations of its block that read an array, or what is computed where it is read."""
    source = defining_op(value)
    assert source is not None, "it is a result"
    for use in value.uses:
        user = _in_block(use.owner.operation, source.block)
        if is_fused(user.name):
            yield from _readers(user.results[0])
        else:
            yield user


def _following(op: ir.Operation) -> set[ir.Operation]:
    """An operation, and those of its block that need its results."""
    found: set[ir.Operation] = set()
    ops = [op]
    while ops:
        each = ops.pop()
        if each not in found:
            found.add(each)
            uses = (use for result in each.results for use in result.uses)
            ops += [_in_block(use.owner.operation, op.block) for use in uses]
    return found


def _needed(op: ir.Operation) -> set[ir.Operation]:
    """The operations of its block whose results an operation needs."""
    found: set[ir.Operation] = set()
    ops = [op]
    while ops:
        for operand in free_values([ops.pop()]):
            source = defining_op(operand)
            if source is not None and source.block == op.block and source not in found:
                found.add(source)
                ops.append(source)
    return found


def _in_block(op: ir.Operation, block: ir.Block) -> ir.Operation:
    """The op of `block` that is or holds `op`."""
    while op.block != block:
        op = op.block.owner.operation
    return op
