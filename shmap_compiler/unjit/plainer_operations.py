"""Rewrites of what XLA writes at length: the same values, with operations that read better."""

from __future__ import annotations

import numpy as np
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo
from shmap_passes.ir.find_ops import find_ops
from shmap_passes.ir.ops import defining_op
from shmap_passes.ir.types import Value

from shmap_compiler.unjit.types import dtype_of, element_of, elements_of, shape_of

_SPREADING = ("stablehlo.broadcast_in_dim", "stablehlo.reshape")
_COMPARED = {
    "EQ": lambda a, b: a == b,
    "NE": lambda a, b: a != b,
    "GE": lambda a, b: a >= b,
    "GT": lambda a, b: a > b,
    "LE": lambda a, b: a <= b,
    "LT": lambda a, b: a < b,
}


def write_plainly(root: ir.Operation) -> None:
    """Rewrites the operations in a function.

    Broadcasts to the shape that is there and reshapes of reshapes go away, as do choices that
    constants make. A dimension of size one is broadcast as it is.
    """
    for op in find_ops(root, ["stablehlo.broadcast_in_dim"]):
        dims = _dims(op)
        if op.operands[0].type == op.results[0].type and dims == list(range(len(dims))):
            _replace(op, op.operands[0])
    for op in find_ops(root, ["stablehlo.reshape"]):
        source = defining_op(op.operands[0])
        while source is not None and source.name == "stablehlo.reshape":
            op.operands[0] = source.operands[0]
            source = defining_op(op.operands[0])
        if op.operands[0].type == op.results[0].type:
            _replace(op, op.operands[0])
    for op in find_ops(root, ["stablehlo.broadcast_in_dim"]):
        _broadcast_directly(op)
    for op in find_ops(root, ["stablehlo.select"]):
        chosen = _known(op.operands[0])
        if chosen is not None:
            _replace(op, op.operands[1 if chosen else 2])


def _replace(op: ir.Operation, value: Value) -> None:
    op.results[0].replace_all_uses_with(value)
    op.erase()


def _dims(op: ir.Operation) -> list[int]:
    return list(ir.DenseI64ArrayAttr(op.attributes["broadcast_dimensions"]))


def _broadcast_directly(op: ir.Operation) -> None:
    """Broadcasts what a reshape drops dimensions of size one from, if they have a place."""
    reshape = defining_op(op.operands[0])
    if reshape is None or reshape.name != "stablehlo.reshape":
        return
    shape = shape_of(reshape.operands[0])
    rank = len(shape_of(op.results[0]))
    kept = [k for k, size in enumerate(shape) if size != 1]
    if not kept or tuple(shape[k] for k in kept) != shape_of(op.operands[0]):
        return
    # Dimensions keep their order, as in a reduction with keepdims=True.
    places = dict(zip(kept, _dims(op), strict=True))
    dims: list[int] = []
    for k in range(len(shape)):
        lowest = dims[-1] + 1 if dims else 0
        if k in places:
            place = places[k]
        elif len(shape) == rank:
            place = k
        else:
            return
        if place < lowest:
            return
        dims.append(place)
    with ir.InsertionPoint(op), op.location:
        made = stablehlo.broadcast_in_dim(
            op.results[0].type, reshape.operands[0], ir.DenseI64ArrayAttr.get(dims)
        )
    _replace(op, made)


def _known(value: Value) -> bool | None:
    """What a condition is, where it compares numbers that are known; None for others."""
    op = defining_op(value)
    while op is not None and op.name in _SPREADING:
        op = defining_op(op.operands[0])
    if op is None or op.name != "stablehlo.compare" or element_of(op.operands[0]) == "i1":
        return None
    left, right = map(_number, op.operands)
    direction = str(op.attributes["comparison_direction"]).rstrip(">").rpartition(" ")[2]
    return None if left is None or right is None else bool(_COMPARED[direction](left, right))


def _number(value: Value) -> np.number | None:
    """The number that all elements of a value are; None if it is not known."""
    op = defining_op(value)
    if op is None:
        return None
    if op.name == "stablehlo.constant":
        elements = elements_of(op)
        return elements if isinstance(elements, np.number) else None
    if op.name in _SPREADING:
        return _number(op.operands[0])
    if op.name == "stablehlo.convert":
        number = _number(op.operands[0])
        return None if number is None else dtype_of(value).type(number)
    if op.name == "stablehlo.subtract":
        left, right = map(_number, op.operands)
        return None if left is None or right is None else left - right
    return None
