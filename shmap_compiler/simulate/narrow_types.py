"""The narrowest types in which a program computes its results.

A float32 result of products in bfloat16 has the digits of bfloat16. What only moves numbers, as
gathers and reshapes do, or compares them, rounds nothing, nor does widening them.
"""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jaxlib.mlir import ir
from shmap_passes import make_context
from shmap_passes.ir.inline_calls import callee
from shmap_passes.ir.ops import defining_op, terminator, walk
from shmap_passes.ir.types import Value

from shmap_compiler.simulate.element_types import UnknownElementType, known_element_type

_EXACT = {
    f"stablehlo.{name}"
    for name in (
        "abs", "all_gather", "all_to_all", "bitcast_convert", "broadcast_in_dim", "clamp",
        "collective_broadcast", "collective_permute", "concatenate", "constant", "custom_call",
        "dynamic_slice", "dynamic_update_slice", "gather", "get_tuple_element", "maximum",
        "minimum", "negate", "optimization_barrier", "pad", "reshape", "reverse", "select", "sign",
        "slice", "sort", "transpose", "tuple",
        # What these compute, the operations inside of them do.
        "all_reduce", "case", "if", "reduce", "reduce_scatter", "reduce_window", "scatter", "while",
    )
}  # fmt: skip
_WIDTH = 32


def narrow_types(text: str) -> list[frozenset[np.dtype]]:
    """For each result of a module, the narrow float types in which it is computed.

    Args:
      text: the module; its `@main` may call other functions.
    """
    with make_context(), ir.Location.unknown():
        module = ir.Module.parse(text)
        functions = {
            ir.StringAttr(each.attributes["sym_name"]).value: each.operation
            for each in module.body.operations
            if each.operation.name == "func.func"
        }
        main = functions["main"]
        return [_Search(functions).types(main, k) for k in range(len(_returned(main)))]


class _Search:
    """The types found on the way to one result."""

    def __init__(self, functions: dict[str, ir.Operation]):
        self._functions = functions
        self._seen: set[Value | tuple[str, int]] = set()
        self._found: set[np.dtype] = set()

    def types(self, function: ir.Operation, result: int) -> frozenset[np.dtype]:
        pending = [_returned(function)[result]]
        while pending:
            value = pending.pop()
            op = defining_op(value)
            if op is None or value in self._seen:
                continue
            self._seen.add(value)
            inside = walk(op)
            for each in inside:
                self._look_at(each, value if each is op else None)
                pending += each.operands
        return frozenset(self._found)

    def _look_at(self, op: ir.Operation, needed: Value | None) -> None:
        """An operation, of which one result is needed, or all."""
        values = list(op.results) if needed is None else [needed]
        if op.name == "func.call":
            for k, result in enumerate(op.results):
                key = callee(op), k
                if result in values and key not in self._seen and key[0] in self._functions:
                    self._seen.add(key)
                    self.types(self._functions[key[0]], k)
        elif op.name not in _EXACT and not _widens(op):
            made = (_dtype(each) for each in values)
            self._found.update(each for each in made if each is not None and is_narrow(each))


def _returned(function: ir.Operation) -> list[Value]:
    return list(terminator(function.regions[0].blocks[0]).operands)


def _widens(op: ir.Operation) -> bool:
    if op.name != "stablehlo.convert":
        return False
    given, made = _dtype(op.operands[0]), _dtype(op.results[0])
    return given is not None and made is not None and given.itemsize <= made.itemsize


def _dtype(value: Value) -> np.dtype | None:
    """The type of an array's elements; None of what is no array of numbers."""
    if not isinstance(value.type, ir.RankedTensorType):
        return None
    try:
        return known_element_type(str(value.type.element_type)).dtype
    except UnknownElementType:
        return None


def is_narrow(dtype: np.dtype) -> bool:
    """Whether a type is one of floats of fewer than 32 bits."""
    return jnp.issubdtype(dtype, jnp.floating) and jnp.finfo(dtype).bits < _WIDTH
