"""Ops that combine the elements of an array or of its windows, by NumPy: reductions, convolutions.

A reduction combines elements in a tree, as XLA combines vectors of them: the interpreter combines
them from first to last, so that its sums of many elements are far off. Floats narrower than 32 bits
are added and multiplied as singles, and rounded once. A convolution is accumulated in double
precision and rounded once, as products are.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import jax.numpy as jnp
import numpy as np
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo
from shmap_passes.ir.collective_ops import reduction

from shmap_compiler.simulate.agreement import default_tolerance
from shmap_compiler.simulate.arithmetic import (
    ROUNDED,
    Function,
    accumulated_in,
    combiner,
    paired,
    result_dtype,
    rounded,
    wide,
)
from shmap_compiler.simulate.element_types import ELEMENT_TYPES
from shmap_compiler.simulate.elementwise import COMMON_TYPES, element_types
from shmap_compiler.simulate.moves import integers, padded


def rounds_often(op: ir.Operation) -> bool:
    """Whether an op is a sum or product of so many floats that the order of them shows.

    The interpreter rounds by eps / 2 for each of them, to more than `validate` allows.
    """
    if not op.name.startswith("stablehlo.reduce") or not _is_plain(op):
        return False
    operand, dtype = ir.RankedTensorType(op.operands[0].type), result_dtype(op)
    if reduction(op) not in ROUNDED or not jnp.issubdtype(dtype, jnp.inexact):
        return False
    if op.name == "stablehlo.reduce":
        count = prod(operand.shape[dim] for dim in integers(op, "dimensions"))
    else:
        count = prod(integers(op, "window_dimensions"))
    return count * float(jnp.finfo(dtype).eps) / 2 > default_tolerance(dtype)


def reduce_all(op: ir.Operation) -> Function | None:
    """A reduction of one array by one op; None for any other."""
    if not _is_plain(op):
        return None
    name, dims = reduction(op), sorted(integers(op, "dimensions"))
    combine, dtype = combiner(name), result_dtype(op)
    assert combine is not None
    wider = accumulated_in(name, dtype)

    def run(x: np.ndarray, start: np.ndarray) -> list[np.ndarray]:
        kept = [dim for dim in range(x.ndim) if dim not in dims]
        shape = tuple(x.shape[dim] for dim in kept)
        rows = x.transpose(*dims, *kept).reshape(prod(x.shape[dim] for dim in dims), *shape)
        rows, first = rows.astype(wider), np.broadcast_to(start.astype(wider), shape)
        while len(rows) > 1:
            half = len(rows) // 2
            pairs = combine(rows[:half], rows[half : 2 * half])
            rows = np.concatenate([pairs, rows[2 * half :]]) if len(rows) % 2 else pairs
        return [rounded(combine(first, rows[0, ...]) if len(rows) else first, dtype)]

    return run


def reduce_window(op: ir.Operation) -> Function | None:
    """A reduction of each window of one array by one op; None for any other."""
    if not _is_plain(op):
        return None
    combine, rank = combiner(reduction(op)), ir.RankedTensorType(op.operands[0].type).rank
    assert combine is not None
    dtype = result_dtype(op)
    wider = accumulated_in(reduction(op), dtype)
    sizes = integers(op, "window_dimensions")
    strides, base, dilations = (
        integers(op, name) if name in op.attributes else [1] * rank
        for name in ("window_strides", "base_dilations", "window_dilations")
    )
    low, high = _padding(op, rank)
    shape = ir.RankedTensorType(op.results[0].type).shape

    def run(x: np.ndarray, start: np.ndarray) -> list[np.ndarray]:
        start = start.astype(wider)
        around = padded(x.astype(wider), start, low, high, [step - 1 for step in base])
        parts = (
            around[
                tuple(
                    slice(k * dilation, k * dilation + (n - 1) * stride + 1, stride)
                    for k, dilation, n, stride in zip(at, dilations, shape, strides, strict=True)
                )
            ]
            for at in np.ndindex(*sizes)
        )
        return [rounded(combine(np.full(shape, start), paired(combine, parts)), dtype)]

    return run


def _is_plain(op: ir.Operation) -> bool:
    name = reduction(op)
    types = ELEMENT_TYPES if name in ROUNDED else COMMON_TYPES
    return (
        len(op.operands) == 2
        and combiner(name) is not None
        and len(set(element_types(op))) == 1
        and element_types(op)[0] in types
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
