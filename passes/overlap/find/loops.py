"""Finds loops that gather, in each step, something that does not depend on the step before."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from ...ir.body_form import BodyForm
from ...ir.collective_ops import ALL_GATHER, REDUCE_SCATTER, with_whole_axes
from ...ir.constants import CONSTANT, integer
from ...ir.find_ops import find_ops
from ...ir.ops import defining_op, terminator
from ...ir.types import Value, array_bytes, can_hold, element_of
from .products import DOT, Product

WHILE = "stablehlo.while"
PUT = "stablehlo.dynamic_update_slice"


@dataclass(frozen=True)
class CountedLoop:
    """A loop whose number of steps is a constant.

    Attributes:
      counter: the number of the operand, and of the argument of the body, that counts.
      start, step: the first value of the counter, and by how much it grows in a step.
      trips: the number of steps.
    """

    op: ir.Operation
    counter: int
    start: int
    step: int
    trips: int

    @property
    def body(self) -> ir.Block:
        return self.op.regions[1].blocks[0]


@dataclass(frozen=True)
class GatheringLoop:
    """A counted loop, with collectives that need not wait for the step before or delay the next.

    Attributes:
      collectives: the gathers of values that the steps before do not compute, and the
        reduce_scatters whose results the steps after do not read, each with its axes.
      count: the number of devices in the group of the first of them.
      products: those of one step.
    """

    loop: CountedLoop
    collectives: tuple[tuple[ir.Operation, tuple[str, ...]], ...]
    count: int
    products: tuple[Product, ...]

    @property
    def axes(self) -> tuple[str, ...]:
        """The axes of the first of the collectives."""
        return self.collectives[0][1]

    @property
    def op(self) -> ir.Operation:
        return self.loop.op


def stacks(loop: CountedLoop) -> dict[int, int]:
    """Number of a result that is a stack -> bytes that each step puts in a place of it."""
    found: dict[int, int] = {}
    for number, (value, argument) in enumerate(_carried_values(loop)):
        put = defining_op(value)
        if put is not None and put.name == PUT and put.operands[0] == argument:
            found[number] = array_bytes(put.operands[1])
    return found


def copied_bytes(loop: CountedLoop, stacks: Mapping[int, int]) -> int:
    """Bytes that a step computes for the next one, or puts in stacks that other loops read."""
    carried = sum(
        array_bytes(argument)
        for number, (value, argument) in enumerate(_carried_values(loop))
        if value != argument and number not in stacks
    )
    return carried + sum(
        bytes_ for number, bytes_ in stacks.items() if readers(loop, {number: bytes_})
    )


def readers(loop: CountedLoop, stacks: Mapping[int, int]) -> tuple[ir.Operation, ...]:
    """The loops that read stacks which a loop fills."""
    users = [use.owner.operation for number in stacks for use in loop.op.results[number].uses]
    return tuple(dict.fromkeys(user for user in users if user.name == WHILE))


def _carried_values(loop: CountedLoop) -> list[tuple[Value, Value]]:
    """(what a step returns, what the next one gets), by number."""
    return list(zip(terminator(loop.body).operands, loop.body.arguments, strict=True))


def gathering_loops(ops: Sequence[ir.Operation], form: BodyForm) -> Iterator[GatheringLoop]:
    """Those of some loops that gather over several devices and multiply.

    Each is looked at when it is asked for, so those before may be rewritten.
    """
    for op in ops:
        loop = counted_loop(op)
        if loop is None:
            continue
        carried = _carried(loop)
        free = tuple(each for each in _communicate(loop, form) if _is_free(each[0], loop, carried))
        products = tuple(
            Product.of(op.operation) for op in loop.body.operations if op.operation.name == DOT
        )
        if free and products:
            yield GatheringLoop(loop, free, form.mesh.product(free[0][1]), products)


def _communicate(
    loop: CountedLoop, form: BodyForm
) -> Iterator[tuple[ir.Operation, tuple[str, ...]]]:
    """The gathers of a step, then the reduce_scatters, with their axes."""
    for name in (ALL_GATHER, REDUCE_SCATTER):
        for op, axes in with_whole_axes(find_ops(loop.op, [name])):
            if op.block == loop.body and form.mesh.product(axes) > 1:
                yield op, axes


def counted_loop(op: ir.Operation) -> CountedLoop | None:
    """The loop, if it runs while a counter, which starts at a constant, is less than another."""
    condition, body = op.regions[0].blocks[0], op.regions[1].blocks[0]
    test = defining_op(terminator(condition).operands[0])
    if test is None or test.name != "stablehlo.compare":
        return None
    direction = stablehlo.ComparisonDirectionAttr(test.attributes["comparison_direction"]).value
    if direction != "LT" or test.operands[0] not in list(condition.arguments):
        return None
    counter = list(condition.arguments).index(test.operands[0])
    start, limit = _constant(op.operands[counter]), _constant(test.operands[1])
    step = _step(terminator(body).operands[counter], body.arguments[counter])
    if start is None or limit is None or step is None or step <= 0:
        return None
    loop = CountedLoop(op, counter, start, step, max(0, -((start - limit) // step)))
    type_ = ir.IntegerType(element_of(op.operands[counter]))
    return loop if can_hold(type_, start + loop.trips * step) else None


def _step(value: Value, counter: Value) -> int | None:
    op = defining_op(value)
    if op is None or op.name != "stablehlo.add":
        return None
    left, right = op.operands
    if left == counter:
        return _constant(right)
    return _constant(left) if right == counter else None


def _constant(value: Value) -> int | None:
    """The value of a constant integer without dimensions."""
    op = defining_op(value)
    return integer(op) if op is not None and op.name == CONSTANT else None


def _carried(loop: CountedLoop) -> set[Value]:
    """The arguments of the body that the step before computes, except the counter."""
    body = loop.body
    returned = list(terminator(body).operands)
    return {
        argument
        for number, argument in enumerate(body.arguments)
        if number != loop.counter and returned[number] != argument
    }


def _is_free(op: ir.Operation, loop: CountedLoop, carried: set[Value]) -> bool:
    if op.name == ALL_GATHER:
        return not _depends(op.operands[0], loop.body, carried)
    return _reaches_only_stacks(op.results[0], loop.body)


def _depends(value: Value, body: ir.Block, on: set[Value]) -> bool:
    """Whether a value of the body is computed from one of `on`, or by an operation with regions."""
    pending, seen = [value], {value}
    while pending:
        value = pending.pop()
        if value in on:
            return True
        op = defining_op(value)
        if op is None or op.block != body:
            continue
        if len(op.regions):
            return True
        pending += [operand for operand in op.operands if operand not in seen]
        seen.update(op.operands)
    return False


def _reaches_only_stacks(value: Value, body: ir.Block) -> bool:
    """Whether a value is only put in a place of an array that the loop returns.

    So must be all that is computed from it.
    """
    end = terminator(body)
    pending, seen = [value], {value}
    while pending:
        uses = list(pending.pop().uses)
        if not uses:
            return False
        for use in uses:
            user, number = use.owner.operation, use.operand_number
            if user == end:
                # Returned as it is: the step after reads it, unless it does not use the argument.
                if any(body.arguments[number].uses):
                    return False
            elif user.block != body:
                return False
            elif user.name == PUT or user.name == "func.call":
                if number != 1 or any(
                    each.owner.operation != end for result in user.results for each in result.uses
                ):
                    return False
            else:
                pending += [result for result in user.results if result not in seen]
                seen.update(user.results)
    return True
