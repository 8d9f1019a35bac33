"""Ops that NumPy computes: products of arrays, for which the interpreter takes long, and some that
it lacks.

Products are accumulated in double precision and rounded once, so their results do not depend on the
order of additions, nor on how a pass divides them, except where two roundings fall differently.
"""

from __future__ import annotations

import itertools
import string
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax.numpy as jnp
import ml_dtypes
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
    wider = wide(dtype)

    def run(a: np.ndarray, b: np.ndarray) -> list[np.ndarray]:
        with np.errstate(all="ignore"):
            found = np.einsum(
                f"{left},{right}->{out}", a.astype(wider), b.astype(wider), optimize=True
            )
            return [rounded(np.asarray(found), dtype)]

    return run


def wide(dtype: np.dtype) -> DType:
    """The type in which numbers of a type are added up."""
    if dtype.kind == "c":
        return np.complex128
    return dtype if dtype.kind in "biu" else np.float64


def accumulated_in(name: str | None, dtype: np.dtype) -> DType:
    """The type in which a reduction by an op combines numbers of a type, as XLA does.

    Sums and products of floats narrower than 32 bits are combined as singles and rounded once.
    """
    is_narrow = jnp.issubdtype(dtype, jnp.floating) and dtype.itemsize < 4
    return np.dtype(np.float32) if is_narrow and name in ROUNDED else dtype


ROUNDED = frozenset({"stablehlo.add", "stablehlo.multiply"})
"""The ops of reductions whose results depend on the order in which floats are combined."""


def rounded(array: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """An array in another type, rounded once; `astype` makes doubles singles before bfloat16."""
    if array.dtype != np.float64 or dtype != ml_dtypes.bfloat16:
        return array.astype(dtype)
    with np.errstate(all="ignore"):
        single = array.astype(np.float32)
        # Halfway between two bfloat16, a single is moved to the side on which the double is.
        halfway = (single.view(np.uint32) & 0xFFFF) == 0x8000
        middle = single[halfway]
        off = array[halfway] - middle
        moved = np.nextafter(middle, np.copysign(np.inf, off).astype(np.float32))
        single[halfway] = np.where(off == 0, middle, moved)
        return single.astype(dtype)


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
    wider = wide(dtype)

    def run(x: np.ndarray) -> list[np.ndarray]:
        full = x.astype(wider)
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


def maximum(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The larger numbers; of zeros of both signs the positive one, where NumPy takes either."""
    return _with_signs(np.maximum(a, b), a, b, np.bitwise_and)


def minimum(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The smaller numbers; of zeros of both signs the negative one."""
    return _with_signs(np.minimum(a, b), a, b, np.bitwise_or)


def _with_signs(found: np.ndarray, a: np.ndarray, b: np.ndarray, combine: np.ufunc) -> np.ndarray:
    if found.dtype.kind in "biuc":
        return found
    bits = f"u{found.dtype.itemsize}"
    signed = combine(a.view(bits), b.view(bits)).view(found.dtype)  # of equal bits the same bits
    return np.where(a == b, signed, found)


_REDUCTIONS: dict[str, Callable[[Any, Any], Any]] = {
    "stablehlo.add": np.add,
    "stablehlo.multiply": np.multiply,
    "stablehlo.maximum": maximum,
    "stablehlo.minimum": minimum,
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


def paired(
    combine: Callable[[np.ndarray, np.ndarray], np.ndarray], arrays: Iterable[np.ndarray]
) -> np.ndarray:
    """Arrays, of which there is at least one, combined in a tree, so that errors stay small."""
    waiting: list[tuple[int, np.ndarray]] = []  # of how many arrays each is made: fewer and fewer
    for array in arrays:
        count, made = 1, array
        while waiting and waiting[-1][0] == count:
            made = combine(waiting.pop()[1], made)
            count *= 2
        waiting.append((count, made))
    return left_fold(lambda later, earlier: combine(earlier, later), [m for _, m in waiting[::-1]])


def left_fold(
    function: Callable[[AnyValue, AnyValue], AnyValue], values: Sequence[AnyValue]
) -> AnyValue:
    """The values combined from first to last."""
    *_, last = itertools.accumulate(values, function)
    return last
