"""Evaluates scalar integers for every device, and finds which block a slice takes on each.

An index such as `axis_index * size`, with the additions that front-ends emit for negative indices,
is a compile-time constant on each device. So is what XLA's partitioner looks up in a table at
`partition_id`. Arrays in this file have one dimension per mesh axis, of size one if the value does
not depend on the axis.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from jaxlib.mlir import ir

from ..ir.body_form import BodyForm
from ..ir.collective_ops import indexed_axes, is_axis_index
from ..ir.constants import integers
from ..ir.elementwise import comparison
from ..ir.mesh import MOST_LISTED, Mesh
from ..ir.ops import defining_op
from ..ir.types import Value

DYNAMIC_SLICE = "stablehlo.dynamic_slice"

# Index computations are short; what is longer counts as unknown.
_DEEPEST = 32


def slices_of(op: ir.Operation) -> list[ir.Operation]:
    """The dynamic_slices that cut something out of the result of `op`."""
    users = ((use.owner.operation, use.operand_number) for use in op.results[0].uses)
    return [user for user, number in users if user.name == DYNAMIC_SLICE and number == 0]


def takes_own_block(
    slice_: ir.Operation, dimension: int, axes: Sequence[str], form: BodyForm
) -> bool:
    """Whether a dynamic_slice takes block number k of `dimension` on the device with index k.

    The index is that along `axes`, first axis major; the blocks are as many as there are devices.
    Other dimensions must be taken whole.
    """
    if form.mesh.size > MOST_LISTED:
        return False
    whole = ir.RankedTensorType(slice_.operands[0].type).shape
    sizes = ir.RankedTensorType(slice_.results[0].type).shape
    count = form.mesh.product(axes)
    wanted = [size // count if k == dimension else size for k, size in enumerate(whole)]
    if list(sizes) != wanted or whole[dimension] % count:
        return False
    # Starts are clamped: that of a dimension taken whole is always zero.
    start = evaluate(slice_.operands[1 + dimension], form.mesh, {})
    return start is not None and bool(
        np.all(start == index_along(axes, form.mesh) * sizes[dimension])
    )


def index_along(axes: Sequence[str], mesh: Mesh) -> np.ndarray:
    """The row-major index of each device along `axes`, first axis major."""
    index = np.zeros([1] * len(mesh.axes), np.int64)
    for axis in axes:
        shape = [size if name == axis else 1 for name, size in mesh.axes]
        index = index * mesh.sizes[axis] + np.arange(mesh.sizes[axis]).reshape(shape)
    return index


def evaluate(
    value: Value, mesh: Mesh, known: dict[Value, np.ndarray | None], depth: int = 0
) -> np.ndarray | None:
    """Returns the value on every device; None if it is unknown.

    Args:
      value: a tensor with one element.
      mesh: the devices; at most `MOST_LISTED`.
      known: what is known already. It is extended.
      depth: the number of ops between `value` and the one that is asked for.
    """
    if value not in known:
        op = defining_op(value)
        dtype = _dtype(value.type)
        known[value] = None
        if op is not None and dtype is not None and depth < _DEEPEST:
            found = _result(op, mesh, lambda operand: evaluate(operand, mesh, known, depth + 1))
            known[value] = None if found is None else found.astype(dtype)
    return known[value]


def _dtype(type_: ir.Type) -> np.dtype | None:
    """The type of one integer or boolean, alone or in a tensor of one element."""
    if not isinstance(type_, ir.RankedTensorType) or any(size != 1 for size in type_.shape):
        return None
    element = type_.element_type
    if not isinstance(element, ir.IntegerType):
        return None
    if element.width == 1:
        return np.dtype(bool)
    if element.width not in (8, 16, 32, 64):
        return None
    return np.dtype(f"{'u' if element.is_unsigned else ''}int{element.width}")


def _result(
    op: ir.Operation, mesh: Mesh, of: Callable[[Value], np.ndarray | None]
) -> np.ndarray | None:
    if is_axis_index(op):
        return index_along(indexed_axes(op), mesh)
    if op.name == "stablehlo.partition_id":
        return index_along(mesh.names, mesh)
    if op.name == "stablehlo.constant":
        value = integers(op)
        return None if value is None else value.reshape([1] * len(mesh.axes))
    if op.name == DYNAMIC_SLICE:
        return _looked_up(op, of)
    compute = _COMPUTE.get(op.name)
    if compute is None:
        return None
    operands = [of(operand) for operand in op.operands]
    known = [operand for operand in operands if operand is not None]
    return compute(op, *known) if len(known) == len(operands) else None


def _looked_up(op: ir.Operation, of: Callable[[Value], np.ndarray | None]) -> np.ndarray | None:
    """An element of a constant list."""
    table = defining_op(op.operands[0])
    if table is None or table.name != "stablehlo.constant" or len(op.operands) != 2:
        return None
    index, values = of(op.operands[1]), integers(table)
    if index is None or values is None:
        return None
    return values[np.clip(index, 0, len(values) - 1)]


def _divide(op: ir.Operation, left: np.ndarray, right: np.ndarray) -> np.ndarray | None:
    return left // right if _is_natural(left, right) else None


def _remainder(op: ir.Operation, left: np.ndarray, right: np.ndarray) -> np.ndarray | None:
    return left % right if _is_natural(left, right) else None


def _is_natural(left: np.ndarray, right: np.ndarray) -> bool:
    """Whether NumPy divides as StableHLO does, which rounds toward zero."""
    return bool(np.all(left >= 0) and np.all(right > 0))


_COMPUTE: dict[str, Callable[..., np.ndarray | None]] = {
    "stablehlo.add": lambda op, a, b: a + b,
    "stablehlo.and": lambda op, a, b: a & b,
    "stablehlo.clamp": lambda op, low, a, high: np.minimum(np.maximum(low, a), high),
    "stablehlo.compare": lambda op, a, b: comparison(op)(a, b),
    "stablehlo.convert": lambda op, a: a,
    "stablehlo.divide": _divide,
    "stablehlo.maximum": lambda op, a, b: np.maximum(a, b),
    "stablehlo.minimum": lambda op, a, b: np.minimum(a, b),
    "stablehlo.multiply": lambda op, a, b: a * b,
    "stablehlo.or": lambda op, a, b: a | b,
    "stablehlo.remainder": _remainder,
    "stablehlo.reshape": lambda op, a: a,
    "stablehlo.select": lambda op, test, a, b: np.where(test, a, b),
    "stablehlo.subtract": lambda op, a, b: a - b,
}
