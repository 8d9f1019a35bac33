"""Derivatives and batching of embedded StableHLO: those of what it is read as.

An embedded operation that cannot be read has no derivative; examples of it are computed one after
the other.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax import lax
from jax.core import Tracer
from jax.extend import source_info_util
from jax.interpreters import ad, batching

from shmap_compiler.base.errors import DerivativeError, Problem
from shmap_compiler.base.source_lines import shown_source
from shmap_compiler.base.untyped import AnyValue, PyTree
from shmap_compiler.lowering.embedded_module import EmbeddedModule, embedded_p
from shmap_compiler.unjit.reading import read_exactly, read_for_derivatives


def _jvp(
    primals: Sequence[AnyValue], tangents: Sequence[AnyValue], *, module: EmbeddedModule
) -> tuple[list[AnyValue], list[AnyValue]]:
    """The results are those of the module itself, and the tangents those of what it is read as.

    Outside of jit, both are one compiled program, in which XLA computes once what they share.
    """
    active = tuple(k for k, tangent in enumerate(tangents) if type(tangent) is not ad.Zero)
    compute = _values_and_tangents
    if not any(isinstance(primal, Tracer) for primal in primals):
        compute = _compiled
    try:
        results, found = compute(list(primals), [tangents[k] for k in active], active, module)
    except _NoDerivative as error:
        raise _no_derivative(str(error)) from error.__cause__
    except DerivativeError as error:  # of an operation that the module is read as
        raise DerivativeError(_who(), error.problems) from error.__cause__
    moved = iter(found)
    return results, [
        next(moved)
        if found and jnp.issubdtype(result.dtype, jnp.inexact)
        else ad.Zero(jax.typeof(result).to_tangent_aval())
        for result in results
    ]


class _NoDerivative(Exception):
    """What has none."""


def _values_and_tangents(
    primals: Sequence[AnyValue],
    moved: Sequence[AnyValue],
    active: Sequence[int],
    module: EmbeddedModule,
) -> tuple[list[AnyValue], list[AnyValue]]:
    """The results, and the tangents of those that have any; none if no result has one.

    Args:
      moved: the tangents of the operands `active`.

    Raises:
      _NoDerivative: an operation of the module has none.
    """
    results = embedded_p.bind(*primals, module=module)
    if not any(jnp.issubdtype(result.dtype, jnp.inexact) for result in results):
        return results, []
    reading = read_for_derivatives(module.text)
    if reading.function is None:
        raise _NoDerivative(reading.unread)
    function = reading.function

    def of_active(*values: AnyValue) -> PyTree:
        operands = list(primals)
        for k, value in zip(active, values, strict=True):
            operands[k] = value
        return function(*operands)

    try:
        _, found = jax.jvp(of_active, [primals[k] for k in active], list(moved))
    except NotImplementedError as error:
        if isinstance(error, DerivativeError):
            raise
        raise _NoDerivative(f"{module!r}: {str(error).rstrip('.')}") from error
    return results, [tangent for tangent in found if tangent.dtype != jax.dtypes.float0]


_compiled = jax.jit(_values_and_tangents, static_argnums=(2, 3))


def _who() -> str:
    return f"the derivative of `call_stablehlo` ({shown_source(source_info_util.current())})"


def _no_derivative(what: str) -> DerivativeError:
    return DerivativeError(
        _who(),
        [
            Problem(
                "the module given to call_stablehlo",
                f"{what}, which has no derivative that is known",
                "operations that jax or jax.lax has a function for, or integer results",
                "wrap the call in jax.custom_jvp or jax.lax.stop_gradient, or write the operation "
                "with functions of jax",
            )
        ],
    )


def _batch(
    args: Sequence[AnyValue], dims: Sequence[int | None], *, module: EmbeddedModule
) -> tuple[list[AnyValue], list[int]]:
    moved = [
        (x, None) if d is None else (jnp.moveaxis(x, d, 0), 0)
        for x, d in zip(args, dims, strict=True)
    ]
    reading = read_exactly(module.text)
    if reading.function is not None:
        arrays, axes = zip(*moved, strict=True)
        results = list(jax.vmap(reading.function, in_axes=axes)(*arrays))
    else:
        results = _one_by_one(moved, module)
    return results, [0] * len(results)


def _one_by_one(
    moved: Sequence[tuple[AnyValue, int | None]], module: EmbeddedModule
) -> list[AnyValue]:
    batched = [x for x, axis in moved if axis == 0]

    def one(examples: list[AnyValue]) -> list[AnyValue]:
        left = iter(examples)
        operands = [x if axis is None else next(left) for x, axis in moved]
        return embedded_p.bind(*operands, module=module)

    return lax.map(one, batched)


ad.primitive_jvps[embedded_p] = _jvp
batching.primitive_batchers[embedded_p] = _batch
