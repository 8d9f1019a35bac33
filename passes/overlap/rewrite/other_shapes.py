"""What operations give for operands that were not reshaped, in the shape that these have.

    before_reshape(reshape, user, ...)      for what `reshape` has reshaped, what `user` gives
    computed_in(shape, value, ...)          what a value that is computed of products is in a shape

A product is given other dimensions in place of some that are all free or all contracted; elements
of elements are computed in any shape. The operation that is replaced stays.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from ...ir import build
from ...ir.elementwise import ELEMENTWISE
from ...ir.instructions import has_instructions
from ...ir.ops import defining_op
from ...ir.types import Value, element_of, shape_of, tensor
from ..find.cuts import RESHAPE
from ..find.products import DOT, Product
from ..find.row_sums import REDUCE
from ..find.shapes import groups

BROADCAST = "stablehlo.broadcast_in_dim"
MOST_OPS = 64
"""A reshape changes place with so many operations at most."""


def may_move(op: ir.Operation) -> bool:
    """Whether an operation reshapes, or computes elements of elements, and has no instructions.

    Scalars, and what has no elements, stay as they are.
    """
    if op.name != RESHAPE and (op.name not in ELEMENTWISE or len(op.results) != 1):
        return False
    shape = shape_of(op.results[0])
    return bool(shape) and 0 not in shape and not has_instructions(op)


def only_used(value: Value, block: ir.Block) -> ir.Operation | None:
    """The operation of a block that computes a value with one use; None if it has more."""
    op = defining_op(value)
    is_there = op is not None and op.block == block
    return op if is_there and len(list(value.uses)) == 1 else None


def before_reshape(
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
    if user.name not in ELEMENTWISE or not may_move(user) or not _has_one_shape(user):
        return None
    with ir.InsertionPoint(user), user.location:
        operands = [reshaped(x, shape) if shape_of(x) else x for x in user.operands]
    return moved(user, operands, shape)


def _reduced(reshape: ir.Operation, user: ir.Operation) -> Value | None:
    """What a reduction gives of what was not reshaped; None if it keeps a part of what was."""
    (old, new), reduced = map(shape_of, (reshape.operands[0], reshape.results[0])), list[int]()
    dimensions = {*ir.DenseI64ArrayAttr(user.attributes["dimensions"])}
    for (first, last), (start, end) in groups(old, new):
        if dimensions.issuperset(range(start, end)):
            reduced += range(first, last)
        elif old[first:last] != new[start:end] or dimensions.intersection(range(start, end)):
            return None
    if len(user.results) != 1:
        return None
    operands = [reshape.operands[0], user.operands[1]]
    numbers = ir.DenseI64ArrayAttr.get(reduced)
    return moved(user, operands, shape_of(user.results[0]), dimensions=numbers)


def has_products(value: Value, shape: Sequence[int], block: ir.Block, most: int = MOST_OPS) -> bool:
    """Whether a value is computed of products that can give it in another shape.

    Args:
      most: so many operations at most are between the value and a product.
    """
    op = only_used(value, block)
    if op is None or has_instructions(op):
        return False
    if op.name == DOT:
        return _edits_of_result(Product.of(op), shape) is not None
    if not most or op.name not in ELEMENTWISE or not may_move(op) or not _has_one_shape(op):
        return False
    return any(has_products(x, shape, block, most - 1) for x in op.operands)


def computed_in(shape: Sequence[int], value: Value, block: ir.Block, most: int = MOST_OPS) -> Value:
    """A value that `has_products`, or is an operand of one, in another shape."""
    if not shape_of(value):
        return value  # one scalar for all elements
    if not has_products(value, shape, block, most):
        return reshaped(value, shape)
    op = op_of(value)
    if op.name == DOT:
        edits = _edits_of_result(Product.of(op), shape)
        assert edits is not None, "it has products that give this shape"
        return _product(op, edits)
    with ir.InsertionPoint(op), op.location:
        operands = [computed_in(shape, x, block, most - 1) for x in op.operands]
    return moved(op, operands, shape)


def _has_one_shape(op: ir.Operation) -> bool:
    """Whether the operands that are not scalars have the shape of the result."""
    return all(shape_of(x) in (shape_of(op.results[0]), []) for x in op.operands)


# ----------------------------------------------------------------------------------- products


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
    for (first, last), (start, end) in groups(old, new):
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
    for (first, last), (start, end) in groups(old, shape):
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
    """The range that some dimensions form, in order; None if they form none."""
    start, end = dimensions[0], dimensions[0] + len(dimensions)
    return (start, end) if list(dimensions) == list(range(start, end)) else None


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
        operands = list(map(reshaped, op.operands, (left, right)))
    return moved(op, operands, sizes, dot_dimension_numbers=numbers)


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


def moved(
    op: ir.Operation, operands: Sequence[Value], shape: Sequence[int], **attributes: ir.Attribute
) -> Value:
    """What an operation gives for other operands, in another shape, where it is."""
    with ir.InsertionPoint(op), op.location:
        value = build.like(op, tensor(shape, element_of(op.results[0])), operands)
    for name, attribute in attributes.items():
        op_of(value).attributes[name] = attribute
    return value


def reshaped(value: Value, shape: Sequence[int]) -> Value:
    """A value in another shape, of what it was reshaped from or broadcast if that is known."""
    if shape_of(value) == list(shape):
        return value
    op, type_ = defining_op(value), tensor(shape, element_of(value))
    if op is not None and op.name == RESHAPE and shape_of(op.operands[0]) == list(shape):
        return op.operands[0]
    if op is not None and op.name == BROADCAST:
        dimensions = _broadcast_to(op, shape)
        if dimensions is not None:
            return build.broadcast_in_dim(type_, op.operands[0], dimensions)
    return build.reshape(type_, value)


def _broadcast_to(op: ir.Operation, shape: Sequence[int]) -> list[int] | None:
    """The dimensions along which a broadcast gives another shape; None if it cannot."""
    sizes = shape_of(op.operands[0])
    dimensions = list(ir.DenseI64ArrayAttr(op.attributes["broadcast_dimensions"]))
    found = list[int]()
    for (first, last), (start, end) in groups(shape_of(op.results[0]), shape):
        inside = [k for k, dimension in enumerate(dimensions) if first <= dimension < last]
        is_kept = last - first == end - start == 1
        if len(inside) > 1 or not (is_kept or all(sizes[k] == 1 for k in inside)):
            return None
        found += [start] * len(inside)
    return found if dimensions == sorted(dimensions) else None


def op_of(value: Value) -> ir.Operation:
    op = defining_op(value)
    assert op is not None, "it is the result of an operation"
    return op
