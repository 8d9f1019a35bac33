"""all_to_all: device k of a group receives part k of every device's block, concatenated."""

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
    past,
    replica_groups,
    result_type,
    with_dimension,
)
from shmap_compiler.collectives.jax_params import group_params
from shmap_compiler.collectives.record import Collective, Combines, JaxForm, Result, Waits

all_to_all_p = Primitive("all_to_all")


def all_to_all(
    x: jax.Array, *, axes: tuple[str, ...], split: int, concat: int, groups: DeviceGroups, size: int
) -> jax.Array:
    """Splits along dimension `split` (a multiple of `size`), concatenates along `concat`."""
    return all_to_all_p.bind(x, axes=axes, split=split, concat=concat, groups=groups, size=size)


def _type(x, *, axes, split, concat, groups, size):
    parts = with_dimension(x, split, x.shape[split] // size)
    result = with_dimension(parts, concat, parts.shape[concat] * size)
    return result.update(weak_type=False)  # as in JAX


def _lowering(ctx, x, *, axes, split, concat, groups, size):
    result, attribute = result_type(ctx, x), replica_groups(ctx, axes, groups)
    return hlo.AllToAllOp([x], split, concat, size, attribute, results=[result]).results


def _transpose(ct, x, *, split, concat, **params):
    if type(ct) is ad.Zero:
        return [ct]
    return [all_to_all(ct, split=concat, concat=split, **params)]


def _batcher(args, dims, *, split, concat, **params):
    (x,), (d,) = args, dims
    return all_to_all(x, split=past(d, split), concat=past(d, concat), **params), d


define(all_to_all_p, _type, _lowering, _batcher)
ad.deflinear2(all_to_all_p, _transpose)


def _expansion(params, sizes):
    # Untiled, JAX inserts and removes the dimension of the group around its primitive.
    group = group_params(params, sizes)

    def fun(x):
        if not group["axes"]:
            return x
        split, concat = params["split_axis"] % x.ndim, params["concat_axis"] % x.ndim
        return all_to_all(x, split=split, concat=concat, **group)

    return fun


def _split(axis, x, *, split_axis, concat_axis, axis_name, axis_index_groups, tiled):
    split, concat = split_axis % (x.ndim - 1), concat_axis % (x.ndim - 1)
    if axis_index_groups is not None:
        arguments = {"split_axis": split, "concat_axis": concat, "tiled": True}
        return split_axes.grouped(lax.all_to_all, x, axis, axis_index_groups, **arguments)
    return split_axes.all_to_all(x, axis, split, concat), 0


def _on_rows(axis, x, *, axes, split, concat, groups, size):
    m = rows.members(axis, axes, groups)
    parts = rows.split(m.gathered(x), split + 2, size)  # [group, source, ..., target, ...]
    parts = jnp.moveaxis(parts, split + 2, 1)  # [group, target, source, ...]
    return rows.join(jnp.moveaxis(parts, 2, concat + 2), concat + 2)[m.group, m.place]


ALL_TO_ALL = Collective(
    primitive=all_to_all_p,
    result=Result.PART,
    waits=Waits.GROUP,
    hlo="all-to-all",
    forms=(JaxForm("all_to_all", _expansion, _split, jax_batches_equal=False),),
    on_rows=_on_rows,
    functions=("all_to_all",),
    combines=Combines.BLOCKS,
)
