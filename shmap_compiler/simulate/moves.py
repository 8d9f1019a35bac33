"""Ops that move elements of large arrays and compute nothing, by NumPy.

The interpreter visits elements one by one, and those of bfloat16 twice more, to convert them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from jaxlib.mlir import ir

from shmap_compiler.simulate.arithmetic import Function


def integers(op: ir.Operation, name: str) -> list[int]:
    """An attribute of an op that is an array of integers."""
    return list(ir.DenseI64ArrayAttr(op.attributes[name]))


def _shape(op: ir.Operation) -> tuple[int, ...]:
    return tuple(ir.RankedTensorType(op.results[0].type).shape)


def _starts(whole: np.ndarray, sizes: Sequence[int], given: Sequence[np.ndarray]) -> list[int]:
    """Where a window begins, moved until it is inside."""
    limits = (n - size for n, size in zip(whole.shape, sizes, strict=True))
    return [min(max(int(x), 0), limit) for x, limit in zip(given, limits, strict=True)]


def _window(starts: Sequence[int], sizes: Sequence[int]) -> tuple[slice, ...]:
    return tuple(slice(at, at + size) for at, size in zip(starts, sizes, strict=True))


def _dynamic_slice(op: ir.Operation) -> Function:
    sizes = integers(op, "slice_sizes")

    def run(whole: np.ndarray, *given: np.ndarray) -> list[np.ndarray]:
        return [whole[_window(_starts(whole, sizes, given), sizes)]]

    return run


def _dynamic_update_slice(op: ir.Operation) -> Function:
    def run(whole: np.ndarray, part: np.ndarray, *given: np.ndarray) -> list[np.ndarray]:
        result = whole.copy()
        result[_window(_starts(whole, part.shape, given), part.shape)] = part
        return [result]

    return run


def _slice(op: ir.Operation) -> Function:
    names = ("start_indices", "limit_indices", "strides")
    window = tuple(map(slice, *(integers(op, name) for name in names)))
    return lambda x: [x[window]]


def _concatenate(op: ir.Operation) -> Function:
    dimension = ir.IntegerAttr(op.attributes["dimension"]).value
    return lambda *xs: [np.concatenate(xs, dimension)]


def _reshape(op: ir.Operation) -> Function:
    shape = _shape(op)
    return lambda x: [x.reshape(shape)]


def _transpose(op: ir.Operation) -> Function:
    order = integers(op, "permutation")
    return lambda x: [np.ascontiguousarray(x.transpose(order))]


def _broadcast(op: ir.Operation) -> Function:
    shape, dims = _shape(op), integers(op, "broadcast_dimensions")

    def run(x: np.ndarray) -> list[np.ndarray]:
        spread: Any = np.ones(len(shape), int)
        spread[dims] = x.shape
        ordered = x.transpose(np.argsort(dims)) if dims else x
        return [np.broadcast_to(ordered.reshape(spread), shape).copy()]

    return run


def _reverse(op: ir.Operation) -> Function:
    dims = integers(op, "dimensions")
    return lambda x: [np.ascontiguousarray(np.flip(x, tuple(dims)))]


def _pad(op: ir.Operation) -> Function:
    names = ("edge_padding_low", "edge_padding_high", "interior_padding")
    low, high, interior = (integers(op, name) for name in names)
    return lambda x, value: [padded(x, value, low, high, interior)]


def padded(
    x: np.ndarray,
    value: np.ndarray,
    low: Sequence[int],
    high: Sequence[int],
    interior: Sequence[int],
) -> np.ndarray:
    """An array with elements between and around its own; negative padding cuts."""
    sides = list(zip(x.shape, low, high, interior, strict=True))
    shape = [max(n - 1, 0) * gap + n + before + after for n, before, after, gap in sides]
    result = np.full(shape, value, x.dtype)
    taken, put = [], []
    for (n, before, _, gap), size in zip(sides, shape, strict=True):
        step = gap + 1
        first = max(0, -(before // step))
        stop = max(first, min(n, -((before - size) // step)))
        taken.append(slice(first, stop))
        put.append(slice(before + first * step, max(before + stop * step - gap, 0), step))
    result[tuple(put)] = x[tuple(taken)]
    return result


MOVES: dict[str, Callable[[ir.Operation], Function]] = {
    "stablehlo.dynamic_slice": _dynamic_slice,
    "stablehlo.dynamic_update_slice": _dynamic_update_slice,
    "stablehlo.slice": _slice,
    "stablehlo.concatenate": _concatenate,
    "stablehlo.reshape": _reshape,
    "stablehlo.transpose": _transpose,
    "stablehlo.broadcast_in_dim": _broadcast,
    "stablehlo.reverse": _reverse,
    "stablehlo.pad": _pad,
}
"""How to make the function of an op, by the name of the op."""
