"""What is rewritten with a gather: products, what is computed from them, and where it is built."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from jaxlib.mlir import ir

from ...ir.elementwise import ELEMENTWISE
from ...ir.ops import Position, defining_op
from ...ir.types import Value
from ..find.consumers import MOST_CONSUMERS, consumers, cut_of_consumer, users_of
from ..find.cuts import Cut, cut_of_operand, cut_through
from ..find.gathers import Gather, GatheredOperand
from ..find.stored import is_fused
from ..form import Form
from .equal_sites import shared


@dataclass(frozen=True)
class Plan:
    """The operations that are computed in pieces.

    Attributes:
      ops: in program order: those between the gather and products, the products, and those after.
      cuts: of the gather's result and of the results of `ops`.
      outs: the results of `ops`, and the gather's own, that other operations use.
      before: the operation before which all of it is built.
    """

    gather: ir.Operation
    ops: tuple[ir.Operation, ...]
    cuts: dict[Value, Cut]
    outs: tuple[Value, ...]
    before: ir.Operation

    @cached_property
    def replaced(self) -> Value | None:
        """An array in whose place a plan with one result can put it; None if there is none.

        Nothing else reads it, and a piece of the result is computed from the same piece of it. So
        of `silu(x @ all_gather(w)) * y`, no other array is needed than that of `y`.
        """
        if len(self.outs) != 1:
            return None
        (out,) = self.outs
        read = dict.fromkeys(operand for op in self.ops for operand in op.operands)
        arrays = (value for value in read if value.type == out.type)
        return next((value for value in arrays if self._can_replace(value)), None)

    def is_replaced(self, value: Value) -> bool:
        return self.replaced is not None and value == self.replaced

    def _can_replace(self, value: Value) -> bool:
        source = defining_op(value)
        return (
            source is not None
            and source.block == self.gather.block
            and value not in self.cuts
            and not is_fused(source.name)
            and all(
                self._takes_pieces(use.owner.operation, use.operand_number) for use in value.uses
            )
        )

    def _takes_pieces(self, op: ir.Operation, number: int) -> bool:
        """Whether the plan computes an operation on the same pieces of an operand as the result."""
        if op not in self.ops:
            return False
        return cut_of_operand(op, number, self.cuts[op.results[0]]) == self.cuts[self.outs[0]]

    def replace_by(self, name: str, form: Form, build: Callable[[], list[Value]]) -> None:
        """Replaces what others use, and erases what nothing uses any more.

        Args:
          name: of a function, if equal sites share one.
          build: builds, in a form, what takes the place of `outs`.
        """
        ops = (self.gather, *self.ops)
        places = self.outs if self.replaced is None else (*self.outs, self.replaced)
        values = shared(name, ops, places, form, build)
        inside = {*ops}
        for old, new in zip(self.outs, values, strict=True):
            old.replace_all_uses_except(new, [*users_of(old) & inside])
        for op in reversed(ops):
            if not any(next(iter(result.uses), None) for result in op.results):
                op.erase()


def plan(gather: Gather, operands: Sequence[GatheredOperand], cut: Cut) -> Plan | None:
    """The plan for the first products of a gather, as many as possible; None for none.

    A product that needs what others compute from the gathered array cannot be one of them.

    Args:
      operands: the products that are computed in pieces.
      cut: that of the gather's result.
    """
    if len(operands) > 1:
        operands = _together(gather, operands, cut)
    for count in range(len(operands), 0, -1):
        for with_consumers in (True, False):
            found = plan_of_all(gather, operands[:count], cut, with_consumers)
            if found is not None:
                return found
    return None


def plan_of_all(
    gather: Gather, operands: Sequence[GatheredOperand], cut: Cut, with_consumers: bool
) -> Plan | None:
    """The plan for all of some products, with or without what is computed from them."""
    cuts = {gather.op.results[0]: cut}
    chain: list[ir.Operation] = []
    products: dict[Value, Cut] = {}
    for operand in operands:
        for op in (*operand.chain, operand.product.op):
            if op.results[0] in cuts:
                continue
            result = cut_of_result(op, cuts)
            if result is None:
                return None
            cuts[op.results[0]] = result
            chain.append(op)
        result = operand.product.result
        products[result] = cuts[result]
    after = consumers(products) if with_consumers else None
    ops = [*chain, *(after.ops if after else ())]
    cuts |= after.cuts if after else {}
    # A product may be of what is computed from another one.
    if not all(_agree(op, cuts) for op in chain):
        return None
    inside = set(ops)
    values = [gather.op.results[0], *(op.results[0] for op in ops)]
    known = after.users if after else {}
    users = {value: (known.get(value) or users_of(value)) - inside for value in values}
    outs = tuple(value for value in values if users[value])
    block = gather.op.block
    before = _first({_in_block(user, block) for value in outs for user in users[value]})
    if before is None or not all(_is_there(op, cuts, before) for op in ops):
        return None
    if len(operands) > 1:
        ops = _in_order(ops)
    return Plan(gather.op, tuple(ops), cuts, outs, before)


def _together(
    gather: Gather, operands: Sequence[GatheredOperand], cut: Cut
) -> Sequence[GatheredOperand]:
    """The first products, up to one that cannot be computed in pieces with all before it.

    A plan is built after all that its products need. So there is none for a product and those
    before it if what reads one of these, and comes before what the product needs, cannot be a part
    of the plan, too. Programs may have hundreds of such products: plans are not tried for these.
    """
    block, cuts = gather.op.block, {gather.op.results[0]: cut}
    parts = {op for each in operands for op in (*each.chain, each.product.op)}
    readers = _Readers(block, parts)
    readers.add(gather.op.results[0])
    for number, operand in enumerate(operands):
        product = operand.product.op
        sources = (source for value in product.operands if (source := defining_op(value)))
        needed = [each for each in sources if each.block == block and each not in parts]
        if not all(map(readers.can_precede, needed)):
            return operands[:number]
        for op in (*operand.chain, product):
            if op.results[0] in cuts:
                continue
            result = cut_of_result(op, cuts)
            if result is None:
                return operands[:number]
            cuts[op.results[0]] = result
            readers.add(op.results[0])
        result = operand.product.result
        readers.cuts[result] = cuts[result]
        if not _agree(product, cuts) or not _agree(product, readers.cuts):
            return operands[:number]
    return operands


class _Readers:
    """What reads values of a plan, directly or not, from the first operation of a block on.

    Args:
      parts: the products of the plan, and what is between the gather and these.

    Attributes:
      cuts: of products that are in the plan, and of what is computed from them.
    """

    def __init__(self, block: ir.Block, parts: set[ir.Operation]) -> None:
        self.cuts: dict[Value, Cut] = {}
        self._block, self._parts = block, parts
        self._pending: list[Position] = []
        self._known, self._passed = set[ir.Operation](), 0

    def add(self, value: Value) -> None:
        """Adds those that read a value of the plan."""
        for use in reversed([*value.uses]):  # the last one is given first
            op = _in_block(use.owner.operation, self._block)
            if op not in self._known:
                self._known.add(op)
                heapq.heappush(self._pending, Position(op))

    def can_precede(self, needed: ir.Operation) -> bool:
        """Whether all that are not after an operation can be parts of the plan."""
        end = Position(needed)
        while self._pending and not end < self._pending[0]:
            op = heapq.heappop(self._pending).op
            if op in self._parts:
                continue
            cut = cut_of_consumer(op, self.cuts) if op.name in ELEMENTWISE else None
            self._passed += 1
            if cut is None or self._passed > MOST_CONSUMERS:
                return False
            self.cuts[op.results[0]] = cut
            self.add(op.results[0])
        return True


def cut_of_result(op: ir.Operation, cuts: dict[Value, Cut]) -> Cut | None:
    """The cut of the result of an op, of which an operand has a cut."""
    number, value = next((k, v) for k, v in enumerate(op.operands) if v in cuts)
    return cut_through(op, number, cuts[value])


def _agree(op: ir.Operation, cuts: dict[Value, Cut]) -> bool:
    """Whether operands that are in pieces are the pieces that the piece of the result needs."""
    return all(
        cut_of_operand(op, k, cuts[op.results[0]]) == cuts[operand]
        for k, operand in enumerate(op.operands)
        if operand in cuts
    )


def _is_there(op: ir.Operation, inside: Container[Value], before: ir.Operation) -> bool:
    """Whether the operands of `op` from outside are computed before `before`."""
    outside = [operand for operand in op.operands if operand not in inside]
    sources = [source for operand in outside if (source := defining_op(operand)) is not None]
    return all(
        source.block != before.block or source.is_before_in_block(before) for source in sources
    )


def _first(ops: Iterable[ir.Operation]) -> ir.Operation | None:
    first: ir.Operation | None = None
    for op in ops:
        if first is None or (op != first and op.is_before_in_block(first)):
            first = op
    return first


def _in_order(ops: Sequence[ir.Operation]) -> list[ir.Operation]:
    return sorted(dict.fromkeys(ops), key=Position)


def _in_block(op: ir.Operation, block: ir.Block) -> ir.Operation:
    """The op of `block` that is or holds `op`."""
    while op.block != block:
        op = op.block.owner.operation
    return op
