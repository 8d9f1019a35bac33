"""Derivatives and batching of embedded StableHLO: those of what it is read as.

An embedded operation that cannot be read has no derivative; examples of it are computed one after
the other.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax import lax
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
    """The results are those of the module itself, and the tangents those of what it is read as."""
    results = embedded_p.bind(*primals, module=module)
    zeros = [ad.Zero(jax.typeof(result).to_tangent_aval()) for result in results]
    active = [k for k, tangent in enumerate(tangents) if type(tangent) is not ad.Zero]
    if not any(jnp.issubdtype(result.dtype, jnp.inexact) for result in results):
        return results, zeros
    reading = read_for_derivatives(module.text)
    if reading.function is None:
        raise _no_derivative(reading.unread)
    function = reading.function

    def of_active(*values: AnyValue) -> PyTree:
        operands = list(primals)
        for k, value in zip(active, values, strict=True):
            operands[k] = value
        return function(*operands)

    moved = [tangents[k] for k in active]
    try:
        _, found = jax.jvp(of_active, [primals[k] for k in active], moved)
    except NotImplementedError as error:
        if isinstance(error, DerivativeError):
            raise
        raise _no_derivative(f"{module!r}: {str(error).rstrip('.')}") from error
    return results, [
        tangent if tangent.dtype != jax.dtypes.float0 else zero
        for tangent, zero in zip(found, zeros, strict=True)
    ]


def _no_derivative(what: str) -> DerivativeError:
    line = shown_source(source_info_util.current())
    return DerivativeError(
        f"the derivative of `call_stablehlo` ({line})",
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
