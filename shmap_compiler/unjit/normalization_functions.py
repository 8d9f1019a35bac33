"""The functions of normalizations that the source defines, which round as the program does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxlib.mlir import ir
from shmap_passes.ir.ops import defining_op
from shmap_passes.ir.types import Value

from shmap_compiler.unjit.layout import PRODUCT, SUM, Code, binary, call, lay_out
from shmap_compiler.unjit.types import elements_of, literal, shape_of

ALIKE = ("stablehlo.broadcast_in_dim", "stablehlo.reshape", "stablehlo.convert")
"""What changes the shape or the type of a value."""
_SPREADING = ("stablehlo.broadcast_in_dim", "stablehlo.reshape")
_OPERATORS = {
    "stablehlo.add": ("+", SUM, "bias"),
    "stablehlo.subtract": ("-", SUM, "bias"),
    "stablehlo.multiply": ("*", PRODUCT, "scale"),
    "stablehlo.divide": ("/", PRODUCT, "scale"),
}
"""Their signs, how strongly they bind, and what a parameter is that they take."""


@dataclass(frozen=True)
class Normalization:
    """A normalization.

    Attributes:
      root: the operation that the inverse root is made of.
      x: what is normalized.
      axes: along which.
      epsilon: what is added below the root.
      variance: "var", "squares minus mean", the same "at least 0", or "" of an RMS norm.
    """

    root: ir.Operation
    x: Value
    axes: tuple[int, ...]
    epsilon: str
    variance: str

    @property
    def below(self) -> str:
        """The name of what the small number is added to."""
        return "var" if self.variance else "squares"

    def definition(self, result: Code, parameters: Sequence[str]) -> tuple[str, str]:
        """The name and the source of a function that computes it.

        Args:
          result: what the function returns.
          parameters: what it takes beside what it normalizes.
        """
        rank = len(shape_of(self.x))
        is_last = self.axes[-1] == rank - 1
        name = "rms_norm" if not self.variance else "layer_norm" if is_last else "normalize"
        axes = [axis - rank for axis in self.axes] if is_last else list(self.axes)
        shown = str(axes[0]) if len(axes) == 1 else f"({', '.join(map(str, axes))})"
        along = f"axis={shown}, keepdims=True"
        squares = f"    squares = jnp.mean(jnp.square(x), {along})"
        lines = [f"def {name}({', '.join(('x', *parameters))}):"]
        if self.variance:
            lines.append(f"    mean = jnp.mean(x, {along})")
        if self.variance == "var":
            lines.append(f"    var = jnp.var(x, {along})")
        else:
            lines.append(squares)
        if self.variance == "squares minus mean":
            lines.append("    var = squares - jnp.square(mean)")
        elif self.variance == "at least 0":
            lines.append("    var = jnp.maximum(squares - jnp.square(mean), 0.0)")
        return name, "\n".join([*lines, *lay_out(4, "return ", result)])


def formula(
    value: Value, kind: Normalization, names: dict[Value, str], role: str = ""
) -> Code | None:
    """A value as it is computed from what is normalized: another order would round otherwise.

    Args:
      names: those of parameters, which are named by what they are used for.
      role: what a parameter is here.
    """
    if value == kind.x:
        return Code("x")
    if value in names:
        names[value] = names[value] or role
        return Code(names[value])
    op = defining_op(value)
    if op is None:
        return None
    if op == kind.root:
        function = "lax.rsqrt" if op.name == "stablehlo.rsqrt" else "jnp.sqrt"
        return call(function, f"{kind.below} + {kind.epsilon}")
    if kind.variance and _is_mean(value, kind.x):
        return Code("mean")
    if op.name in _SPREADING:
        return formula(op.operands[0], kind, names, role)
    if op.name == "stablehlo.constant":
        number = elements_of(op)
        return Code(literal(number)) if isinstance(number, np.number) else None
    if op.name not in _OPERATORS:
        return None
    sign, level, role = _OPERATORS[op.name]
    left, right = (formula(each, kind, names, role) for each in op.operands)
    return None if left is None or right is None else binary(left, sign, right, level)


def _is_mean(value: Value, x: Value) -> bool:
    op = alike(value)
    if op is None or op.name not in ("stablehlo.divide", "stablehlo.multiply"):
        return False
    total = alike(op.operands[0])
    if total is None or total.name != "stablehlo.reduce":
        return False
    summed = total.operands[0]
    source = defining_op(summed)
    if summed != x and source is not None and source.name == "stablehlo.convert":
        summed = source.operands[0]
    return summed == x


def alike(value: Value) -> ir.Operation | None:
    """The operation that makes a value, but for its shape and type."""
    op = defining_op(value)
    while op is not None and op.name in ALIKE:
        op = defining_op(op.operands[0])
    return op
