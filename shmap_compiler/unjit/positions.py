"""Numbers that are known for each device, such as where its block begins, by mesh axes.

XLA computes where blocks begin in steps: a multiple of one index minus a multiple of another one.
What such a value is on each device says how it is written: `lax.axis_index("i") * 2`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import permutations
from typing import Any

import numpy as np
from jaxlib.mlir import ir
from shmap_passes.ir.collective_ops import indexed_axes, is_axis_index
from shmap_passes.ir.mesh import Mesh
from shmap_passes.ir.types import Value

from shmap_compiler.unjit import layout
from shmap_compiler.unjit.layout import Code, binary, call, display
from shmap_compiler.unjit.signature import quoted
from shmap_compiler.unjit.types import dtype_code, dtype_of, is_tensor, shape_of

_COMPUTED: dict[str, Callable[..., Any]] = {
    "stablehlo.add": np.add,
    "stablehlo.subtract": np.subtract,
    "stablehlo.multiply": np.multiply,
    "stablehlo.maximum": np.maximum,
    "stablehlo.minimum": np.minimum,
    "stablehlo.convert": lambda x: x,
    "stablehlo.reshape": lambda x: x,
}


class Positions:
    """The scalars of a module that are known for each device of a mesh."""

    def __init__(self, mesh: Mesh):
        self._mesh = mesh
        coordinates = [mesh.coordinates(device) for device in range(mesh.size)]
        self._index = {
            axis: np.array([each[axis] for each in coordinates], np.int64) for axis in mesh.names
        }
        self._known: dict[Value, np.ndarray] = {}

    def read(
        self, op: ir.Operation, constant: Callable[[Value], np.ndarray | None]
    ) -> np.ndarray | None:
        """What an operation computes on each device; None if that is not known.

        Args:
          constant: the elements of a constant.
        """
        found = self._read(op, constant)
        if found is not None:
            self._known[op.results[0]] = found
        return found

    def _read(
        self, op: ir.Operation, constant: Callable[[Value], np.ndarray | None]
    ) -> np.ndarray | None:
        if len(op.results) != 1 or not is_tensor(op.results[0]):
            return None
        value = op.results[0]
        dtype = dtype_of(value)
        if shape_of(value) != () or dtype.kind not in "iuf":
            return None
        if is_axis_index(op):
            return self._along(indexed_axes(op)).astype(dtype)
        if op.name == "stablehlo.partition_id":
            return np.arange(self._mesh.size).astype(dtype)
        compute = _COMPUTED.get(op.name)
        if compute is None:
            return None
        rows = []
        for operand in op.operands:
            number = constant(operand)
            known = self._known.get(operand)
            if known is None and (number is None or number.dtype.kind not in "iuf"):
                return None
            rows.append(known if known is not None else np.full(self._mesh.size, number))
        found = np.asarray(compute(*rows)).astype(dtype)
        # Of numbers with fractions only those that are the same on all devices are of use.
        return None if dtype.kind == "f" and np.any(found != found[0]) else found

    def _along(self, axes: tuple[str, ...]) -> np.ndarray:
        """The index along several axes, the first of which is the major one."""
        found = np.zeros(self._mesh.size, np.int64)
        for axis in axes:
            found = found * self._mesh.sizes[axis] + self._index[axis]
        return found

    def spelled(self, value: Value, found: np.ndarray) -> Code | None:
        """An expression of indices along mesh axes; None if none is short."""
        for terms, first in self._candidates(found.astype(np.int64)):
            code = _sum(terms, first)
            if dtype_of(value) != np.int32:
                return call(f"{code.at(layout.ATOM)}.astype", dtype_code(value))
            return code
        return None

    def _candidates(
        self, found: np.ndarray
    ) -> Iterator[tuple[list[tuple[int, tuple[str, ...]]], int]]:
        """Multiples of indices, and what is added to them."""
        first = int(found[0])
        for count in range(1, len(self._mesh.names) + 1):
            for axes in permutations(self._mesh.names, count):
                index = self._along(axes)
                at = int(np.argmax(index == 1))
                factor = int(found[at]) - first
                if factor and np.array_equal(index * factor + first, found):
                    yield [(factor, axes)], first
        terms, total = [], np.full(self._mesh.size, first)
        for axis in self._mesh.names:
            at = int(np.argmax(self._along((axis,)) * (sum(self._index.values()) == 1)))
            factor = int(found[at]) - first if self._mesh.sizes[axis] > 1 else 0
            if factor:
                terms.append((factor, (axis,)))
                total = total + factor * self._index[axis]
        if len(terms) == 2 and np.array_equal(total, found):
            yield terms, first


def _sum(terms: list[tuple[int, tuple[str, ...]]], first: int) -> Code:
    codes = [_multiple(*term) for term in sorted(terms, key=lambda term: term[0] < 0)]
    if first > 0 and any(factor < 0 for factor, _ in terms):
        codes.insert(0, Code(str(first)))
        first = 0
    whole = codes[0]
    for code in codes[1:]:
        if code.text.startswith("-"):
            whole = binary(whole, "-", Code(code.text[1:], layout.PRODUCT), layout.SUM)
        else:
            whole = binary(whole, "+", code, layout.SUM)
    if first:
        whole = binary(whole, "+" if first > 0 else "-", Code(str(abs(first))), layout.SUM)
    return whole


def _multiple(factor: int, axes: tuple[str, ...]) -> Code:
    names = Code(quoted(axes[0])) if len(axes) == 1 else display("(", map(quoted, axes), ")")
    index = call("lax.axis_index", names)
    if factor == 1:
        return index
    if factor == -1:
        return Code(f"-{index.text}", layout.UNARY)
    sign = "-" if factor < 0 else ""
    return Code(f"{sign}{index.text} * {abs(factor)}", layout.PRODUCT)
