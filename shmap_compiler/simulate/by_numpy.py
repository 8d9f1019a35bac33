"""What NumPy computes of a program, and not the interpreter."""

from __future__ import annotations

from collections.abc import Callable
from math import prod

from jaxlib.mlir import ir

from shmap_compiler.simulate.arithmetic import Function, cholesky, dot, dot_general, fft
from shmap_compiler.simulate.elementwise import ELEMENTWISE
from shmap_compiler.simulate.moves import MOVES
from shmap_compiler.simulate.windows import (
    convolution,
    reduce_all,
    reduce_window,
    rounds_often,
)

COMPUTED: dict[str, Callable[[ir.Operation], Function]] = {
    "stablehlo.dot_general": dot_general,
    "stablehlo.dot": dot,
    "stablehlo.convolution": convolution,
    "stablehlo.fft": fft,
    "stablehlo.cholesky": cholesky,
}
"""How to make the function of an op, by its name: ops for which the interpreter takes long, or that
it lacks."""

_IF_LARGE: dict[str, Callable[[ir.Operation], Function | None]] = {
    **MOVES,
    **ELEMENTWISE,
    "stablehlo.reduce": reduce_all,
    "stablehlo.reduce_window": reduce_window,
}

LARGE = 2**12
"""From so many elements on, the interpreter takes longer than it takes to ask it."""


def function_of(op: ir.Operation) -> Function | None:
    """What an op does with its operands; None for ops that the interpreter evaluates."""
    if op.name in COMPUTED:
        return COMPUTED[op.name](op)
    maker = _IF_LARGE.get(op.name)
    if maker is None:
        return None
    values = (*op.operands, *op.results)
    if not all(isinstance(value.type, ir.RankedTensorType) for value in values):
        return None
    tensors = [ir.RankedTensorType(value.type) for value in values]
    if not all(tensor.has_static_shape for tensor in tensors):
        return None
    is_large = max(prod(tensor.shape) for tensor in tensors) >= LARGE
    return maker(op) if is_large or rounds_often(op) else None
