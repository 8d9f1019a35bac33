"""all_gather and psum_scatter, each other's transposes.

all_gather: every device receives the blocks of its group, put together along one dimension.
psum_scatter: the sum over a group, of which each device receives its own part of a dimension.
"""

from __future__ import annotations

from typing import Any

from jax.extend.core import Primitive
from jax.interpreters import ad
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo as hlo

from shmap_compiler.collectives.base import (
    Groups,
    define,
    fill_reduction,
    past,
    replica_groups,
    with_dimension,
)

all_gather_p = Primitive("all_gather")
psum_scatter_p = Primitive("psum_scatter")


def all_gather(x: Any, *, axes: tuple[str, ...], dimension: int, groups: Groups, size: int) -> Any:
    """`[..., n, ...] -> [..., n * size, ...]`, along `dimension`, in the order of the group."""
    return all_gather_p.bind(x, axes=axes, dimension=dimension, groups=groups, size=size)


def psum_scatter(
    x: Any, *, axes: tuple[str, ...], dimension: int, groups: Groups, size: int
) -> Any:
    """`[..., n, ...] -> [..., n / size, ...]`, along `dimension`; `size` must divide n."""
    return psum_scatter_p.bind(x, axes=axes, dimension=dimension, groups=groups, size=size)


def _all_gather_type(x, *, axes, dimension, groups, size):
    return with_dimension(x, dimension, x.shape[dimension] * size)


def _psum_scatter_type(x, *, axes, dimension, groups, size):
    return with_dimension(x, dimension, x.shape[dimension] // size)


def _all_gather_lowering(ctx, x, *, axes, dimension, groups, size):
    (out,) = ctx.avals_out
    result = ir.RankedTensorType.get(out.shape, ir.RankedTensorType(x.type).element_type)
    op = hlo.AllGatherOp([result], [x], dimension, replica_groups(ctx, axes, groups))
    return op.results


def _psum_scatter_lowering(ctx, x, *, axes, dimension, groups, size):
    (out,) = ctx.avals_out
    element = ir.RankedTensorType(x.type).element_type
    result = ir.RankedTensorType.get(out.shape, element)
    op = hlo.ReduceScatterOp(result, x, dimension, replica_groups(ctx, axes, groups))
    fill_reduction(op, element, hlo.add)
    return op.results


def _all_gather_transpose(ct, x, **params):
    return [ct if type(ct) is ad.Zero else psum_scatter(ct, **params)]


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
