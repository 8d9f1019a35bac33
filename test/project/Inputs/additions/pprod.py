"""pprod: every device of a group receives the product over the group."""

from __future__ import annotations

from jax import lax
from jax.extend.core import Primitive
from jax.interpreters.mlir import ir
from jaxlib.mlir.dialects import stablehlo as hlo

from shmap_compiler.base.untyped import AnyValue
from shmap_compiler.collectives import rows
from shmap_compiler.collectives.base import (
    define,
    fill_reduction,
    replica_groups,
    same_dimension_batcher,
)
from shmap_compiler.collectives.record import Collective, Result, Waits

pprod_p = Primitive("pprod")


def pprod(x: AnyValue, axis_name: str) -> AnyValue:
    return pprod_p.bind(x, axes=(axis_name,), groups=None, size=lax.axis_size(axis_name))


def _type(x, *, axes, groups, size):
    return x


def _lowering(ctx, x, *, axes, groups, size):
    op = hlo.AllReduceOp([x.type], [x], replica_groups(ctx, axes, groups))
    fill_reduction(op, ir.RankedTensorType(x.type).element_type, hlo.multiply)
    return op.results


define(pprod_p, _type, _lowering, same_dimension_batcher(pprod_p))

PPROD = Collective(
    primitive=pprod_p,
    result=Result.SAME,
    waits=Waits.GROUP,
    hlo="all-reduce",
    forms=(),
    functions=(),
    on_rows=rows.reduction(rows.Fold(lax.mul, lambda dtype: 1)),
)
