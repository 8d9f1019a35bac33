"""How a cut of a value goes through the operations that are computed from it.

A dimension that is cut has `outer * size * inner` indices, in row-major order, of which those in
the middle are taken in pieces. Mostly `outer` and `inner` are one. After the gather of a piece of
each device's rows, `outer` is the number of devices.
"""

from __future__ import annotations

from math import prod
from typing import NamedTuple

from jaxlib.mlir import ir

from ...ir.elementwise import ELEMENTWISE
from ...ir.instructions import has_instructions
from ...ir.types import have_same_shape, shape_of
from .products import DOT, Product

SLICE = "stablehlo.slice"
TRANSPOSE, RESHAPE = "stablehlo.transpose", "stablehlo.reshape"
_PAD, _JOIN = "stablehlo.pad", "stablehlo.concatenate"
MOVING = frozenset(
    (SLICE, _PAD, _JOIN, *(f"stablehlo.{n}" for n in ("transpose", "reshape", "broadcast_in_dim")))
)
"""Operations that only move numbers, and give a piece of pieces."""


class Cut(NamedTuple):
    """A dimension of a value, and which of its indices are cut."""

    dimension: int
    size: int
    outer: int = 1
    inner: int = 1

    def along(self, dimension: int) -> Cut:
        """The same indices of another dimension."""
        return Cut(dimension, self.size, self.outer, self.inner)

    def of(self, outer: int) -> Cut:
        """The same indices of another number of blocks."""
        return Cut(self.dimension, self.size, outer, self.inner)


def cut_through(op: ir.Operation, number: int, cut: Cut) -> Cut | None:
    """The cut of the result of `op` if operand `number` is cut; None if pieces do not suffice.

    With pieces of operands, the op computes the piece of its result, bit by bit the same. What has
    instructions to XLA is not computed in pieces; for products, sites tell (`Site`).
    """
    name = op.name
    if len(op.results) != 1 or (name != DOT and has_instructions(op)):
        return None
    if name in ELEMENTWISE:
        return cut  # other operands are cut alike, or scalars, which have no cut
    if name in (SLICE, _PAD, _JOIN):
        return cut if _keeps(op, cut.dimension) else None
    if name == TRANSPOSE:
        order = list(ir.DenseI64ArrayAttr(op.attributes["permutation"]))
        return cut.along(order.index(cut.dimension))
    if name == "stablehlo.broadcast_in_dim":
        dimensions = list(ir.DenseI64ArrayAttr(op.attributes["broadcast_dimensions"]))
        to = dimensions[cut.dimension]
        same = shape_of(op.operands[0])[cut.dimension] == shape_of(op.results[0])[to]
        return cut.along(to) if same else None
    if name == RESHAPE:
        return _through_reshape(shape_of(op.operands[0]), shape_of(op.results[0]), cut)
    if name == DOT:
        product = Product.of(op)
        if product.role(number, cut.dimension) == "contracted":
            return None
        return cut.along(product.result_dimension(number, cut.dimension))
    return None


def _keeps(op: ir.Operation, dimension: int) -> bool:
    """Whether what takes, pads or joins arrays leaves a dimension as it is."""
    if op.name == _JOIN:
        return ir.IntegerAttr(op.attributes["dimension"]).value != dimension
    if op.name == _PAD:
        names = ("edge_padding_low", "edge_padding_high", "interior_padding")
        return not any(ir.DenseI64ArrayAttr(op.attributes[name])[dimension] for name in names)
    strides = ir.DenseI64ArrayAttr(op.attributes["strides"])
    sizes = [shape_of(value)[dimension] for value in (op.operands[0], op.results[0])]
    return strides[dimension] == 1 and sizes[0] == sizes[1]


def _through_reshape(old: list[int], new: list[int], cut: Cut) -> Cut | None:
    """Where the same indices are in an array of the same elements."""
    before = prod(old[: cut.dimension]) * cut.outer
    if not before * cut.size:
        return None  # of an array without elements
    for dimension, size in enumerate(new):
        start = prod(new[:dimension])
        end = start * size
        # The dimension begins at or before the cut, and ends at or after its end.
        if start and before % start == 0 and end % (before * cut.size) == 0 and end > before:
            outer = before // start
            return Cut(dimension, cut.size, outer, size // (outer * cut.size))
    return None


def cut_of_operand(op: ir.Operation, number: int, cut: Cut) -> Cut | None:
    """The cut that operand `number` must have if the result is cut; None if it is taken whole.

    For transposes and reshapes, and for what can have several operands: elementwise operations,
    products, and what takes, pads or joins arrays. None also if a reshape has no such cut.
    """
    name = op.name
    if name == DOT:
        dimension = Product.of(op).operand_dimensions(cut.dimension).get(number)
        return None if dimension is None else cut.along(dimension)
    if name == TRANSPOSE:
        order = list(ir.DenseI64ArrayAttr(op.attributes["permutation"]))
        return cut.along(order[cut.dimension])
    if name == RESHAPE:
        return _through_reshape(shape_of(op.results[0]), shape_of(op.operands[0]), cut)
    if name in (SLICE, _PAD, _JOIN):
        return cut if ir.RankedTensorType(op.operands[number].type).rank else None
    return cut if have_same_shape(op.operands[number], op.results[0]) else None
