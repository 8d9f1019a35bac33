"""all_gather and psum_scatter, each other's transposes.

all_gather: every device receives the blocks of its group, concatenated along one dimension.
psum_scatter: the sum over a group, of which each device receives its own part of a dimension.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend.core import Primitive
from jax.interpreters import ad
from jaxlib.mlir.dialects import stablehlo as hlo

from shmap_compiler.collectives import rows, split_axes
from shmap_compiler.collectives.base import (
    DeviceGroups,
    define,
    fill_reduction,
    past,
    replica_groups,
    result_type,
    with_dimension,
)
from shmap_compiler.collectives.jax_params import group_params
from shmap_compiler.collectives.record import (
    NO_KEYS,
    RANDOM_KEYS,
    Collective,
    Combines,
    JaxForm,
    Payload,
    Refusal,
    Result,
    Waits,
)

all_gather_p = Primitive("all_gather")
psum_scatter_p = Primitive("psum_scatter")


def all_gather(
    x: jax.Array, *, axes: tuple[str, ...], dimension: int, groups: DeviceGroups, size: int
) -> jax.Array:
    """`[..., n, ...] -> [..., n * size, ...]`, along `dimension`, in the order of the group."""
    return all_gather_p.bind(x, axes=axes, dimension=dimension, groups=groups, size=size)


def psum_scatter(
    x: jax.Array, *, axes: tuple[str, ...], dimension: int, groups: DeviceGroups, size: int
) -> jax.Array:
    """`[..., n, ...] -> [..., n / size, ...]`, along `dimension`; `size` must divide n."""
    return psum_scatter_p.bind(x, axes=axes, dimension=dimension, groups=groups, size=size)


def _all_gather_type(x, *, axes, dimension, groups, size):
    return with_dimension(x, dimension, x.shape[dimension] * size)


def _psum_scatter_type(x, *, axes, dimension, groups, size):
    return with_dimension(x, dimension, x.shape[dimension] // size)


def _all_gather_lowering(ctx, x, *, axes, dimension, groups, size):
    result = result_type(ctx, x)
    if 0 in result.shape:  # StableHLO has no such collective
        return [hlo.reshape(result, x)]
    op = hlo.AllGatherOp([result], [x], dimension, replica_groups(ctx, axes, groups))
    return op.results


def _psum_scatter_lowering(ctx, x, *, axes, dimension, groups, size):
    result = result_type(ctx, x)
    op = hlo.ReduceScatterOp(result, x, dimension, replica_groups(ctx, axes, groups))
    fill_reduction(op, result.element_type, hlo.add)
    return op.results


def _all_gather_transpose(ct, x, **params):
    if type(ct) is ad.Zero:
        return [ct]
    shape = x.aval.shape  # of what may have no elements, which cannot be scattered
    return [lax.reshape(ct, shape) if 0 in shape else psum_scatter(ct, **params)]


def _psum_scatter_transpose(ct, x, **params):
    return [ct if type(ct) is ad.Zero else all_gather(ct, **params)]


def _batcher(primitive):
    def batcher(args, dims, *, dimension, **params):
        (x,), (d,) = args, dims
        return primitive.bind(x, dimension=past(d, dimension), **params), d

    return batcher


define(all_gather_p, _all_gather_type, _all_gather_lowering, _batcher(all_gather_p))
define(psum_scatter_p, _psum_scatter_type, _psum_scatter_lowering, _batcher(psum_scatter_p))
ad.deflinear2(all_gather_p, _all_gather_transpose)
ad.deflinear2(psum_scatter_p, _psum_scatter_transpose)


# ---------------------------------------------------------------------------------- JAX's forms


def _expand_all_gather(params, sizes):
    dimension, group = params["all_gather_dimension"], group_params(params, sizes)

    def fun(x):
        x = x if params["tiled"] else lax.expand_dims(x, (dimension,))
        return all_gather(x, dimension=dimension, **group)

    return fun


def _expand_reduce_scatter(params, sizes):
    group = group_params(params, sizes)

    def fun(x):
        dimension = params["scatter_dimension"] % x.ndim
        x = psum_scatter(x, dimension=dimension, **group)
        return x if params["tiled"] else lax.squeeze(x, (dimension,))

    return fun


def _split_all_gather(
    axis, x, *, all_gather_dimension, axis_name, axis_size, tiled, axis_index_groups=None
):
    dimension = all_gather_dimension
    x = x if tiled else jnp.expand_dims(x, dimension + 1)
    if axis_index_groups is not None:
        arguments = {"axis": dimension, "tiled": True}
        return split_axes.grouped(lax.all_gather, x, axis, axis_index_groups, **arguments)
    return split_axes.all_gather(x, axis, dimension), None


def _split_reduce_scatter(
    axis, x, *, scatter_dimension, axis_name, axis_index_groups, axis_size, tiled
):
    dimension = scatter_dimension % (x.ndim - 1)
    if axis_index_groups is None:
        x = split_axes.psum_scatter(x, axis, dimension)
    else:
        arguments = {"scatter_dimension": dimension, "tiled": True}
        x, _ = split_axes.grouped(lax.psum_scatter, x, axis, axis_index_groups, **arguments)
    return x if tiled else jnp.squeeze(x, dimension + 1), 0


# --------------------------------------------------------------------------- on stacked blocks


def _all_gather_on_rows(axis, x, *, axes, dimension, groups, size):
    m = rows.members(axis, axes, groups)
    return rows.join(jnp.moveaxis(m.gathered(x), 1, dimension + 1), dimension + 1)[m.group]


def _psum_scatter_on_rows(axis, x, *, axes, dimension, groups, size):
    m = rows.members(axis, axes, groups)
    if size == 1:
        return x
    total = rows.SUM(m.gathered(x))
    parts = jnp.moveaxis(rows.split(total, dimension + 1, size), dimension + 1, 1)
    return parts[m.group, m.place]


# ------------------------------------------------------------------------------------- records

ALL_GATHER = Collective(
    primitive=all_gather_p,
    result=Result.SAME,
    waits=Waits.GROUP,
    hlo="all-gather",
    forms=(
        JaxForm("all_gather", _expand_all_gather, _split_all_gather),
        JaxForm(
            "all_gather_invariant",
            _expand_all_gather,
            _split_all_gather,
            jax_batches=False,  # unless types of varying values are on
        ),
        JaxForm("all_gather_reduced", _expand_all_gather),
    ),
    on_rows=_all_gather_on_rows,
    functions=("all_gather",),
    combines=Combines.BLOCKS,
    payload=Payload.GATHERED,
)
PSUM_SCATTER = Collective(
    primitive=psum_scatter_p,
    result=Result.PART,
    waits=Waits.GROUP,
    hlo="reduce-scatter",
    forms=(
        JaxForm("reduce_scatter", _expand_reduce_scatter, _split_reduce_scatter),
        JaxForm("unreduced_reduce_scatter", _expand_reduce_scatter),
    ),
    on_rows=_psum_scatter_on_rows,
    functions=("psum_scatter",),
    combines=Combines.SUM,
    transpose=all_gather_p,
    refused_types={
        "b": Refusal(  # XLA would or them, where psum counts them
            "an operand of type bool",
            "numbers: booleans have no sum",
            "convert first, e.g. x.astype(jnp.int32), as psum does",
        ),
        RANDOM_KEYS: NO_KEYS,
    },
    xla_rejects=lambda result: 0 in result.shape,
)
