"""What all collectives share: registration, replica groups, reduction regions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from jax.extend.core import Primitive
from jax.interpreters import batching, mlir
from jax.interpreters.mlir import ir
from jaxlib.mlir.dialects import stablehlo as hlo
from shmap_passes.ir.memoize import memoized

from shmap_compiler.base.jax_compat import AnyMesh, keep_unreduced, lowering_mesh
from shmap_compiler.base.untyped import Aval, Function, LoweringContext, OpView

DeviceGroups = tuple[tuple[int, ...], ...] | None

MESH_SYMBOL = "mesh"
"""Name of the `sdy.mesh` that emission declares and every replica group refers to."""


def define(
    primitive: Primitive,
    abstract_eval: Function,
    lowering: Function,
    batcher: Function | None = None,
) -> None:
    """Registers the rules that every collective has. Derivatives are registered separately."""
    primitive.def_abstract_eval(abstract_eval)
    mlir.register_lowering(primitive, _keeping_unreduced(lowering))
    if batcher is not None:
        batching.primitive_batchers[primitive] = batcher


def _keeping_unreduced(lowering: Function) -> Function:
    """The lowering, for results that may be unreduced over axes that are not manual here."""

    def rule(ctx, *operands, **params):
        results = lowering(ctx, *operands, **params)
        return keep_unreduced(results, ctx.avals_out, MESH_SYMBOL)

    return rule


def with_dimension(aval: Aval, dimension: int, size: int) -> Aval:
    """Type `aval` with another size along `dimension`."""
    shape = list(aval.shape)
    shape[dimension] = size
    return aval.update(shape=tuple(shape))


def same_dimension_batcher(primitive: Primitive) -> Function:
    """Batching rule of a collective that treats every element alike."""

    def batcher(args, dims, **params):
        (x,), (d,) = args, dims
        return primitive.bind(x, **params), d

    return batcher


def past(batch_dim: int, dimension: int) -> int:
    """`dimension` of an unbatched value, counted in the value batched along `batch_dim`."""
    return dimension + (batch_dim <= dimension)


def result_type(ctx: LoweringContext, x: ir.Value) -> ir.RankedTensorType:
    """The type of the result of a collective on `x`, the only operand.

    A random key is an array of words; their dimensions come after those that the user sees.
    """
    (given,), (out,) = ctx.avals_in, ctx.avals_out
    type_ = ir.RankedTensorType(x.type)
    words = type_.shape[len(given.shape) :]
    return ir.RankedTensorType.get((*out.shape, *words), type_.element_type)


# ------------------------------------------------------------------------------ replica groups


def device_ids(mesh: AnyMesh, axes: Sequence[str]) -> np.ndarray:
    """Positions in the mesh of devices that differ only along `axes`: int64[groups, size]."""
    names = list(mesh.axis_names)
    ids = np.arange(math.prod(mesh.shape.values()), dtype=np.int64)
    ids = ids.reshape([mesh.shape[a] for a in names])
    order = [names.index(a) for a in names if a not in axes] + [names.index(a) for a in axes]
    size = math.prod(mesh.shape[a] for a in axes)
    return np.ascontiguousarray(ids.transpose(order).reshape(-1, size))


def replica_groups(ctx: LoweringContext, axes: Sequence[str], groups: DeviceGroups) -> ir.Attribute:
    """Groups named by mesh axes; dense ones for `groups`, which StableHLO cannot name."""
    if groups is None:
        return _groups_along(ir.FlatSymbolRefAttr.get(MESH_SYMBOL), tuple(axes))
    rows, largest = device_ids(lowering_mesh(ctx), axes), max(map(len, groups))
    padded = [  # StableHLO fills smaller groups up with -1
        np.pad(rows[:, list(g)], ((0, 0), (0, largest - len(g))), constant_values=-1)
        for g in groups
    ]
    return dense_ids(np.concatenate(padded))


@memoized
def _groups_along(mesh: ir.Attribute, axes: tuple[str, ...]) -> ir.Attribute:
    refs = ir.ArrayAttr.get([hlo.AxisRefAttr.get(a) for a in axes])
    return hlo.ReplicaGroupMeshAxesAttr.get(mesh, refs)


def dense_ids(rows: np.ndarray) -> ir.Attribute:
    """Device ids as an attribute, which takes them row by row only."""
    buffer: Any = np.ascontiguousarray(rows)
    return ir.DenseIntElementsAttr.get(buffer)


def fill_reduction(op: OpView, element: ir.Type, combine: Function) -> None:
    """Gives a reducing collective its region: `combine` of two scalars."""
    scalar = ir.RankedTensorType.get([], element)
    block = op.operation.regions[0].blocks.append(scalar, scalar)
    with ir.InsertionPoint(block):
        hlo.return_([combine(*block.arguments)])
