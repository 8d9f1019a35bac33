"""Arrays of integers that are sums of multiples of indices: the numbers of the elements of a block.

Such an array is known, whatever its size, by its first element on each device and by what it grows
by along each dimension.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxlib.mlir import ir
from shmap_passes.ir.collective_ops import indexed_axes, is_axis_index
from shmap_passes.ir.mesh import Mesh
from shmap_passes.ir.ops import defining_op, terminator
from shmap_passes.ir.types import Value

from shmap_compiler.unjit.types import elements_of, is_tensor, shape_of

_SAME = ("stablehlo.convert", "stablehlo.copy")


@dataclass(frozen=True)
class Affine:
    """The elements `first + sum(index[dim] * steps[dim])` of an array.

    Attributes:
      first: for each device.
      steps: for each dimension; 0 along dimensions of size one.
    """

    first: np.ndarray
    steps: tuple[int, ...]

    def fits(self, shape: tuple[int, ...], bits: int) -> bool:
        """Whether all elements are numbers of so many bits."""
        spans = [(size - 1) * step for size, step in zip(shape, self.steps, strict=True)]
        low = int(self.first.min()) + sum(min(span, 0) for span in spans)
        high = int(self.first.max()) + sum(max(span, 0) for span in spans)
        return low >= 0 and high < 2**bits

    def is_constant(self) -> bool:
        """Whether it is one number, on all devices."""
        return not any(self.steps) and bool(np.all(self.first == self.first[0]))


class AffineNumbers:
    """The arrays of a module that are known in this way."""

    def __init__(self, mesh: Mesh):
        self._mesh = mesh
        self._known: dict[Value, Affine | None] = {}

    def read(self, value: Value) -> Affine | None:
        """An array of integers; None if it is not of this kind."""
        if value not in self._known:
            op = defining_op(value)
            if op is not None:
                self._known[value] = self._computed(op)
            else:
                start = _start(value)
                self._known[value] = None if start is None else self.read(start)
        return self._known[value]

    def block(self, whole: tuple[int, ...], shape: tuple[int, ...], first: np.ndarray) -> Affine:
        """The numbers of the elements of a block of a row-major array.

        Args:
          first: the index of its first element, for each device and dimension.
        """
        strides = [int(np.prod(whole[dim + 1 :], dtype=np.int64)) for dim in range(len(whole))]
        steps = tuple(s if n > 1 else 0 for s, n in zip(strides, shape, strict=True))
        return Affine(first @ np.array(strides, np.int64), steps)

    def along(self, axes: tuple[str, ...]) -> np.ndarray:
        """The index of each device along axes, the first of which is the major one."""
        found = np.zeros(self._mesh.size, np.int64)
        for axis in axes:
            index = [self._mesh.position(device, axis) for device in range(self._mesh.size)]
            found = found * self._mesh.sizes[axis] + np.array(index, np.int64)
        return found

    def _computed(self, op: ir.Operation) -> Affine | None:
        if len(op.results) != 1 or not is_tensor(op.results[0]):
            return None
        value = op.results[0]
        shape = shape_of(value)
        if not isinstance(ir.RankedTensorType(value.type).element_type, ir.IntegerType):
            return None
        if is_axis_index(op):
            return Affine(self.along(indexed_axes(op)), ())
        if op.name == "stablehlo.partition_id":
            return Affine(np.arange(self._mesh.size, dtype=np.int64), ())
        if op.name == "stablehlo.constant":
            return self._constant(op)
        if op.name == "stablehlo.iota":
            dim = ir.IntegerAttr(op.attributes["iota_dimension"]).value
            steps = [int(k == dim and size > 1) for k, size in enumerate(shape)]
            return Affine(np.zeros(self._mesh.size, np.int64), tuple(steps))
        operands = [self.read(operand) for operand in op.operands]
        if not operands or any(each is None for each in operands):
            return None
        given = [each for each in operands if each is not None]
        return self._combined(op, shape, given)

    def _combined(
        self, op: ir.Operation, shape: tuple[int, ...], given: list[Affine]
    ) -> Affine | None:
        left, right = given[0], given[-1]
        if op.name in _SAME:
            return left
        if op.name in ("stablehlo.add", "stablehlo.subtract"):
            sign = 1 if op.name == "stablehlo.add" else -1
            steps = zip(left.steps, right.steps, strict=True)
            return Affine(left.first + sign * right.first, tuple(a + sign * b for a, b in steps))
        if op.name == "stablehlo.multiply":
            if left.is_constant():
                left, right = right, left
            if not right.is_constant():
                return None
            factor = int(right.first[0])
            return Affine(left.first * factor, tuple(step * factor for step in left.steps))
        if op.name == "stablehlo.shift_right_logical":
            is_gone = right.is_constant() and left.fits(shape, int(right.first[0]))
            return Affine(left.first * 0, (0,) * len(shape)) if is_gone else None
        if op.name == "stablehlo.broadcast_in_dim":
            steps = [0] * len(shape)
            dims = list(ir.DenseI64ArrayAttr(op.attributes["broadcast_dimensions"]))
            for dim, step in zip(dims, left.steps, strict=True):
                steps[dim] = step
            return Affine(left.first, tuple(steps))
        if op.name == "stablehlo.reshape":
            return _reshaped(left, shape_of(op.operands[0]), shape)
        return None

    def _constant(self, op: ir.Operation) -> Affine | None:
        elements = elements_of(op)
        if elements is None or isinstance(elements, np.ndarray):
            return None
        rank = len(shape_of(op.results[0]))
        return Affine(np.full(self._mesh.size, int(elements), np.int64), (0,) * rank)


def _start(argument: Value) -> Value | None:
    """What an argument of a loop's body is in all steps; None if it changes."""
    block: ir.Block = ir.BlockArgument(argument).owner
    loop: ir.Operation = block.owner.operation
    if loop.name != "stablehlo.while":
        return None
    k = ir.BlockArgument(argument).arg_number
    body = loop.regions[1].blocks[0]
    return loop.operands[k] if terminator(body).operands[k] == body.arguments[k] else None


def _reshaped(number: Affine, before: tuple[int, ...], after: tuple[int, ...]) -> Affine | None:
    """A reshape that adds or removes dimensions of size one."""
    kept = [step for step, size in zip(number.steps, before, strict=True) if size > 1]
    if [size for size in before if size > 1] != [size for size in after if size > 1]:
        return None
    rest = iter(kept)
    return Affine(number.first, tuple(next(rest) if size > 1 else 0 for size in after))
