"""ppermute: sends blocks along (source, target) pairs; a device that is not a target gets zeros."""

from __future__ import annotations

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Primitive
from jax.interpreters import ad
from jaxlib.mlir.dialects import stablehlo as hlo

from shmap_compiler.base.jax_compat import lowering_mesh
from shmap_compiler.collectives import split_axes
from shmap_compiler.collectives.base import define, dense_ids, device_ids, same_dimension_batcher
from shmap_compiler.collectives.jax_params import named_axes
from shmap_compiler.collectives.record import Collective, JaxForm, Payload, Result, Waits

ppermute_p = Primitive("ppermute")


def ppermute(
    x: jax.Array, *, axes: tuple[str, ...], perm: tuple[tuple[int, int], ...]
) -> jax.Array:
    """`perm` holds (source, target) positions along `axes`, each source and target at most once."""
    return ppermute_p.bind(x, axes=axes, perm=perm)


def _type(x, *, axes, perm):
    return x


def _lowering(ctx, x, *, axes, perm):
    rows = device_ids(lowering_mesh(ctx), axes)
    pairs = rows[:, np.array(perm, np.int64).reshape(-1, 2)].reshape(-1, 2)
    return hlo.CollectivePermuteOp(x, dense_ids(pairs)).results


def _transpose(ct, x, *, axes, perm):
    if type(ct) is ad.Zero:
        return [ct]
    return [ppermute(ct, axes=axes, perm=tuple((target, source) for source, target in perm))]


define(ppermute_p, _type, _lowering, same_dimension_batcher(ppermute_p))
ad.deflinear2(ppermute_p, _transpose)


def _expansion(params, sizes):
    perm = tuple((int(source), int(target)) for source, target in params["perm"])
    axes = named_axes(params)
    devices = math.prod(sizes[a] for a in axes)
    if set(perm) == {(k, k) for k in range(devices)}:  # no device waits for another
        return lambda x: x
    if not axes:
        return jnp.zeros_like
    return functools.partial(ppermute, axes=axes, perm=perm)


def _split(axis, x, *, axis_name, perm):
    return split_axes.ppermute(x, axis, perm), 0


def _on_rows(axis, x, *, axes, perm):
    rows = device_ids(axis.mesh, axes)
    source = np.full(rows.size, -1)
    for start, end in perm:
        source[rows[:, end]] = rows[:, start]
    received = x[np.maximum(source, 0)]
    if np.all(source >= 0):
        return received
    is_target = (source >= 0).reshape(-1, *(1,) * (x.ndim - 1))
    return jnp.where(is_target, received, jnp.zeros_like(received))


PPERMUTE = Collective(
    primitive=ppermute_p,
    result=Result.PERMUTED,
    waits=Waits.PROGRAM,
    hlo="collective-permute",
    # JAX batches it only for permutations in which every device is a target.
    forms=(JaxForm("ppermute", _expansion, _split, jax_batches=False),),
    on_rows=_on_rows,
    functions=("ppermute", "pshuffle"),
    payload=Payload.FIRST_OPERAND,
)
