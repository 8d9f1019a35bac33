"""Rows for operations that have no spelling, but a derivative.

The source calls these operations as StableHLO, because JAX has no function that computes exactly
what they do: factorizations leave something in the other half of a matrix, and say whether they
succeeded. The function of a row has the derivative of the operation, or raises an error where the
operation has one that cannot be known.
"""

from __future__ import annotations

import re

from jaxlib.mlir import ir
from shmap_passes.ir.collective_ops import call_target

from shmap_compiler.unjit.layout import Code, call, display, numbers
from shmap_compiler.unjit.spelling.operation import Op, Row
from shmap_compiler.unjit.spelling.table import SPELLINGS
from shmap_compiler.unjit.types import is_float

_TARGET = re.compile(r"lapack_[sdcz]([a-z]+)_ffi")
_YES_NO = {True: "True", False: "False"}


def _bitcast(op: Op) -> Code | None:
    if not is_float(op.operands[0]) or is_float(op.result):
        return SPELLINGS["stablehlo.bitcast_convert"](op)
    return call("derivative_functions.bits", op.exact(0), op.dtype)


def _options(op: Op) -> dict[str, str]:
    """The options of a LAPACK routine, which are letters: {"uplo": "L"}."""
    attributes = op.op.attributes
    name = "mhlo.backend_config" if "mhlo.backend_config" in attributes else "backend_config"
    found = ir.DictAttr(attributes[name])
    return {each.name: chr(ir.IntegerAttr(each.attr).value) for each in found}


def _custom_call(op: Op) -> Code | None:
    found = _TARGET.fullmatch(call_target(op.op))
    row = None if found is None else _ROUTINES.get(found[1])
    return None if row is None else row(op)


def _potrf(op: Op) -> Code:
    lower = _YES_NO[_options(op)["uplo"] == "L"]
    results = call("derivative_functions.cholesky_factor", op.exact(0), lower=lower)
    return display("(", [results, _success(op)], ")")


def _success(op: Op) -> Code:
    """The numbers with which a routine says whether it succeeded, which have no derivative."""
    type_ = ir.RankedTensorType(op.op.results[len(op.op.results) - 1].type)
    return call("jnp.zeros", numbers(type_.shape), "jnp.int32")


def _trsm(op: Op) -> Code:
    options = _options(op)
    return call(
        "lax.linalg.triangular_solve",
        op.exact(0),
        op.exact(1),
        left_side=_YES_NO[options["side"] == "L"],
        lower=_YES_NO[options["uplo"] == "L"],
        transpose_a=_YES_NO[options["trans_x"] != "N"],
        conjugate_a=_YES_NO[options["trans_x"] == "C"],
        unit_diagonal=_YES_NO[options["diag"] == "U"],
    )


def _getrf(op: Op) -> Code:
    return call("derivative_functions.lu_factor", op.exact(0))


def _geqrf(op: Op) -> Code:
    return call("derivative_functions.householder_factor", op.exact(0))


def _orgqr(op: Op) -> Code:
    return call("derivative_functions.householder_product", *op.all_exact())


def _syevd(op: Op) -> Code | None:
    options = _options(op)
    if options["mode"] == "N":
        return None  # what is in place of the vectors is none of the matrix's
    vectors_and_values = call(
        "lax.linalg.eigh",
        op.exact(0),
        lower=_YES_NO[options["uplo"] == "L"],
        symmetrize_input="False",
    )
    return display("(", [f"*{vectors_and_values.text}", _success(op)], ")")


def _gesdd(op: Op) -> Code | None:
    mode = _options(op)["mode"]
    known = {1, 4} if mode == "N" else {1, 2, 3, 4}
    if not _are_known(op, known):
        return None
    function = "singular_values" if mode == "N" else "singular_vectors"
    full = {} if mode == "N" else {"full": _YES_NO[mode == "A"]}
    found = call(f"derivative_functions.{function}", op.exact(0), **full)
    return display("(", [f"*{found.text}", _success(op)], ")")


def _geev(op: Op) -> Code | None:
    options = _options(op)
    left, right = (options[f"compute_{side}"] == "V" for side in ("left", "right"))
    # The values of real matrices are two arrays, the real and the imaginary parts.
    first = len(op.op.results) - 3
    known = {*range(first), *([first] if left else []), *([first + 1] if right else [])}
    if not _are_known(op, {*known, first + 2}):
        return None
    function = "derivative_functions.eigenvectors"
    found = call(function, op.exact(0), left=_YES_NO[left], right=_YES_NO[right])
    return display("(", [f"*{found.text}", _success(op)], ")")


def _gtsv(op: Op) -> Code | None:
    if not _are_known(op, {3, 4}):
        return None
    solved = call("lax.linalg.tridiagonal_solve", *op.all_exact())
    return display("(", ["None", "None", "None", solved, _success(op)], ")")


def _are_known(op: Op, known: set[int]) -> bool:
    """Whether no results are used but some: a routine leaves what it likes in the others."""
    return all(k in known or not list(result.uses) for k, result in enumerate(op.op.results))


def _cholesky(op: Op) -> Code:
    return call(
        "derivative_functions.cholesky_factor", op.exact(0), lower=_YES_NO[op.flag("lower")]
    )


def _triangular_solve(op: Op) -> Code:
    transposed = op.word("transpose_a")
    return call(
        "lax.linalg.triangular_solve",
        op.exact(0),
        op.exact(1),
        left_side=_YES_NO[op.flag("left_side")],
        lower=_YES_NO[op.flag("lower")],
        transpose_a=_YES_NO[transposed in ("TRANSPOSE", "ADJOINT")],
        conjugate_a=_YES_NO[transposed == "ADJOINT"],
        unit_diagonal=_YES_NO[op.flag("unit_diagonal")],
    )


def _function(op: Op) -> Code:
    return call(_FUNCTIONS[op.name], *op.all_exact())


def _select_and_scatter(op: Op) -> Code | None:
    """The derivative of a maximum or minimum over windows, which is linear in its cotangents."""
    compared = [each.operation for each in op.op.regions[0].blocks[0].operations][:-1]
    if len(compared) != 1 or op.region_op(1) != "stablehlo.add":
        return None
    kind = Op(compared[0], op.values).word("comparison_direction")
    function = {"GE": "lax.max", "LE": "lax.min"}.get(kind)
    if function is None or op.values.constant(op.operands[2]) != 0:
        return None
    rank = len(op.shape)
    ones = (1,) * rank
    padding = op.integers("padding") or (0,) * (2 * rank)
    return call(
        "derivative_functions.select_and_add",
        op.exact(0),
        op.exact(1),
        function,
        numbers(op.integers("window_dimensions") or ones),
        numbers(op.integers("window_strides") or ones),
        display("[", (numbers(padding[2 * k : 2 * k + 2]) for k in range(rank)), "]"),
    )


_FUNCTIONS = {
    **{name: f"lax.{name}" for name in ("acos", "acosh", "asin", "asinh", "atan", "atanh")},
    **{name: f"lax.{name}" for name in ("bessel_i1e", "cosh", "digamma", "erfc", "lgamma")},
    **{name: f"lax.{name}" for name in ("polygamma", "sinh", "square", "tan", "zeta")},
    "next_after": "lax.nextafter",
}
"""Functions that JAX lowers to CHLO, by their name there."""

_ROUTINES: dict[str, Row] = {
    "geev": _geev,
    "geqrf": _geqrf,
    "gesdd": _gesdd,
    "getrf": _getrf,
    "gtsv": _gtsv,
    "heevd": _syevd,
    "orgqr": _orgqr,
    "potrf": _potrf,
    "syevd": _syevd,
    "trsm": _trsm,
    "ungqr": _orgqr,
}
DERIVATIVE_ROWS: dict[str, Row] = {
    **{f"chlo.{name}": _function for name in _FUNCTIONS},
    "stablehlo.bitcast_convert": _bitcast,
    "stablehlo.cholesky": _cholesky,
    "stablehlo.custom_call": _custom_call,
    "stablehlo.select_and_scatter": _select_and_scatter,
    "stablehlo.triangular_solve": _triangular_solve,
}
