"""all_to_all: device k of a group receives part k of every device's block, put together."""

from __future__ import annotations

from typing import Any

from jax.extend.core import Primitive
from jax.interpreters import ad
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo as hlo

from shmap_compiler.collectives.base import Groups, define, past, replica_groups, with_dimension

all_to_all_p = Primitive("all_to_all")


def all_to_all(
    x: Any, *, axes: tuple[str, ...], split: int, concat: int, groups: Groups, size: int
) -> Any:
    """Splits along dimension `split` (a multiple of `size`), concatenates along `concat`."""
    return all_to_all_p.bind(x, axes=axes, split=split, concat=concat, groups=groups, size=size)


def _type(x, *, axes, split, concat, groups, size):
    parts = with_dimension(x, split, x.shape[split] // size)
    return with_dimension(parts, concat, parts.shape[concat] * size)


def _lowering(ctx, x, *, axes, split, concat, groups, size):
    (out,) = ctx.avals_out
    result = ir.RankedTensorType.get(out.shape, ir.RankedTensorType(x.type).element_type)
    attribute = replica_groups(ctx, axes, groups)
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
