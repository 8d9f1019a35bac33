"""Calls of `jax.random`, for which custom calls stand."""

from __future__ import annotations

from jaxlib.mlir import ir
from shmap_passes.ir.collective_ops import call_target

from shmap_compiler.unjit.layout import Code, call, numbers
from shmap_compiler.unjit.spelling.operation import Op

DRAW = "shmap.draw"
"""The target of a custom call that stands for a call of `jax.random`.

Its operands are the key, and what is folded into it. Attributes: `function`, its name; `rest`, its
other arguments; `whole` and `spec`, the shape of what all devices draw, and how it is split.
"""


def is_draw(op: ir.Operation) -> bool:
    """Whether an operation stands for a call of `jax.random`."""
    return op.name == "stablehlo.custom_call" and call_target(op) == DRAW


def spelled_draw(op: Op) -> Code:
    """The call; where the array is split, with the key of the device's block."""
    attributes = op.op.attributes
    rest = [ir.StringAttr(each).value for each in ir.ArrayAttr(attributes["rest"])]
    key, *data = op.all_exact()
    spec = ir.StringAttr(attributes["spec"]).value if "spec" in attributes else "P()"
    if spec != "P()":
        key = call("block_key", key, numbers(op.integers("whole")), spec)
    return call(ir.StringAttr(attributes["function"]).value, key, *data, *rest)
