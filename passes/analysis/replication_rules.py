"""Along which axes the results of one op vary, given those of its operands; for replication.py.

A device's result of a collective is a function of the blocks that reach it and, for some, of its
rank in the group. Devices reached by equal blocks in equal order have equal results. Where groups
list device ids this is computed for each device; a block is known by the coordinates of its device
along the axes over which the operand varies.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from jaxlib.mlir import ir

from ..ir.axis_set import AxisSet
from ..ir.collective_ops import (
    AXIS_INDEX,
    GROUPS,
    PAIRS,
    PERMUTE,
    call_target,
    device_ids,
    group_axes,
    indexed_axes,
    split_group_axes,
)
from ..ir.elementwise import ELEMENTWISE
from ..ir.mesh import MOST_LISTED, Mesh

# Ops that are functions of their operands: these of the dialect that XLA has for itself ...
_MHLO_FUNCTIONS = frozenset(
    {
        *(op.replace("stablehlo.", "mhlo.") for op in ELEMENTWISE),
        *(f"mhlo.{name}" for name in ("broadcast_in_dim", "concatenate", "constant", "copy")),
        *(f"mhlo.{name}" for name in ("dot", "dot_general", "erf", "get_tuple_element", "iota")),
        *(f"mhlo.{name}" for name in ("reshape", "slice", "topk", "transpose", "tuple")),
    }
)
# ... this, and those of these dialects ...
_FUNCTION_DIALECTS = ("stablehlo.", "chlo.", "sdy.sharding_constraint")
# ... except collectives that body form lacks, and what nothing in the module decides.
_SOURCES = frozenset(
    {
        "stablehlo.collective_reduce",
        "stablehlo.cross-replica-sum",
        "stablehlo.infeed",
        "stablehlo.partition_id",
        "stablehlo.recv",
        "stablehlo.replica_id",
        "stablehlo.rng",
    }
)

# Custom calls that are functions of their operands: shardings, kernels of numerical libraries. Any
# other may read whatever it likes, such as the id of its device.
_FUNCTION_CALLS = (
    "ApproxTopK",
    "Cholesky",
    "Eigh",
    "LuDecomposition",
    "ProductOfElementaryHouseholderReflectors",
    "Qr",
    "SPMDShardToFullShape",
    "Sharding",
    "TopK",
    "annotate_device_placement",
    "cu_threefry2x32",
    "cublas_",
    "cusolver_",
    "hipblas_",
    "hipsolver_",
    "lapack_",
    "mhlo.",
)

_ALL_REDUCE, _ALL_GATHER = "stablehlo.all_reduce", "stablehlo.all_gather"
_BROADCAST = "stablehlo.collective_broadcast"


def leaf_mask(op: ir.Operation, joined: int, bits: AxisSet) -> int:
    """The set of the results of an op other than a collective, given that of its operands."""
    name = op.name
    if name == "stablehlo.custom_call":
        return _custom_call(op, joined, bits)
    if name in _MHLO_FUNCTIONS or (name.startswith(_FUNCTION_DIALECTS) and name not in _SOURCES):
        return joined
    return bits.everything


def _custom_call(op: ir.Operation, joined: int, bits: AxisSet) -> int:
    target, attributes = call_target(op), op.attributes
    if target == AXIS_INDEX:
        return bits.mask(indexed_axes(op))
    effect = "has_side_effect" in attributes and ir.BoolAttr(attributes["has_side_effect"]).value
    return joined if target.startswith(_FUNCTION_CALLS) and not effect else bits.everything


def collective_masks(op: ir.Operation, operands: Sequence[int], bits: AxisSet) -> list[int]:
    """The set of each result of a collective, given that of each operand."""
    axes = None if op.name == PERMUTE else group_axes(op)
    if axes is None:
        ids = tuple(map(tuple, device_ids(op, PAIRS if op.name == PERMUTE else GROUPS)))
        return [_by_device(op.name, ids, operand, bits) for operand in operands]
    own = bits.mask(axes)
    if op.name in (_ALL_REDUCE, _ALL_GATHER, _BROADCAST) and not split_group_axes(op):
        return [operand & ~own for operand in operands]
    return [operand | own for operand in operands]


@lru_cache(maxsize=1024)
def _by_device(name: str, ids: tuple[tuple[int, ...], ...], operand: int, bits: AxisSet) -> int:
    """The set of a result where `ids` lists the groups, or the (source, target) pairs."""
    mesh = Mesh("mesh", bits.axes)
    if mesh.size > MOST_LISTED or any(not -1 <= each < mesh.size for row in ids for each in row):
        return bits.everything
    varying = [axis in bits.names(operand) for axis in mesh.names]
    places = np.stack(np.unravel_index(np.arange(mesh.size), mesh.shape), axis=-1)
    blocks = [tuple(place) for place in places[:, varying].tolist()]
    # A device that nothing reaches has zeros.
    received: list[object] = [None] * mesh.size
    if name == PERMUTE:
        for source, target in ids:
            received[target] = blocks[source]
    else:
        for padded in ids:
            group = [device for device in padded if device >= 0]
            reaching = tuple(blocks[device] for device in group)
            for rank, device in enumerate(group):
                received[device] = _received(name, reaching, rank)
    numbers: dict[object, int] = {}
    kinds = np.array([numbers.setdefault(each, len(numbers)) for each in received])
    kinds = kinds.reshape(mesh.shape)
    return bits.mask(
        axis for k, axis in enumerate(mesh.names) if np.any(kinds != kinds.take([0], axis=k))
    )


def _received(name: str, reaching: tuple[object, ...], rank: int) -> object:
    """What decides the result of the device at `rank` of a group."""
    if name in (_ALL_REDUCE, _ALL_GATHER):
        return reaching
    if name == _BROADCAST:
        return reaching[0]
    return reaching, rank
