"""What stands for the values of a module in the source: variables, expressions, numbers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxlib.mlir import ir
from shmap_passes.ir.mesh import Mesh
from shmap_passes.ir.ops import defining_op
from shmap_passes.ir.types import Value

from shmap_compiler.unjit import layout
from shmap_compiler.unjit.layout import ATOM, Code, call, numbers
from shmap_compiler.unjit.positions import Positions
from shmap_compiler.unjit.types import dtype_code, elements_of, literal, shape_of

_MOST_ELEMENTS = 64
"""A constant of more different elements is embedded as StableHLO."""


@dataclass(frozen=True)
class Known:
    """What stands for a value where it is used.

    Attributes:
      code: an expression; of a number, the number.
      is_number: whether it is a Python number, which takes the type of what it is combined with.
      source_shape: of a broadcast, the shape of `code`.
      dims: of a broadcast, the dimensions of the result that those of `code` become.
    """

    code: Code
    is_number: bool = False
    source_shape: tuple[int, ...] | None = None
    dims: tuple[int, ...] = ()


class KnownValues:
    """The expressions of values."""

    def __init__(self, mesh: Mesh):
        self.mesh = mesh
        self._known: dict[Value, Known] = {}
        self._constants: dict[Value, np.ndarray] = {}
        self._positions = Positions(mesh)

    def bind(self, value: Value, code: str) -> None:
        """Says which expression stands for a value."""
        self._known[value] = Known(Code(code))

    def same(self, value: Value, other: Value) -> None:
        """Says that a value is another one."""
        self._known[value] = self._known[other]
        if other in self._constants:
            self._constants[value] = self._constants[other]

    def constant(self, value: Value) -> np.ndarray | None:
        return self._constants.get(value)

    def number_of(self, value: Value) -> None:
        """Notes a constant that is not written yet."""
        op = defining_op(value)
        if value not in self._known and op is not None:
            self._is_number(op)

    def is_number(self, value: Value) -> bool:
        """Whether a value is one number, in all places."""
        return value in self._known and self._known[value].is_number

    def exact(self, value: Value) -> Code:
        known = self._known[value]
        if known.is_number:
            return _filled(value, known.code)
        if known.source_shape is None:
            return known.code
        if known.source_shape == ():
            return call("jnp.full", numbers(shape_of(value)), known.code)
        return call(
            "jnp.broadcast_to",
            spread(known, shape_of(value)),
            numbers(shape_of(value)),
        )

    def loose(self, value: Value) -> tuple[Code, bool, bool]:
        known = self._known[value]
        if known.is_number:
            return known.code, shape_of(value) == (), False
        if known.source_shape is None:
            return known.code, True, True
        return spread(known, shape_of(value)), False, True

    def _is_number(self, op: ir.Operation) -> bool:
        if op.name != "stablehlo.constant":
            return False
        value, elements = op.results[0], elements_of(op)
        if isinstance(elements, np.ndarray):
            if elements.size <= _MOST_ELEMENTS:
                self._constants[value] = elements
            return False
        if elements is None:
            return False
        self._constants[value] = np.asarray(elements)
        text = literal(elements)
        if isinstance(elements, np.unsignedinteger) and int(elements) >= 2**31:
            self._known[value] = _typed_number(value, text)
            return True
        level = layout.UNARY if text.startswith("-") else ATOM
        self._known[value] = Known(Code(text, level), is_number=True)
        return True

    def _is_position(self, op: ir.Operation) -> bool:
        """Whether an operation computes a number, or one that indices of mesh axes give."""
        found = self._positions.read(op, self._constants.get)
        if found is None:
            return False
        value = op.results[0]
        if np.all(found == found[0]):
            self._constants[value] = found[0]
            text = literal(found[0])
            level = layout.UNARY if text.startswith("-") else ATOM
            self._known[value] = Known(Code(text, level), is_number=True)
            return True
        code = self._positions.spelled(value, found)
        if code is None:
            return False
        self._known[value] = Known(code)
        return True


def _filled(value: Value, number: Code) -> Code:
    """A number as an array of the type of a value."""
    shape, dtype = shape_of(value), dtype_code(value)
    if shape == ():
        return call(dtype, number)
    if number.text in ("0", "0.0"):
        return call("jnp.zeros", numbers(shape), dtype)
    return call("jnp.full", numbers(shape), number, dtype)


def _typed_number(value: Value, text: str) -> Known:
    """A number that is too large for the type that JAX gives to Python's."""
    code = Code(f"{dtype_code(value)}({text})")
    return Known(code, source_shape=()) if shape_of(value) else Known(code)


def spread(known: Known, shape: tuple[int, ...]) -> Code:
    """An expression that broadcasts to a shape as NumPy does."""
    first = known.dims[0] if known.dims else len(shape)
    index = [":" if dim in known.dims else "None" for dim in range(first, len(shape))]
    if "None" not in index:
        return known.code
    while index[-1] == ":":
        index.pop()
    return Code(f"{known.code.at(ATOM)}[{', '.join(index)}]")
