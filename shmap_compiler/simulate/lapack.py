"""The LAPACK routines that JAX calls on CPUs, computed by SciPy on each matrix of a batch.

A custom call such as `@lapack_dgetrf_ffi` takes batches of matrices, and returns the matrices as
the routine overwrites them, its other results, and an `info` for each. jaxlib calls the routines of
SciPy, too, so results are equal.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Literal

import numpy as np
from jaxlib.mlir import ir

from shmap_compiler.base.untyped import AnyValue, Setting, Wrapped
from shmap_compiler.simulate.arithmetic import Function
from shmap_compiler.simulate.element_types import known_element_type

_TARGET = re.compile(r"lapack_([sdcz])([a-z]+)_ffi")
_LOWER, _LEFT, _UNIT = map(ord, "LLU")
_NO_VECTORS, _ALL_VECTORS, _VECTORS = map(ord, "NAV")

Routine = Callable[[str, Mapping[str, int], list[np.ndarray]], tuple[AnyValue, ...]]
"""A routine on one matrix: (type letter, options, operands) -> results."""


def call_of(op: ir.Operation, target: str) -> Function | None:
    """What a custom call computes; None if its target is not a routine of `_ROUTINES`."""
    found = _TARGET.fullmatch(target)
    if found is None or found[2] not in _ROUTINES:
        return None
    letter, (routine, needed) = found[1], _ROUTINES[found[2]]
    # JAX writes the arguments of the routine in the first, modules that were HLO in the second.
    name = "mhlo.backend_config" if "mhlo.backend_config" in op.attributes else "backend_config"
    attributes = op.attributes.get(name)
    if not isinstance(attributes, ir.DictAttr):
        attributes = ir.DictAttr.get({})  # as MLIR prints an empty one
    if any(not isinstance(a.attr, ir.IntegerAttr) for a in attributes):
        return None
    options = {a.name: ir.IntegerAttr(a.attr).value for a in attributes}
    if not options.keys() >= {*needed}:
        return None
    types = [ir.RankedTensorType(result.type) for result in op.results]
    shapes = [tuple(t.shape) for t in types]
    dtypes = [known_element_type(str(t.element_type)).dtype for t in types]

    def run(*operands: np.ndarray) -> list[np.ndarray]:
        results = [np.zeros(s, t) for s, t in zip(shapes, dtypes, strict=True)]
        # Diagonals and scales have one dimension less than matrices.
        whole = max(operands, key=np.ndim)
        for at in np.ndindex(whole.shape[:-2]):
            found = routine(letter, options, [np.asfortranarray(x[at]) for x in operands])
            for result, value in zip(results, found, strict=True):
                if value is not None:
                    result[at] = value
        return results

    return run


def _named(library: Literal["blas", "lapack"], letter: str, name: str) -> Wrapped:
    # SciPy takes as long to import as a tenth of JAX, and few programs call its routines.
    return getattr(import_module(f"scipy.linalg.{library}"), letter + name)


def _workspace(letter: str, name: str, *sizes: AnyValue, **options: Setting) -> int:
    """The size of workspace that a routine prefers, with which it computes in blocks."""
    first, _ = _named("lapack", letter, f"{name}_lwork")(*sizes, **options)
    return int(first.real)


def _getrf(
    letter: str, options: Mapping[str, int], operands: list[np.ndarray]
) -> tuple[AnyValue, ...]:
    factors, pivots, info = _named("lapack", letter, "getrf")(operands[0])
    return factors, pivots + 1, info  # LAPACK counts rows from 1, and SciPy from 0


def _potrf(
    letter: str, options: Mapping[str, int], operands: list[np.ndarray]
) -> tuple[AnyValue, ...]:
    lower = options["uplo"] == _LOWER
    return _named("lapack", letter, "potrf")(operands[0], lower=lower, clean=False)


def _trsm(
    letter: str, options: Mapping[str, int], operands: list[np.ndarray]
) -> tuple[AnyValue, ...]:
    found = _named("blas", letter, "trsm")(
        1,
        *operands,
        side=options["side"] != _LEFT,
        lower=options["uplo"] == _LOWER,
        trans_a="NTC".index(chr(options["trans_x"])),
        diag=options["diag"] == _UNIT,
    )
    return (found,)


def _geqrf(
    letter: str, options: Mapping[str, int], operands: list[np.ndarray]
) -> tuple[AnyValue, ...]:
    size = _workspace(letter, "geqrf", *operands[0].shape)
    factors, scales, _, _ = _named("lapack", letter, "geqrf")(operands[0], lwork=size)
    return factors, scales


def _orgqr(
    letter: str, options: Mapping[str, int], operands: list[np.ndarray]
) -> tuple[AnyValue, ...]:
    name = "orgqr" if letter in "sd" else "ungqr"
    found, _, _ = _named("lapack", letter, name)(*operands)
    return (found,)


def _gesdd(
    letter: str, options: Mapping[str, int], operands: list[np.ndarray]
) -> tuple[AnyValue, ...]:
    vectors, full = options["mode"] != _NO_VECTORS, options["mode"] == _ALL_VECTORS
    choice = {"compute_uv": vectors, "full_matrices": full}
    size = _workspace(letter, "gesdd", *operands[0].shape, **choice)
    left, values, right, info = _named("lapack", letter, "gesdd")(operands[0], lwork=size, **choice)
    return None, values, left if vectors else None, right if vectors else None, info


def _syevd(
    letter: str, options: Mapping[str, int], operands: list[np.ndarray]
) -> tuple[AnyValue, ...]:
    name = "syevd" if letter in "sd" else "heevd"
    choice = {"compute_v": options["mode"] != _NO_VECTORS, "lower": options["uplo"] == _LOWER}
    values, vectors, info = _named("lapack", letter, name)(operands[0], **choice)
    return vectors, values, info


def _geev(
    letter: str, options: Mapping[str, int], operands: list[np.ndarray]
) -> tuple[AnyValue, ...]:
    left, right = (options[f"compute_{side}"] == _VECTORS for side in ("left", "right"))
    choice = {"compute_vl": left, "compute_vr": right}
    size = _workspace(letter, "geev", operands[0].shape[0], **choice)
    *values, of_left, of_right, info = _named("lapack", letter, "geev")(
        operands[0], lwork=size, **choice
    )
    if letter in "sd":
        of_left, of_right = (_paired(values[1], x) for x in (of_left, of_right))
    return *values, of_left if left else None, of_right if right else None, info


def _paired(imaginary: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """Eigenvectors of a real matrix; columns are real, or real and imaginary part of a pair."""
    found = columns.astype(np.result_type(columns.dtype, np.complex64))
    for k in np.flatnonzero(imaginary > 0) if columns.size > 1 else ():
        found[:, k] = columns[:, k] + 1j * columns[:, k + 1]
        found[:, k + 1] = np.conj(found[:, k])
    return found


def _gees(
    letter: str, options: Mapping[str, int], operands: list[np.ndarray]
) -> tuple[AnyValue, ...]:
    vectors = options["mode"] == _VECTORS
    form, count, *values, of_form, _, info = _named("lapack", letter, "gees")(
        lambda *_: None, operands[0], compute_v=vectors
    )
    return form, of_form if vectors else None, *values, count, info


def _gehrd(
    letter: str, options: Mapping[str, int], operands: list[np.ndarray]
) -> tuple[AnyValue, ...]:
    limits = {"lo": options["low"] - 1, "hi": options["high"] - 1}  # SciPy counts from 0
    size = _workspace(letter, "gehrd", operands[0].shape[0], **limits)
    return _named("lapack", letter, "gehrd")(operands[0], lwork=size, **limits)


def _sytrd(
    letter: str, options: Mapping[str, int], operands: list[np.ndarray]
) -> tuple[AnyValue, ...]:
    name, lower = "sytrd" if letter in "sd" else "hetrd", options["uplo"] == _LOWER
    size = _workspace(letter, name, operands[0].shape[0], lower=lower)
    return _named("lapack", letter, name)(operands[0], lwork=size, lower=lower)


def _gtsv(
    letter: str, options: Mapping[str, int], operands: list[np.ndarray]
) -> tuple[AnyValue, ...]:
    below, diagonal, above, right = operands  # JAX's diagonals have a first or last that is unused
    *_, found, info = _named("lapack", letter, "gtsv")(below[1:], diagonal, above[:-1], right)
    return None, None, None, found, info


_ROUTINES: dict[str, tuple[Routine, tuple[str, ...]]] = {
    "getrf": (_getrf, ()),
    "potrf": (_potrf, ("uplo",)),
    "trsm": (_trsm, ("side", "uplo", "trans_x", "diag")),
    "geqrf": (_geqrf, ()),
    "orgqr": (_orgqr, ()),
    "ungqr": (_orgqr, ()),
    "gesdd": (_gesdd, ("mode",)),
    "syevd": (_syevd, ("mode", "uplo")),
    "heevd": (_syevd, ("mode", "uplo")),
    "geev": (_geev, ("compute_left", "compute_right")),
    "gees": (_gees, ("mode",)),
    "gehrd": (_gehrd, ("low", "high")),
    "sytrd": (_sytrd, ("uplo",)),
    "hetrd": (_sytrd, ("uplo",)),
    "gtsv": (_gtsv, ()),
}
"""Routines, each with the options that it needs."""
