"""An operation of which a row of the table makes an expression."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from jaxlib.mlir import ir
from shmap_passes.ir.mesh import Mesh
from shmap_passes.ir.types import Value

from shmap_compiler.unjit.layout import Code
from shmap_compiler.unjit.types import dtype_code, shape_of


class Values(Protocol):
    """The expressions of values that are known already."""

    mesh: Mesh

    def exact(self, value: Value) -> Code:
        """An array of the value's type."""
        ...

    def loose(self, value: Value) -> tuple[Code, bool, bool]:
        """What broadcasts to the value; whether it has its shape; whether it has its dtype."""
        ...

    def constant(self, value: Value) -> np.ndarray | None:
        """The elements of a constant; None for other values, and for large ones."""
        ...

    def function(self, region: ir.Region, name: str) -> str | None:
        """The name of a function, defined just above, that computes what a region computes."""
        ...


@dataclass(frozen=True)
class Op:
    """An operation.

    Attributes:
      op: the operation.
      values: the expressions of its operands.
    """

    op: ir.Operation
    values: Values

    @property
    def name(self) -> str:
        return self.op.name.partition(".")[2]

    @property
    def operands(self) -> list[Value]:
        return list(self.op.operands)

    @property
    def result(self) -> Value:
        return self.op.results[0]

    @property
    def shape(self) -> tuple[int, ...]:
        """That of the first result."""
        return shape_of(self.result)

    @property
    def dtype(self) -> str:
        """That of the first result: `jnp.float32`."""
        return dtype_code(self.result)

    def exact(self, index: int) -> Code:
        """An operand, with its own shape and dtype."""
        return self.values.exact(self.op.operands[index])

    def all_exact(self) -> list[Code]:
        return [self.values.exact(value) for value in self.op.operands]

    def integer(self, name: str, default: int = 0) -> int:
        if name not in self.op.attributes:
            return default
        return ir.IntegerAttr(self.op.attributes[name]).value

    def flag(self, name: str) -> bool:
        return name in self.op.attributes and ir.BoolAttr(self.op.attributes[name]).value

    def integers(self, name: str) -> tuple[int, ...]:
        """A list of integers; () if there is none."""
        if name not in self.op.attributes:
            return ()
        attribute = self.op.attributes[name]
        if isinstance(attribute, ir.DenseI64ArrayAttr):
            return tuple(attribute)
        return tuple(np.array(ir.DenseIntElementsAttr(attribute)).ravel().tolist())

    def word(self, name: str) -> str:
        """An attribute that is a word of StableHLO's, such as a direction; "" if it is missing."""
        if name not in self.op.attributes:
            return ""
        return str(self.op.attributes[name]).rstrip(">").rpartition(" ")[2].rpartition("<")[2]

    def region_op(self, index: int = 0) -> str | None:
        """The name of the one op, on both arguments, that a region is; None if it is more."""
        block = self.op.regions[index].blocks[0]
        ops = [each.operation for each in block.operations]
        if len(ops) != 2 or len(block.arguments) != 2:
            return None
        combine, end = ops
        on_both = list(combine.operands) in (
            list(block.arguments),
            list(reversed(list(block.arguments))),
        )
        return combine.name if on_both and list(end.operands) == list(combine.results) else None


Row = Callable[[Op], Code | None]
