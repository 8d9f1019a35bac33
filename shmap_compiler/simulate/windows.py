"""Ops that combine the elements of an array or of its windows, by NumPy: reductions, convolutions.

A reduction combines elements from first to last, and rounds each time, as the interpreter does. A
convolution is accumulated in double precision and rounded once, as products are.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from math import prod

import numpy as np
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo
from shmap_passes.ir.collective_ops import reduction

from shmap_compiler.simulate.arithmetic import Function, combiner, result_dtype, rounded, wide
from shmap_compiler.simulate.elementwise import COMMON_TYPES, element_types
from shmap_compiler.simulate.moves import integers, padded

_IN_ORDER = {
    "stablehlo.add": np.add,
    "stablehlo.multiply": np.multiply,
    "stablehlo.and": np.bitwise_and,
    "stablehlo.or": np.bitwise_or,
    "stablehlo.xor": np.bitwise_xor,
}


def reduce_all(op: ir.Operation) -> Function | None:
    """A reduction of one array by one op; None for any other."""
    if not _is_plain(op):
        return None
    name, dims = reduction(op), sorted(integers(op, "dimensions"))
    combine = combiner(name)
    assert name is not None
    assert combine is not None

    def run(x: np.ndarray, start: np.ndarray) -> list[np.ndarray]:
        kept = [dim for dim in range(x.ndim) if dim not in dims]
        shape = tuple(x.shape[dim] for dim in kept)
        rows = x.transpose(*dims, *kept).reshape(prod(x.shape[dim] for dim in dims), *shape)
        rows = np.concatenate([np.broadcast_to(start, (1, *shape)), rows])
        if name in _IN_ORDER:
            with np.errstate(all="ignore"):
                return [_IN_ORDER[name].accumulate(rows, dtype=x.dtype)[-1, ...]]
        while len(rows) > 1:  # the order does not matter
            half = len(rows) // 2
            pairs = combine(rows[:half], rows[half : 2 * half])
            rows = np.concatenate([pairs, rows[2 * half :]])
        return [rows[0, ...]]

    return run


def reduce_window(op: ir.Operation) -> Function | None:
    """A reduction of each window of one array by one op; None for any other."""
    if not _is_plain(op):
        return None
    combine, rank = combiner(reduction(op)), ir.RankedTensorType(op.operands[0].type).rank
    assert combine is not None
    sizes = integers(op, "window_dimensions")
    strides, base, dilations = (
        integers(op, name) if name in op.attributes else [1] * rank
        for name in ("window_strides", "base_dilations", "window_dilations")
    )
    low, high = _padding(op, rank)
    shape = ir.RankedTensorType(op.results[0].type).shape

    def run(x: np.ndarray, start: np.ndarray) -> list[np.ndarray]:
        around = padded(x, start, low, high, [step - 1 for step in base])
        parts = (
            around[
                tuple(
                    slice(k * dilation, k * dilation + (n - 1) * stride + 1, stride)
                    for k, dilation, n, stride in zip(at, dilations, shape, strides, strict=True)
                )
            ]
            for at in np.ndindex(*sizes)
        )
        return [reduce(combine, parts, np.full(shape, start))]

    return run


def _is_plain(op: ir.Operation) -> bool:
    return (
        len(op.operands) == 2
        and combiner(reduction(op)) is not None
        and len(set(element_types(op))) == 1
        and COMMON_TYPES.issuperset(element_types(op))
    )


def _padding(op: ir.Operation, rank: int) -> tuple[list[int], list[int]]:
    if "padding" not in op.attributes:
        return [0] * rank, [0] * rank
    low, high = np.array(ir.DenseIntElementsAttr(op.attributes["padding"])).reshape(-1, 2).T
    return low.tolist(), high.tolist()


def convolution(op: ir.Operation) -> Function:
    """A convolution with any strides, dilations, padding and groups."""
    numbers = stablehlo.ConvDimensionNumbers(op.attributes["dimension_numbers"])
    inputs = [
        numbers.input_batch_dimension,
        numbers.input_feature_dimension,
        *numbers.input_spatial_dimensions,
    ]
    kernels = [
        numbers.kernel_input_feature_dimension,
        numbers.kernel_output_feature_dimension,
        *numbers.kernel_spatial_dimensions,
    ]
    outputs = [
        numbers.output_batch_dimension,
        numbers.output_feature_dimension,
        *numbers.output_spatial_dimensions,
    ]
    rank = len(inputs) - 2
    strides, base, dilations = (
        integers(op, name) if name in op.attributes else [1] * rank
        for name in ("window_strides", "lhs_dilation", "rhs_dilation")
    )
    low, high = _padding(op, rank)
    turned = _turned(op)
    of_features, of_batch = (
        ir.IntegerAttr(op.attributes[name]).value
        for name in ("feature_group_count", "batch_group_count")
    )
    groups = of_features * of_batch  # one of the two is 1
    dtype, shape = result_dtype(op), tuple(ir.RankedTensorType(op.results[0].type).shape)
    wider, spatial = wide(dtype), range(4, 4 + rank)

    def run(x: np.ndarray, kernel: np.ndarray) -> list[np.ndarray]:
        if not (prod(shape) and x.size and kernel.size):
            return [np.zeros(shape, dtype)]
        around = padded(
            x.transpose(inputs).astype(wider),
            np.zeros((), wider),
            [0, 0, *low],
            [0, 0, *high],
            [0, 0, *(step - 1 for step in base)],
        )
        weights = np.flip(kernel.transpose(kernels).astype(wider), tuple(turned))
        features, results, *sizes = weights.shape
        # Groups of the batch, batch, groups of features, features; then dimensions of space.
        split = around.reshape(of_batch, -1, of_features, features, *around.shape[2:])
        spans = [(n - 1) * step + 1 for n, step in zip(sizes, dilations, strict=True)]
        windows = np.lib.stride_tricks.sliding_window_view(split, spans, tuple(spatial))
        steps = (slice(None, None, step) for step in (*strides, *dilations))
        windows = windows[(*[slice(None)] * 4, *steps)]
        batch, spots = windows.shape[1], windows.shape[4 : 4 + rank]
        rows = windows.transpose(0, 2, 1, *spatial, 3, *(dim + rank for dim in spatial))
        rows = rows.reshape(groups, batch * prod(spots), features * prod(sizes))
        columns = weights.reshape(features, groups, results // groups, *sizes)
        columns = np.moveaxis(columns, 2, -1).swapaxes(0, 1).reshape(groups, rows.shape[-1], -1)
        with np.errstate(all="ignore"):
            found = rounded(np.matmul(rows, columns), dtype)
        found = found.reshape(groups, batch, prod(spots), -1).transpose(1, 0, 3, 2)
        found = found.reshape(batch, results, *spots).transpose(np.argsort(outputs))
        return [np.ascontiguousarray(found)]

    return run


def _turned(op: ir.Operation) -> list[int]:
    """The dimensions in which the window is reversed, after those of features."""
    if "window_reversal" not in op.attributes:
        return []
    flags: Sequence[bool] = list(ir.DenseBoolArrayAttr(op.attributes["window_reversal"]))
    return [2 + dim for dim, flag in enumerate(flags) if flag]
