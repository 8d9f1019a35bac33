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
from math import prod
from typing import NamedTuple, TypeAlias

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo
from jaxlib.mlir.dialects.builtin import ModuleOp

from ...ir import build
from ...ir.body_form import read_body_form
from ...ir.collective_ops import ALL_GATHER, ALL_REDUCE, REDUCE_SCATTER, with_whole_axes
from ...ir.elementwise import ELEMENTWISE
from ...ir.find_ops import find_ops
from ...ir.instructions import has_instructions
from ...ir.ops import defining_op
from ...ir.types import Value, element_of, shape_of, tensor
from ..find.cuts import RESHAPE
from ..find.products import DOT, Product
from ..find.row_sums import REDUCE

_BROADCAST = "stablehlo.broadcast_in_dim"
_ERASED = ELEMENTWISE | {RESHAPE, DOT, _BROADCAST, ALL_GATHER, ALL_REDUCE, REDUCE_SCATTER}
_MOST_OPS = 64
"""Reshapes change places with so many operations at most, after each gather."""

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
            if user.block != gather.block or not _may_move(user):
                continue
            if user.name == RESHAPE:
                yield (*path, user)
            elif len(user.operands) == 1:
                pending.append((user.results[0], (*path, user)))


def _paths_before(summed: ir.Operation) -> Iterator[_Path]:
    path: _Path = ()
    value = summed.operands[0]
    while (op := _only_used(value, summed.block)) is not None and _may_move(op):
        path = (*path, op)
        if op.name == RESHAPE:
            yield path
            return
        if len(op.operands) != 1:
            return
        value = op.operands[0]


def _may_move(op: ir.Operation) -> bool:
    """Whether an operation reshapes, or computes elements of elements, and has no instructions.

    Scalars, and what has no elements, stay as they are.
    """
    if op.name != RESHAPE and (op.name not in ELEMENTWISE or len(op.results) != 1):
        return False
    shape = shape_of(op.results[0])
    return bool(shape) and 0 not in shape and not has_instructions(op)


def _only_used(value: Value, block: ir.Block) -> ir.Operation | None:
    """The operation of a block that computes a value with one use; None if it has more."""
    op = defining_op(value)
    is_there = op is not None and op.block == block
    return op if is_there and len(list(value.uses)) == 1 else None


# ------------------------------------------------------------------------------------ moving


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

    def _gathered_along(self, gather: ir.Operation, path: _Path) -> _Parts | None:
        """How reshaped parts can be gathered; None if they cannot, or something else uses them."""
        *between, reshape = path
        if any(len(list(op.results[0].uses)) != 1 for op in (gather, *between)):
            return None
        (block,), whole = gather.operands, shape_of(gather.results[0])
        dimension = _integer(gather, "all_gather_dim")
        count = whole[dimension] // shape_of(block)[dimension]
        return _same_parts(whole, dimension, shape_of(reshape.results[0]), count)

    def _before_gather(self, gather: ir.Operation, path: _Path, to: _Parts) -> None:
        """Reshapes what is gathered instead."""
        *between, reshape = path
        whole = shape_of(reshape.results[0])
        with ir.InsertionPoint(gather), reshape.location:
            block = _reshaped(gather.operands[0], to.shape)
        value = _moved(gather, [block], whole, all_gather_dim=_number(to.dimension))
        for op in between:
            value = _moved(op, [value], whole)
        self._replace(reshape, value)

    def from_sum(self, op: ir.Operation, path: _Path) -> None:
        """Moves a reshape of what is summed past the sum or the products, as from a gather."""
        old = shape_of(path[-1].operands[0])
        if op.name != REDUCE_SCATTER:
            self._after_sum(op, path, old)
            return
        dimension = _integer(op, "scatter_dimension")
        whole, part = shape_of(op.operands[0]), shape_of(op.results[0])
        to = _same_parts(whole, dimension, old, whole[dimension] // part[dimension])
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
            value = _moved(each, [value], shape_of(value))
        value = _moved(op, [value], shape, **attributes)
        with ir.InsertionPoint(op), reshape.location:
            value = build.reshape(op.results[0].type, value)
        self._replace(op, value)

    def _down(self, reshape: ir.Operation) -> bool:
        """Reshapes products, and what is computed of their elements, instead of what they read.

        Returns:
          Whether there is such a product.
        """
        pending, is_moved = [(reshape, False)], False
        for _ in range(_MOST_OPS):
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
                value = _before_reshape(reshape, user, number, multiplies)
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
                pending.append((_op(back), is_multiplied or multiplies))
            self._left.append(reshape)
        return is_moved

    def _up(self, summed: ir.Operation, path: _Path) -> bool:
        """Reshapes what products read, instead of what is computed of them before it is summed.

        Returns:
          Whether there are such products.
        """
        reshape, *between = reversed(path)
        shape = shape_of(reshape.results[0])
        if not _has_products(reshape.operands[0], shape, summed.block):
            return False
        value = _computed_in(shape, reshape.operands[0], summed.block)
        for op in between:
            value = _moved(op, [value], shape)
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


def _before_reshape(
    reshape: ir.Operation, user: ir.Operation, number: int, multiplies: bool
) -> Value | None:
    """What an operation gives for what was not reshaped; None if a reshape of that will not do."""
    shape = shape_of(reshape.operands[0])
    if has_instructions(user):
        return None
    if multiplies:
        edits = _edits_of_operand(reshape, Product.of(user), number)
        return None if edits is None else _product(user, edits)
    if user.name == RESHAPE and shape_of(user.results[0]) == shape:
        return reshape.operands[0]
    if user.name == REDUCE:
        return _reduced(reshape, user) if number == 0 else None
    if user.name not in ELEMENTWISE or not _may_move(user) or not _has_one_shape(user):
        return None
    with ir.InsertionPoint(user), user.location:
        operands = [_reshaped(x, shape) if shape_of(x) else x for x in user.operands]
    return _moved(user, operands, shape)


def _reduced(reshape: ir.Operation, user: ir.Operation) -> Value | None:
    """What a reduction gives of what was not reshaped; None if it keeps a part of what was."""
    (old, new), reduced = map(shape_of, (reshape.operands[0], reshape.results[0])), list[int]()
    dimensions = {*ir.DenseI64ArrayAttr(user.attributes["dimensions"])}
    for (first, last), (start, end) in _groups(old, new):
        if dimensions.issuperset(range(start, end)):
            reduced += range(first, last)
        elif old[first:last] != new[start:end] or dimensions.intersection(range(start, end)):
            return None
    if len(user.results) != 1:
        return None
    operands = [reshape.operands[0], user.operands[1]]
    numbers = ir.DenseI64ArrayAttr.get(reduced)
    return _moved(user, operands, shape_of(user.results[0]), dimensions=numbers)


def _has_products(value: Value, shape: Sequence[int], block: ir.Block) -> bool:
    """Whether a value is computed of products that can give it in another shape."""
    op = _only_used(value, block)
    if op is None or has_instructions(op):
        return False
    if op.name == DOT:
        return _edits_of_result(Product.of(op), shape) is not None
    is_elementwise = op.name in ELEMENTWISE and _may_move(op) and _has_one_shape(op)
    return is_elementwise and any(_has_products(x, shape, block) for x in op.operands)


def _computed_in(shape: Sequence[int], value: Value, block: ir.Block) -> Value:
    """A value that `_has_products`, or is an operand of one, in another shape."""
    if not shape_of(value):
        return value  # one scalar for all elements
    if not _has_products(value, shape, block):
        return _reshaped(value, shape)
    op = _op(value)
    if op.name == DOT:
        edits = _edits_of_result(Product.of(op), shape)
        assert edits is not None, "it has products that give this shape"
        return _product(op, edits)
    with ir.InsertionPoint(op), op.location:
        operands = [_computed_in(shape, x, block) for x in op.operands]
    return _moved(op, operands, shape)


def _has_one_shape(op: ir.Operation) -> bool:
    """Whether the operands that are not scalars have the shape of the result."""
    return all(shape_of(x) in (shape_of(op.results[0]), []) for x in op.operands)


# ------------------------------------------------------------------------------------- shapes


class _Parts(NamedTuple):
    """The shape of each of equal parts of an array, and the dimension along which they follow."""

    shape: tuple[int, ...]
    dimension: int

    @property
    def rows(self) -> int:
        return self.shape[self.dimension]


def _same_parts(
    old: Sequence[int], dimension: int, new: Sequence[int], count: int
) -> _Parts | None:
    """The `count` equal parts of a dimension of `old`, as parts of a reshaped array; None for none.

    They have the same elements of it.
    """
    before = prod(old[:dimension])
    for k, size in enumerate(new):
        if prod(new[:k]) == before and size % count == 0:
            return _Parts((*new[:k], size // count, *new[k + 1 :]), k)
    return None


class _Edit(NamedTuple):
    """Consecutive dimensions of an array, from `start` to `end`, that get other sizes."""

    start: int
    end: int
    sizes: tuple[int, ...]


_Edits: TypeAlias = "tuple[list[_Edit], list[_Edit]]"
"""Those of the left and of the right operand of a product."""


def _edits_of_operand(reshape: ir.Operation, product: Product, number: int) -> _Edits | None:
    """How both operands change if a reshape of one comes after the product; None if it cannot."""
    edits: _Edits = ([], [])
    old, new = shape_of(reshape.operands[0]), shape_of(reshape.results[0])
    pairs = dict(zip(product.contracted[number], product.contracted[1 - number], strict=True))
    for (first, last), (start, end) in _groups(old, new):
        sizes, dimensions = old[first:last], range(start, end)
        if sizes == new[start:end]:
            continue
        edits[number].append(_Edit(start, end, tuple(sizes)))
        roles = {product.role(number, dimension) for dimension in dimensions}
        if roles == {"contracted"}:
            other = _range([pairs[dimension] for dimension in dimensions])
            if other is None:
                return None
            edits[1 - number].append(_Edit(*other, tuple(sizes)))
        elif roles != {"free"}:
            return None
    return edits


def _edits_of_result(product: Product, shape: Sequence[int]) -> _Edits | None:
    """How the operands change if the result of a product has another shape; None if it cannot."""
    edits: _Edits = ([], [])
    old = shape_of(product.result)
    for (first, last), (start, end) in _groups(old, shape):
        if old[first:last] == list(shape[start:end]):
            continue
        places = [product.operand_dimensions(dimension) for dimension in range(first, last)]
        sides = {side for place in places for side in place}
        if len(sides) != 1:
            return None
        (side,) = sides
        found = _range([place[side] for place in places])
        if found is None:
            return None
        edits[side].append(_Edit(*found, tuple(shape[start:end])))
    return edits


def _range(dimensions: Sequence[int]) -> tuple[int, int] | None:
    """The range that some dimensions are, in order; None if they are none."""
    start, end = dimensions[0], dimensions[0] + len(dimensions)
    return (start, end) if list(dimensions) == list(range(start, end)) else None


def _groups(
    old: Sequence[int], new: Sequence[int]
) -> Iterator[tuple[tuple[int, int], tuple[int, int]]]:
    """Ranges of dimensions of two shapes of one array, as short as have the same elements.

    Dimensions of one index at the end belong to the last ranges.
    """
    i = j = 0
    while i < len(old) and j < len(new):
        first, start = i, j
        i, j = i + 1, j + 1
        while prod(old[first:i]) != prod(new[start:j]):
            if prod(old[first:i]) < prod(new[start:j]):
                i += 1
            else:
                j += 1
        if all(size == 1 for size in (*old[i:], *new[j:])):
            i, j = len(old), len(new)
        yield (first, i), (start, j)


def _edited(shape: Sequence[int], edits: Sequence[_Edit]) -> tuple[list[int], dict[int, list[int]]]:
    """The shape after edits, and where each dimension is; those of an edit are at its first."""
    sizes, places, dimension = list[int](), dict[int, list[int]](), 0
    starts = {edit.start: edit for edit in edits}
    while dimension < len(shape):
        edit = starts.get(dimension) or _Edit(dimension, dimension + 1, (shape[dimension],))
        places |= {each: [] for each in range(edit.start, edit.end)}
        places[dimension] = list(range(len(sizes), len(sizes) + len(edit.sizes)))
        sizes += edit.sizes
        dimension = edit.end
    return sizes, places


# ----------------------------------------------------------------------------------- building


def _product(op: ir.Operation, edits: _Edits) -> Value:
    """A product of operands with other dimensions; those that are contracted differ in both."""
    product = Product.of(op)
    (left, left_places), (right, right_places) = (
        _edited(shape_of(x), each) for x, each in zip(op.operands, edits, strict=True)
    )
    places = (left_places, right_places)
    (lefts, rights), (left_sums, right_sums), (left_free, right_free) = (
        [[k for each in pair[side] for k in places[side][each]] for side in (0, 1)]
        for pair in (product.batch, product.contracted, product.free)
    )
    sizes = [left[k] for k in (*lefts, *left_free)] + [right[k] for k in right_free]
    numbers = stablehlo.DotDimensionNumbers.get(lefts, rights, left_sums, right_sums)
    with ir.InsertionPoint(op), op.location:
        operands = list(map(_reshaped, op.operands, (left, right)))
    return _moved(op, operands, sizes, dot_dimension_numbers=numbers)


def _moved(
    op: ir.Operation, operands: Sequence[Value], shape: Sequence[int], **attributes: ir.Attribute
) -> Value:
    """What an operation gives for other operands, in another shape, where it is."""
    with ir.InsertionPoint(op), op.location:
        value = build.like(op, tensor(shape, element_of(op.results[0])), operands)
    for name, attribute in attributes.items():
        _op(value).attributes[name] = attribute
    return value


def _reshaped(value: Value, shape: Sequence[int]) -> Value:
    """A value in another shape, of what it was reshaped from or broadcast if that is known."""
    if shape_of(value) == list(shape):
        return value
    op, type_ = defining_op(value), tensor(shape, element_of(value))
    if op is not None and op.name == RESHAPE and shape_of(op.operands[0]) == list(shape):
        return op.operands[0]
    if op is not None and op.name == _BROADCAST:
        dimensions = _broadcast_to(op, shape)
        if dimensions is not None:
            return build.broadcast_in_dim(type_, op.operands[0], dimensions)
    return build.reshape(type_, value)


def _broadcast_to(op: ir.Operation, shape: Sequence[int]) -> list[int] | None:
    """The dimensions along which a broadcast gives another shape; None if it cannot."""
    sizes = shape_of(op.operands[0])
    dimensions = list(ir.DenseI64ArrayAttr(op.attributes["broadcast_dimensions"]))
    found = list[int]()
    for (first, last), (start, end) in _groups(shape_of(op.results[0]), shape):
        inside = [k for k, dimension in enumerate(dimensions) if first <= dimension < last]
        is_kept = last - first == end - start == 1
        if len(inside) > 1 or not (is_kept or all(sizes[k] == 1 for k in inside)):
            return None
        found += [start] * len(inside)
    return found if dimensions == sorted(dimensions) else None


def _op(value: Value) -> ir.Operation:
    op = defining_op(value)
    assert op is not None, "it is the result of an operation"
    return op


def _integer(op: ir.Operation, name: str) -> int:
    return ir.IntegerAttr(op.attributes[name]).value


def _number(value: int) -> ir.Attribute:
    return ir.IntegerAttr.get(ir.IntegerType.get_signless(64), value)
