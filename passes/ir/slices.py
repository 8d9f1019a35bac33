"""Takes slices of arrays, and puts them in their places, at indices known when the program runs.

Everything here is built at the current insertion point and location.
"""

from __future__ import annotations

from jaxlib.mlir import ir

from . import build
from .memoize import memoized
from .types import Value, shape_of


def scalar(value: int) -> Value:
    """An index."""
    return build.constant(_index(value, ir.Location.unknown().context))


@memoized
def _index(value: int, context: ir.Context) -> ir.DenseElementsAttr:
    i32 = ir.IntegerType.get_signless(32, context)
    element = ir.IntegerAttr.get(i32, value)
    with ir.Location.unknown(context):
        return ir.DenseElementsAttr.get_splat(ir.RankedTensorType.get([], i32), element)


def take_at(value: Value, dimension: int, start: Value, size: int) -> Value:
    """`size` indices of a dimension, from one that is known when the program runs."""
    shape = shape_of(value)
    if size == shape[dimension]:
        return value
    shape[dimension] = size
    return build.dynamic_slice(value, _starts(value, dimension, start), shape)


def put_at(whole: Value, piece: Value, dimension: int, start: Value) -> Value:
    """`whole` with a piece put in its place along a dimension."""
    return build.dynamic_update_slice(whole, piece, _starts(whole, dimension, start))


def _starts(value: Value, dimension: int, start: Value) -> list[Value]:
    zero = scalar(0)
    return [start if d == dimension else zero for d in range(len(shape_of(value)))]
