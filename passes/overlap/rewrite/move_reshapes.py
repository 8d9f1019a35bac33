"""Moves reshapes from between collectives and products to where neither meets them.

Models flatten what they gather, `all_gather(x, "i", axis=1).reshape(-1, d) @ w`, and take apart
what they scatter. A product is then not one of what is gathered, and its pieces have no place in
its result.

If each device's part stays in one piece, the reshape changes places with the collective:

    reshape(all_gather(x))      ->  all_gather(reshape(x))
    reduce_scatter(reshape(y))  ->  reshape(reduce_scatter(y))
    all_reduce(reshape(y))      ->  reshape(all_reduce(y))

That is so for the gather of a first dimension, and for `tiled=False`. Other reshapes change places
with the product, and with what is computed of its elements:

    dot_general(reshape(g), w)  ->  reshape(dot_general(g, w))

No number changes, and XLA gives the same layout to both forms, as the last dimensions stay. Sums of
what was flattened, as for the gradient of a bias, are taken over all dimensions that it had where
they may be rounded: XLA for CPUs rounds sums of bf16 otherwise then.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeAlias

from jaxlib.mlir import ir
from jaxlib.mlir.dialects.builtin import ModuleOp

from ...ir import build
from ...ir.body_form import read_body_form
from ...ir.collective_ops import ALL_GATHER, ALL_REDUCE, REDUCE_SCATTER, with_whole_axes
from ...ir.elementwise import ELEMENTWISE
from ...ir.find_ops import find_ops
from ...ir.instructions import has_instructions
from ...ir.ops import defining_op
from ...ir.types import Value, shape_of
from ..find.cuts import RESHAPE
from ..find.products import DOT
from ..find.row_sums import REDUCE
from ..find.shapes import Parts, same_parts
from .other_shapes import (
    BROADCAST,
    MOST_OPS,
    before_reshape,
    computed_in,
    has_products,
    may_move,
    moved,
    only_used,
    op_of,
    reshaped,
)

_ERASED = ELEMENTWISE | {RESHAPE, DOT, BROADCAST, ALL_GATHER, ALL_REDUCE, REDUCE_SCATTER}

_Path: TypeAlias = "tuple[ir.Operation, ...]"
"""Operations between a collective and a reshape, from the collective on, and the reshape."""


def has_reshapes_between(module: ModuleOp) -> bool:
    """Whether `move_reshapes` would look at a reshape."""
    return any(_paths(op) for op in _collectives(module))


def move_reshapes(module: ModuleOp, may_round: bool) -> None:
    """Moves those between products and what is gathered before or summed after them.

    Nothing is moved in a program with automatic axes.

    Args:
      may_round: whether sums of what was flattened may be taken over all dimensions that it had,
        which XLA may do in another order.
    """
    found = [op for op in _collectives(module) if _paths(op)]
    if not found or read_body_form(module).is_partly_manual:
        return
    moves = _Moves(may_round)
    with module.operation.location:
        for op in found:
            paths = _paths(op)  # others may have been moved
            if op.name == ALL_GATHER:
                moves.from_gather(op, paths)
            elif paths:
                moves.from_sum(op, paths[0])
            moves.erase_unused()


def _collectives(module: ModuleOp) -> list[ir.Operation]:
    names = [ALL_GATHER, ALL_REDUCE, REDUCE_SCATTER]
    found = with_whole_axes(find_ops(module.operation, names))
    return [op for op, _ in found if len(op.operands) == 1 and not has_instructions(op)]


def _paths(op: ir.Operation) -> list[_Path]:
    return list(_paths_after(op) if op.name == ALL_GATHER else _paths_before(op))


def _paths_after(gather: ir.Operation) -> Iterator[_Path]:
    pending: list[tuple[Value, _Path]] = [(gather.results[0], ())]
    while pending:
        value, path = pending.pop()
        for use in value.uses:
            user = use.owner.operation
            if user.block != gather.block or not may_move(user):
                continue
            if user.name == RESHAPE:
                yield (*path, user)
            elif len(user.operands) == 1:
                pending.append((user.results[0], (*path, user)))


def _paths_before(summed: ir.Operation) -> Iterator[_Path]:
    path: _Path = ()
    value = summed.operands[0]
    while (op := only_used(value, summed.block)) is not None and may_move(op):
        path = (*path, op)
        if op.name == RESHAPE:
            yield path
            return
        if len(op.operands) != 1:
            return
        value = op.operands[0]


class _Moves:
    """Moves of reshapes in one module, and what they leave unused."""

    def __init__(self, may_round: bool) -> None:
        self._may_round = may_round
        self._left: list[ir.Operation] = []

    def from_gather(self, gather: ir.Operation, paths: Sequence[_Path]) -> None:
        """Moves reshapes of what is gathered past the products, or past the gather.

        Past the gather if they can be, and parts have as many rows as before; where there are no
        such products, with fewer rows too.
        """
        to = self._gathered_along(gather, paths[0]) if len(paths) == 1 else None
        rows = shape_of(gather.operands[0])[_integer(gather, "all_gather_dim")]
        is_past_products = False
        if to is None or to.rows < rows:
            for path in paths:
                is_past_products |= self._down(path[-1])
        if to is not None and not is_past_products:
            self._before_gather(gather, paths[0], to)

    def _gathered_along(self, gather: ir.Operation, path: _Path) -> Parts | None:
        """How reshaped parts can be gathered; None if they cannot, or something else uses them."""
        *between, reshape = path
        if any(len(list(op.results[0].uses)) != 1 for op in (gather, *between)):
            return None
        (block,), whole = gather.operands, shape_of(gather.results[0])
        dimension = _integer(gather, "all_gather_dim")
        count = whole[dimension] // shape_of(block)[dimension]
        return same_parts(whole, dimension, shape_of(reshape.results[0]), count)

    def _before_gather(self, gather: ir.Operation, path: _Path, to: Parts) -> None:
        """Reshapes what is gathered instead."""
        *between, reshape = path
        whole = shape_of(reshape.results[0])
        with ir.InsertionPoint(gather), reshape.location:
            block = reshaped(gather.operands[0], to.shape)
        value = moved(gather, [block], whole, all_gather_dim=_number(to.dimension))
        for op in between:
            value = moved(op, [value], whole)
        self._replace(reshape, value)

    def from_sum(self, op: ir.Operation, path: _Path) -> None:
        """Moves a reshape of what is summed past the sum or the products, as from a gather."""
        old = shape_of(path[-1].operands[0])
        if op.name != REDUCE_SCATTER:
            self._after_sum(op, path, old)
            return
        dimension = _integer(op, "scatter_dimension")
        whole, part = shape_of(op.operands[0]), shape_of(op.results[0])
        to = same_parts(whole, dimension, old, whole[dimension] // part[dimension])
        is_past_products = False
        if to is None or to.rows < part[dimension]:
            is_past_products = self._up(op, path)
        if to is not None and not is_past_products:
            self._after_sum(op, path, to.shape, scatter_dimension=_number(to.dimension))

    def _after_sum(
        self, op: ir.Operation, path: _Path, shape: Sequence[int], **attributes: ir.Attribute
    ) -> None:
        """Sums, to a result of this shape, what is not reshaped."""
        reshape, *between = reversed(path)
        value = reshape.operands[0]
        for each in between:
            value = moved(each, [value], shape_of(value))
        value = moved(op, [value], shape, **attributes)
        with ir.InsertionPoint(op), reshape.location:
            value = build.reshape(op.results[0].type, value)
        self._replace(op, value)

    def _down(self, reshape: ir.Operation) -> bool:
        """Reshapes products, and what is computed of their elements, instead of what they read.

        Returns:
          Whether there is such a product.
        """
        pending, is_moved = [(reshape, False)], False
        for _ in range(MOST_OPS):
            if not pending:
                break
            reshape, is_multiplied = pending.pop(0)
            # Each user once, as it is erased.
            uses = {use.owner.operation: use.operand_number for use in reshape.results[0].uses}
            for user, number in uses.items():
                if user.block != reshape.block:
                    continue
                if user.name == REDUCE and not self._may_round:
                    continue
                multiplies = user.name == DOT and not is_multiplied
                value = before_reshape(reshape, user, number, multiplies)
                if value is None:
                    continue
                is_moved = is_moved or multiplies
                type_ = user.results[0].type
                if value.type == type_:
                    self._replace(user, value)
                    continue
                with ir.InsertionPoint(user), reshape.location:
                    back = build.reshape(type_, value)
                self._replace(user, back)
                pending.append((op_of(back), is_multiplied or multiplies))
            self._left.append(reshape)
        return is_moved

    def _up(self, summed: ir.Operation, path: _Path) -> bool:
        """Reshapes what products read, instead of what is computed of them before it is summed.

        Returns:
          Whether there are such products.
        """
        reshape, *between = reversed(path)
        shape = shape_of(reshape.results[0])
        if not has_products(reshape.operands[0], shape, summed.block):
            return False
        value = computed_in(shape, reshape.operands[0], summed.block)
        for op in between:
            value = moved(op, [value], shape)
        summed.operands[0] = value
        self._left.append(path[0])
        return True

    def _replace(self, op: ir.Operation, value: Value) -> None:
        op.results[0].replace_all_uses_with(value)
        self._left = [each for each in self._left if each != op]
        self._left += _sources(op)
        op.erase()

    def erase_unused(self) -> None:
        while self._left:
            op = self._left.pop()
            self._left = [each for each in self._left if each != op]
            is_used = any(True for result in op.results for _ in result.uses)
            if op.name in _ERASED and not is_used:
                self._left += _sources(op)
                op.erase()


def _sources(op: ir.Operation) -> list[ir.Operation]:
    found = map(defining_op, op.operands)
    return [each for each in found if each is not None]


def _integer(op: ir.Operation, name: str) -> int:
    return ir.IntegerAttr(op.attributes[name]).value


def _number(value: int) -> ir.Attribute:
    return ir.IntegerAttr.get(ir.IntegerType.get_signless(64), value)
