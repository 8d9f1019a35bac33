"""pbroadcast: every device of a group receives the block of one of them."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import Primitive
from jax.interpreters import ad, mlir
from jaxlib.mlir import ir

from shmap_compiler.base.bits import as_unsigned
from shmap_compiler.collectives import rows, split_axes
from shmap_compiler.collectives.all_reduce import pmax, psum
from shmap_compiler.collectives.axis_index import axis_index
from shmap_compiler.collectives.base import define, replica_groups, same_dimension_batcher
from shmap_compiler.collectives.jax_params import group_params
from shmap_compiler.collectives.pbroadcast_transpose import register_transpose
from shmap_compiler.collectives.record import (
    NO_KEYS,
    RANDOM_KEYS,
    Collective,
    JaxForm,
    Refusal,
    Result,
    Waits,
)

pbroadcast_p = Primitive("pbroadcast")


def pbroadcast(x: jax.Array, *, axes: tuple[str, ...], source: int, size: int) -> jax.Array:
    """`source` is a position along `axes`."""
    return pbroadcast_p.bind(x, axes=axes, source=source, size=size)


def _type(x, *, axes, source, size):
    return x


def _lowering(ctx, x, *, axes, source, size):
    # StableHLO broadcasts from the first device of a group.
    first = (source, *(k for k in range(size) if k != source))
    groups = None if source == 0 else (first,)
    # The generated builder takes one operand in jaxlib 0.10, and a list of them in 0.12.
    op = ir.Operation.create(
        "stablehlo.collective_broadcast",
        results=[x.type],
        operands=[x],
        attributes={"replica_groups": replica_groups(ctx, axes, groups)},
    )
    return op.results


def _cpu_lowering(ctx, x, *, axes, source, size):
    """XLA's CPU backend has no collective broadcast: a sum to which only the source gives bits."""
    masked_sum = functools.partial(_masked_sum, axes=axes, source=source, size=size)
    return mlir.lower_fun(masked_sum, multiple_results=False)(ctx, x)


def _masked_sum(x, *, axes, source, size):
    if jnp.issubdtype(x.dtype, jnp.complexfloating):
        parts = (
            _masked_sum(part, axes=axes, source=source, size=size) for part in (x.real, x.imag)
        )
        return lax.complex(*parts)
    bits = as_unsigned(x)  # so that also -0.0 arrives as it is
    mine = axis_index(axes=axes) == source
    bits = psum(jnp.where(mine, bits, jnp.zeros_like(bits)), axes=axes, groups=None, size=size)
    return bits.astype(x.dtype) if x.dtype == jnp.bool_ else lax.bitcast_convert_type(bits, x.dtype)


def _transpose(ct, x, *, axes, source, size):
    if type(ct) is ad.Zero:
        return [ct]
    total = psum(ct, axes=axes, groups=None, size=size)
    return [jnp.where(axis_index(axes=axes) == source, total, jnp.zeros_like(total))]


define(pbroadcast_p, _type, _lowering, same_dimension_batcher(pbroadcast_p))
mlir.register_lowering(pbroadcast_p, _cpu_lowering, platform="cpu")
ad.deflinear2(pbroadcast_p, _transpose)


# ---------------------------------------------------------------------------------- JAX's forms


def _expansion(params, sizes):
    group = group_params(params, sizes)
    if not group["axes"]:
        return lambda x: x
    source = int(params["source"])  # True is a source too
    return functools.partial(pbroadcast, axes=group["axes"], source=source, size=group["size"])


def _expansion_of_dynamic(params, sizes):
    group = group_params(params, sizes)

    def fun(x, source):
        mine = axis_index(axes=group["axes"]) == source
        if x.dtype == jnp.bool_:
            return pmax(x & mine, **group)
        return psum(jnp.where(mine, x, jnp.zeros_like(x)), **group)

    return fun


def _split(axis, x, *, axis_name, source):
    return split_axes.pbroadcast(x, axis, source), None


def _split_dynamic(axis, x, source, *, axis_name):
    return split_axes.pbroadcast_dynamic(x, axis, source[0]), None


def _on_rows(axis, x, *, axes, source, size):
    m = rows.members(axis, axes, None)
    return x[np.stack(m.ids)[m.group, source]]


PBROADCAST = Collective(
    primitive=pbroadcast_p,
    result=Result.FROM_ONE,
    waits=Waits.GROUP,
    hlo="collective-broadcast",
    forms=(
        JaxForm(
            "pbroadcast",
            _expansion,
            _split,
            jax_batches=False,  # for NumPy operands only
            register_derivative=register_transpose,
        ),
        JaxForm(
            "pbroadcast_dynamic",
            _expansion_of_dynamic,
            _split_dynamic,
            unmapped={
                1: Refusal(
                    "a source that differs along the vmapped axis",
                    "one source for the whole axis",
                    "compute the source from values that are not vmapped",
                )
            },
            register_derivative=register_transpose,
        ),
    ),
    on_rows=_on_rows,
    functions=("pbroadcast",),
    refused_types={RANDOM_KEYS: NO_KEYS},
)
