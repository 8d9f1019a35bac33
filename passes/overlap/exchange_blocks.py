"""Finds all_to_alls with what is computed between them, up to sums over what is exchanged.

In the gradient of a layer of experts, tokens are exchanged twice, and so are their cotangents.
Weights' gradients are products that sum over the tokens of both.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from jaxlib.mlir import ir
from jaxlib.mlir.dialects.builtin import ModuleOp

from ..ir.analyses import analysis
from ..ir.body_form import BodyForm, read_body_form
from ..ir.collective_ops import whole_axes, with_whole_axes
from ..ir.find_ops import find_ops
from ..ir.ops import defining_op
from ..ir.types import Value, shape_of
from .cuts import Cut, cut_of_operand, cut_through
from .exchange_segments import Segment, segments
from .exchanges import ALL_TO_ALL, through_all_to_all
from .products import DOT, Product


@dataclass(frozen=True)
class ExchangeBlock:
    """Operations on what is exchanged, of which nothing else reads what is between exchanges.

    Attributes:
      op: the first all_to_all.
      axes: the group, first axis major.
      count: the number of devices in the group.
      size: the indices that are cut.
      segments: the all_to_alls and the sums, in the order in which they can be computed.
      ops: what is computed in chunks, in program order, with all_to_alls and sums.
      kept: those of `ops` that others read, too; they are computed again from whole arrays.
      cuts: of every value that is computed in chunks.
      taken: the cuts of operands of which chunks are taken, by result of the operation and number.
    """

    op: ir.Operation
    axes: tuple[str, ...]
    count: int
    size: int
    segments: tuple[Segment, ...]
    ops: tuple[ir.Operation, ...]
    kept: tuple[ir.Operation, ...]
    cuts: dict[Value, Cut]
    taken: dict[tuple[Value, int], Cut]

    @property
    def exchanges(self) -> tuple[ir.Operation, ...]:
        return tuple(op for segment in self.segments for op in segment.exchanges)


def exchange_blocks(ops: Sequence[ir.Operation], form: BodyForm) -> Iterator[ExchangeBlock]:
    """The blocks that begin with some all_to_alls, and have a sum over what is exchanged.

    Each is looked for when it is asked for, so those before may be rewritten.
    """
    todo = with_whole_axes(ops)
    known: _Known = {}
    while todo:
        op, axes = todo.pop(0)
        count = form.mesh.product(axes)
        found = _found(op, axes, count, known) if count > 1 else None
        if found is not None:
            inside = found.exchanges
            todo = [each for each in todo if each[0] not in inside]  # rewriting erases them
            known = {}
            yield found


@analysis
def exchange_blocks_of(module: ModuleOp) -> tuple[ExchangeBlock, ...]:
    """All of a module in body form."""
    ops = find_ops(module.operation, [ALL_TO_ALL])
    return tuple(exchange_blocks(ops, read_body_form(module)))


_Known: TypeAlias = "dict[tuple[ir.Block, Cut, tuple[str, ...]], _Reached]"
"""What is reached in a block, by the cut of what is exchanged first and the axes of its group."""


def _found(
    op: ir.Operation, axes: tuple[str, ...], count: int, known: _Known
) -> ExchangeBlock | None:
    """The block for the largest dimension that can be cut."""
    shape = shape_of(op.operands[0])
    for dimension in sorted(range(len(shape)), key=lambda d: -shape[d]):
        cut = Cut(dimension, shape[dimension])
        if through_all_to_all(op, cut, count) is None:
            continue
        key = op.block, cut, axes
        if key not in known:
            known[key] = _reached(op.block, cut, axes, count)
        found = _block(op, axes, count, known[key].connected(op))
        if found is not None:
            return found
    return None


def _reached(block: ir.Block, cut: Cut, axes: tuple[str, ...], count: int) -> _Reached:
    """What can be computed in chunks in a block, if what is exchanged is cut."""
    reached = _Reached({}, {}, {}, {}, set())
    for each in block.operations:
        reached.add(each.operation, cut, axes, count)
    return reached


def _block(
    op: ir.Operation, axes: tuple[str, ...], count: int, reached: _Reached
) -> ExchangeBlock | None:
    sums = [each for each in reached.ops if each.results[0] not in reached.cuts]
    if not sums or next(iter(reached.ops)) != op:
        return None
    exchanged = [each for each in reached.ops if each.name == ALL_TO_ALL]
    needed = {*sums, *exchanged}
    for each in reversed(reached.ops):
        if any(use.owner.operation in needed for use in each.results[0].uses):
            needed.add(each)
    ops = [each for each in reached.ops if each in needed]
    kept = _kept(ops, sums)
    if kept is None:
        return None
    found = segments(ops, kept, reached.cuts)
    if found is None:
        return None
    size = reached.cuts[op.results[0]].size
    cuts = {each.results[0]: reached.cuts[each.results[0]] for each in ops if each not in sums}
    return ExchangeBlock(
        op, axes, count, size, found, tuple(ops), tuple(kept), cuts, dict(reached.taken)
    )


def _kept(ops: Sequence[ir.Operation], sums: Sequence[ir.Operation]) -> list[ir.Operation] | None:
    """The operations whose results others read; None if those cannot be computed again.

    Results of exchanges are joined, but what arrives first is as large as what is exchanged.
    """
    inside, kept = {*ops}, list[ir.Operation]()
    results = {op.results[0] for op in ops}
    for op in reversed(ops):
        users = [use.owner.operation for use in op.results[0].uses]
        if op in sums or all(user in inside and user not in kept for user in users):
            continue
        if op.name == DOT or (op.name == ALL_TO_ALL and op.operands[0] not in results):
            return None
        if op.name != ALL_TO_ALL:
            kept.insert(0, op)
    return kept


@dataclass(frozen=True)
class _Reached:
    """What is computed from chunks of what is exchanged, of several independent parts.

    Attributes:
      ops: in program order, and the part to which each belongs.
      cuts: of their results, but those of sums.
      taken: see `ExchangeBlock`.
      joined: the part that has become one with an earlier one.
      returned: what is exchanged back, and what is computed from it before the next exchange.
    """

    ops: dict[ir.Operation, int]
    cuts: dict[Value, Cut]
    taken: dict[tuple[Value, int], Cut]
    joined: dict[int, int]
    returned: set[Value]

    def connected(self, op: ir.Operation) -> _Reached:
        """The part to which an operation belongs."""
        part = self._part(self.ops[op]) if op in self.ops else -1
        ops = {each: 0 for each, number in self.ops.items() if self._part(number) == part}
        cuts = {op.results[0]: self.cuts[op.results[0]] for op in ops if op.results[0] in self.cuts}
        return _Reached(ops, cuts, self.taken, {}, self.returned)

    def add(self, op: ir.Operation, cut: Cut, axes: tuple[str, ...], count: int) -> None:
        """Adds an operation that can be computed in chunks.

        Args:
          cut: of what is exchanged first.
        """
        operands = list(op.operands)
        numbers = [k for k, value in enumerate(operands) if value in self.cuts]
        is_returned = any(operands[k] in self.returned for k in numbers)
        if op.name == ALL_TO_ALL:
            if whole_axes(op) != axes:
                return
            if not numbers and shape_of(operands[0])[cut.dimension :][:1] != [cut.size]:
                return
            own = self.cuts[operands[0]] if numbers else cut
            result = through_all_to_all(op, own, count)
            if result is None:
                return
            taken = {} if numbers else {0: own}
            is_returned = bool(numbers) and not is_returned
        elif not numbers:
            return
        else:
            summed = {} if is_returned else _summed(op, self.cuts)
            result = None if summed else _result(op, numbers[0], self.cuts)
            if result is None and not summed:
                return
            taken = summed or _taken(op, result, self.cuts)
        parts = [self._part(self.ops[_source(operands[k])]) for k in numbers]
        part = min(parts, default=len(self.ops))
        self.joined.update({each: part for each in parts if each != part})
        self.ops[op] = part
        self.taken.update({(op.results[0], k): of_operand for k, of_operand in taken.items()})
        if is_returned:
            self.returned.add(op.results[0])
        if result is not None:
            self.cuts[op.results[0]] = result

    def _part(self, number: int) -> int:
        while number in self.joined:
            number = self.joined[number]
        return number


def _source(value: Value) -> ir.Operation:
    op = defining_op(value)
    assert op is not None, "what is cut is computed from what is exchanged"
    return op


def _summed(op: ir.Operation, cuts: Mapping[Value, Cut]) -> dict[int, Cut]:
    """The cuts of both operands of a product that sums over what is cut; else nothing."""
    if op.name != DOT:
        return {}
    for pair in zip(*Product.of(op).contracted, strict=True):
        known = [cuts.get(value) for value in op.operands]
        for cut, dimension in zip(known, pair, strict=True):
            if cut is not None and cut.dimension == dimension:
                both = {k: replace(cut, dimension=pair[k]) for k in (0, 1)}
                return both if all(c in (None, both[k]) for k, c in enumerate(known)) else {}
    return {}


def _result(op: ir.Operation, number: int, cuts: Mapping[Value, Cut]) -> Cut | None:
    """The cut of the result of an operation; None if it cannot be computed in chunks."""
    result = cut_through(op, number, cuts[op.operands[number]])
    if result is None:
        return None
    for k, value in enumerate(op.operands):
        if k != number and value in cuts and cut_of_operand(op, k, result) != cuts[value]:
            return None
    return result


def _taken(op: ir.Operation, result: Cut | None, cuts: Mapping[Value, Cut]) -> dict[int, Cut]:
    """The cuts of operands of which chunks are taken."""
    others = [k for k, value in enumerate(op.operands) if value not in cuts]
    found = {k: cut_of_operand(op, k, result) for k in others if result is not None}
    return {k: cut for k, cut in found.items() if cut is not None}
