"""axis_index: where this device stands along mesh axes, row-major over several of them."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Primitive
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo as hlo

from shmap_compiler.base.jax_compat import shaped_array
from shmap_compiler.base.untyped import LoweringContext, OpView
from shmap_compiler.collectives import rows, split_axes
from shmap_compiler.collectives.base import define
from shmap_compiler.collectives.jax_params import named_axes
from shmap_compiler.collectives.record import Collective, JaxForm, Result, Waits

axis_index_p = Primitive("axis_index")

CALL_TARGET = "shmap.axis_index"
"""StableHLO has no op for it; `shmap-legalize-collectives` turns this call into arithmetic."""


def axis_index(*, axes: tuple[str, ...]) -> jax.Array:
    """int32 scalar."""
    return axis_index_p.bind(axes=axes)


def _type(*, axes):
    return shaped_array((), np.dtype(np.int32), weak_type=False)


def lower_axis_index(ctx: LoweringContext, *, axes: tuple[str, ...]) -> OpView:
    """Lowering rule."""
    i32 = ir.IntegerType.get_signless(32)
    op = hlo.CustomCallOp(
        [ir.RankedTensorType.get([], i32)],
        [],
        call_target_name=ir.StringAttr.get(CALL_TARGET),
        backend_config=ir.DictAttr.get(
            {"axes": ir.ArrayAttr.get([ir.StringAttr.get(a) for a in axes])}
        ),
        api_version=ir.IntegerAttr.get(i32, 4),
    )
    return op.results


define(axis_index_p, _type, lower_axis_index)


def _expansion(params, sizes):
    return functools.partial(axis_index, axes=named_axes(params))


def _split(axis, *, axis_name):
    return split_axes.axis_index(axis), 0


def _on_rows(axis, *, axes):
    return jnp.asarray(rows.members(axis, axes, None).place)


AXIS_INDEX = Collective(
    primitive=axis_index_p,
    result=Result.RANK,
    waits=Waits.NOBODY,
    hlo=None,
    forms=(JaxForm("axis_index", _expansion, _split),),
    on_rows=_on_rows,
    functions=("axis_index",),
)
