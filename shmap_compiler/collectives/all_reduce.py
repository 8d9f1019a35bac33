"""psum, pmax and pmin: every device of a group receives the reduction over the group."""

from __future__ import annotations

from typing import Any

from jax.extend.core import Primitive
from jax.interpreters import ad
from jax.interpreters.mlir import ir
from jaxlib.mlir.dialects import stablehlo as hlo

from shmap_compiler.collectives.base import (
    Groups,
    define,
    fill_reduction,
    replica_groups,
    same_dimension_batcher,
)

psum_p = Primitive("psum")
pmax_p = Primitive("pmax")
pmin_p = Primitive("pmin")


def psum(x: Any, *, axes: tuple[str, ...], groups: Groups, size: int) -> Any:
    return psum_p.bind(x, axes=axes, groups=groups, size=size)


def pmax(x: Any, *, axes: tuple[str, ...], groups: Groups, size: int) -> Any:
    return pmax_p.bind(x, axes=axes, groups=groups, size=size)


def pmin(x: Any, *, axes: tuple[str, ...], groups: Groups, size: int) -> Any:
    return pmin_p.bind(x, axes=axes, groups=groups, size=size)


def _type(x, *, axes, groups, size):
    return x


def _lowering(combine):
    def lowering(ctx, x, *, axes, groups, size):
        op = hlo.AllReduceOp([x.type], [x], replica_groups(ctx, axes, groups))
        fill_reduction(op, ir.RankedTensorType(x.type).element_type, combine)
        return op.results

    return lowering


def _psum_transpose(ct, x, **params):
    return [ct if type(ct) is ad.Zero else psum(ct, **params)]


for _primitive, _combine in ((psum_p, hlo.add), (pmax_p, hlo.maximum), (pmin_p, hlo.minimum)):
    define(_primitive, _type, _lowering(_combine), same_dimension_batcher(_primitive))
ad.deflinear2(psum_p, _psum_transpose)
