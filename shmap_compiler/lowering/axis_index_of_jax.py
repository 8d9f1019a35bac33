"""JAX's own axis_index in a body: kernels that JAX interprets contain it, and regions of JAX's own.

Such a region is manual over more axes than the body. JAX makes one when it lowers
`jax.debug.print` where an axis is automatic, and some of `jax.shard_map` stay JAX's own (see
`tracing/regions_of_jax.py`). JAX lowers their collectives to the form that XLA takes, and passes
leave them as they are. The axis index is therefore finished here as well.
"""

from __future__ import annotations

from collections.abc import Sequence

from jax.interpreters.mlir import ir
from jaxlib.mlir.dialects import func as func_dialect
from shmap_passes.export.axis_index import axis_index
from shmap_passes.ir.body_form import BodyForm
from shmap_passes.ir.mesh import Mesh

from shmap_compiler.base.jax_compat import manual_axes_of, shardy_is_on
from shmap_compiler.base.untyped import AxisName, Function, LoweringContext, OpView
from shmap_compiler.collectives.axis_index import lower_axis_index


def axis_index_rule(main: func_dialect.FuncOp, mesh: Mesh, manual: Sequence[str]) -> Function:
    """The lowering rule of JAX's axis_index in `main`, whose body is manual over `manual`."""

    def rule(ctx: LoweringContext, *, axis_name: AxisName) -> OpView:
        axes = axis_name if isinstance(axis_name, tuple) else (axis_name,)
        here = manual_axes_of(ctx.module_context)
        if here == set(manual):
            return lower_axis_index(ctx, axes=axes)
        form = BodyForm(main, mesh, tuple(axis for axis in mesh.names if axis in here), ())
        i32 = ir.RankedTensorType.get([], ir.IntegerType.get_signless(32))
        return [axis_index(form, axes, i32, "shardy" if shardy_is_on() else "gspmd")]

    return rule
