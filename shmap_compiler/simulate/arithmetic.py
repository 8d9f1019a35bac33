"""Ops that NumPy computes: products of arrays, for which the interpreter takes long, and some that
it lacks.

Products are accumulated in double precision and rounded once, so their results do not depend on the
order of additions, nor on how a pass divides them, except where two roundings fall differently.
"""

from __future__ import annotations

import itertools
import string
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from shmap_compiler.base.untyped import AnyValue, DType
from shmap_compiler.simulate.element_types import known_element_type

Function = Callable[..., list[np.ndarray]]


def result_dtype(op: ir.Operation) -> np.dtype:
    """The NumPy type of the first result. Raises UnknownElementType if it cannot be simulated."""
    return known_element_type(str(ir.RankedTensorType(op.results[0].type).element_type)).dtype


def dot_general(op: ir.Operation) -> Function:
    """A product with batch and contracted dimensions."""
    numbers = stablehlo.DotDimensionNumbers(op.attributes["dot_dimension_numbers"])
    left, right = (ir.RankedTensorType(operand.type).rank for operand in op.operands)
    return _product(
        result_dtype(op),
        (left, right),
        (list(numbers.lhs_batching_dimensions), list(numbers.rhs_batching_dimensions)),
        (list(numbers.lhs_contracting_dimensions), list(numbers.rhs_contracting_dimensions)),
    )


def dot(op: ir.Operation) -> Function:
    """The older product: the last dimension with the first."""
    left, right = (ir.RankedTensorType(operand.type).rank for operand in op.operands)
    return _product(result_dtype(op), (left, right), ([], []), ([left - 1], [0]))


def _product(
    dtype: np.dtype,
    ranks: tuple[int, int],
    batch: tuple[list[int], list[int]],
    contracted: tuple[list[int], list[int]],
) -> Function:
    letters = iter(string.ascii_letters)
    names: tuple[dict[int, str], dict[int, str]] = ({}, {})
    for pairs in (zip(*batch, strict=True), zip(*contracted, strict=True)):
        for left_dim, right_dim in pairs:
            names[0][left_dim] = names[1][right_dim] = next(letters)
    for rank, named in zip(ranks, names, strict=True):
        for dim in range(rank):
            if dim not in named:
                named[dim] = next(letters)
    left, right = (
        "".join(named[d] for d in range(r)) for r, named in zip(ranks, names, strict=True)
    )
    free = [
        named[dim]
        for side, (rank, named) in enumerate(zip(ranks, names, strict=True))
        for dim in range(rank)
        if dim not in batch[side] and dim not in contracted[side]
    ]
    out = "".join([*(names[0][dim] for dim in batch[0]), *free])
    wide = _wide(dtype)

    def run(a: np.ndarray, b: np.ndarray) -> list[np.ndarray]:
        with np.errstate(all="ignore"):
            found = np.einsum(
                f"{left},{right}->{out}", a.astype(wide), b.astype(wide), optimize=True
            )
            return [np.asarray(found).astype(dtype)]

    return run


def _wide(dtype: np.dtype) -> DType:
    if dtype.kind == "c":
        return np.complex128
    return dtype if dtype.kind in "biu" else np.float64


def fft(op: ir.Operation) -> Function:
    """A Fourier transform over the last dimensions."""
    length = np.array(ir.DenseI64ArrayAttr(op.attributes["fft_length"])).tolist()
    kind = str(op.attributes["fft_type"]).rpartition(" ")[2].rstrip(">")
    dtype = result_dtype(op)
    axes = tuple(range(-len(length), 0))
    transforms: dict[str, Callable[[np.ndarray], np.ndarray]] = {
        "FFT": lambda x: np.fft.fftn(x, axes=axes),
        "IFFT": lambda x: np.fft.ifftn(x, axes=axes),
        "RFFT": lambda x: np.fft.rfftn(x, axes=axes),
        "IRFFT": lambda x: np.fft.irfftn(x, s=length, axes=axes),
    }
    shape = tuple(ir.RankedTensorType(op.results[0].type).shape)

    def run(x: np.ndarray) -> list[np.ndarray]:
        if 0 in x.shape or 0 in shape:  # NumPy transforms no empty dimension
            return [np.zeros(shape, dtype)]
        return [transforms[kind](x).astype(dtype)]

    return run


def cholesky(op: ir.Operation) -> Function:
    """The triangular factor; NaN where the matrix is not positive definite."""
    lower = bool(ir.BoolAttr(op.attributes["lower"]).value) if "lower" in op.attributes else False
    dtype = result_dtype(op)
    wide = _wide(dtype)

    def run(x: np.ndarray) -> list[np.ndarray]:
        full = x.astype(wide)
        triangle = np.tril(full) if lower else np.triu(full)
        other = np.conj(np.swapaxes(triangle, -1, -2))
        diagonal = np.eye(full.shape[-1], dtype=bool)
        matrix = np.where(diagonal, full, triangle + other)
        result = np.full_like(matrix, np.nan)
        for index in np.ndindex(matrix.shape[:-2]):
            try:
                factor = np.linalg.cholesky(matrix[index])
            except np.linalg.LinAlgError:
                continue
            result[index] = factor if lower else np.conj(factor.T)
        return [result.astype(dtype)]

    return run


def poisoned(op: ir.Operation) -> Function:
    """A buffer without contents: NaN, or the largest integer, so that what reads it is noticed."""
    dtype, shape = result_dtype(op), ir.RankedTensorType(op.results[0].type).shape
    value = np.iinfo(dtype).max if dtype.kind in "iu" else True if dtype.kind == "b" else np.nan
    buffer = np.full(shape, value, dtype)
    return lambda: [buffer]


COMPUTED: dict[str, Callable[[ir.Operation], Function]] = {
    "stablehlo.dot_general": dot_general,
    "stablehlo.dot": dot,
    "stablehlo.fft": fft,
    "stablehlo.cholesky": cholesky,
}
"""How to make the function of an op, by the name of the op."""

_REDUCTIONS: dict[str, Callable[[Any, Any], Any]] = {
    "stablehlo.add": np.add,
    "stablehlo.multiply": np.multiply,
    "stablehlo.maximum": np.maximum,
    "stablehlo.minimum": np.minimum,
    "stablehlo.and": np.bitwise_and,
    "stablehlo.or": np.bitwise_or,
    "stablehlo.xor": np.bitwise_xor,
}


def combiner(name: str | None) -> Callable[[np.ndarray, np.ndarray], np.ndarray] | None:
    """What a reduction does with two arrays; None for one that NumPy lacks.

    The sum of two booleans is their disjunction, as StableHLO defines it; NumPy agrees.
    """
    function = _REDUCTIONS.get(name or "")
    if function is None:
        return None

    def combine(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        with np.errstate(all="ignore"):
            return np.asarray(function(a, b)).astype(a.dtype)

    return combine


def left_fold(
    function: Callable[[AnyValue, AnyValue], AnyValue], values: Sequence[AnyValue]
) -> AnyValue:
    """The values combined from first to last."""
    *_, last = itertools.accumulate(values, function)
    return last
