"""Says of the results of a nested program how they are split along automatic axes.

JAX's rules say it of every operation where some axes are automatic: that the partitioner decides,
or, for axes of type Explicit, what the type says. XLA rejects a conditional whose branches return
values of different shardings, and the results of a nested region have one.
"""

from __future__ import annotations

from collections.abc import Sequence

from jax.interpreters.mlir import ir
from jax.sharding import AxisType
from jaxlib.mlir.dialects import sdy
from shmap_passes.export.sharding_calls import sharding_call
from shmap_passes.ir.mesh import Mesh
from shmap_passes.ir.sharding_text import full_sharding

from shmap_compiler.base.jax_compat import axis_types, shardy_is_on, type_reductions, type_split
from shmap_compiler.base.untyped import Aval, OpView
from shmap_compiler.collectives.base import MESH_SYMBOL
from shmap_compiler.graph.graph import Graph


def left_to_the_partitioner(
    graph: Graph, results: Sequence[OpView], types: Sequence[Aval]
) -> list[OpView]:
    """The results of a graph, with a hint on each if a region around it is partly automatic.

    Unreduced results have theirs from `keep_unreduced`.
    """
    if not graph.outer_manual_axes:
        return list(results)
    return [
        value if type_reductions(type_).unreduced else _hinted(graph, value, type_)
        for value, type_ in zip(results, types, strict=True)
    ]


def _hinted(graph: Graph, value: OpView, type_: Aval) -> OpView:
    mesh = Mesh(MESH_SYMBOL, tuple(graph.mesh.shape.items()))
    rank = ir.RankedTensorType(value.type).rank
    split = [*type_split(type_), *[()] * rank][:rank]  # keys have more dimensions than JAX shows
    is_closed = AxisType.Auto not in axis_types(type_.sharding.mesh).values()
    if shardy_is_on():
        shown = sdy.MeshAttr.get([sdy.MeshAxisAttr.get(a, n) for a, n in mesh.axes])
        dims = [
            sdy.DimensionShardingAttr.get([sdy.AxisRefAttr.get(a) for a in axes], is_closed)
            for axes in split
        ]
        return sdy.ShardingConstraintOp(value, sdy.TensorShardingAttr.get(shown, dims)).result
    text = full_sharding(mesh, split, graph.outer_manual_axes)
    open_dims = "" if is_closed else f"unspecified_dims=[{','.join(map(str, range(rank)))}]"
    return sharding_call("Sharding", value, value.type, text, open_dims if rank else "")
