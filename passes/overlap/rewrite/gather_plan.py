"""What is rewritten with a gather: products, what is computed from them, and where it is built."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from jaxlib.mlir import ir

from ...ir.ops import Position, defining_op
from ...ir.types import Value
from ..find.consumers import consumers, users_of
from ..find.cuts import Cut, cut_of_operand, cut_through
from ..find.gathers import Gather, GatheredOperand
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

    def replace_by(self, name: str, form: Form, build: Callable[[], list[Value]]) -> None:
        """Replaces what others use, and erases what nothing uses any more.

        Args:
          name: of a function, if equal sites share one.
          build: builds, in a form, what takes the place of `outs`.
        """
        values = shared(name, (self.gather, *self.ops), self.outs, form, build)
        for old, new in zip(self.outs, values, strict=True):
            old.replace_all_uses_except(new, _users_in(old, {self.gather, *self.ops}))
        for op in (*reversed(self.ops), self.gather):
            if not any(use for result in op.results for use in result.uses):
                op.erase()


def plan(gather: Gather, operands: Sequence[GatheredOperand], cut: Cut) -> Plan | None:
    """The plan for the first products of a gather, as many as possible; None for none.

    A product that needs what others compute from the gathered array cannot be one of them.

    Args:
      operands: the products that are computed in pieces.
      cut: that of the gather's result.
    """
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
            number, value = next((k, v) for k, v in enumerate(op.operands) if v in cuts)
            result = cut_through(op, number, cuts[value])
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
    if before is None or not all(_is_there(op, inside, before) for op in ops):
        return None
    return Plan(gather.op, tuple(_in_order(ops)), cuts, outs, before)


def _agree(op: ir.Operation, cuts: dict[Value, Cut]) -> bool:
    """Whether operands that are in pieces are the pieces that the piece of the result needs."""
    return all(
        cut_of_operand(op, k, cuts[op.results[0]]) == cuts[operand]
        for k, operand in enumerate(op.operands)
        if operand in cuts
    )


def _is_there(op: ir.Operation, inside: set[ir.Operation], before: ir.Operation) -> bool:
    """Whether the operands of `op` from outside are computed before `before`."""
    sources = [source for operand in op.operands if (source := defining_op(operand)) is not None]
    return all(
        source in inside or source.block != before.block or source.is_before_in_block(before)
        for source in sources
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


def _users_in(value: Value, ops: set[ir.Operation]) -> list[ir.Operation]:
    return [use.owner.operation for use in value.uses if use.owner.operation in ops]
