"""StableHLO's collectives as the passes see them: which ops, their groups, their ids.

In body form a collective has no channel handle. One that has a handle belongs to a nested region
that was legalized with its own mesh and axes; the passes leave it alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo
from jaxlib.mlir.dialects.builtin import ModuleOp

from .analyses import analysis
from .find_ops import find_ops
from .memoize import memoized
from .mesh import Mesh
from .types import element_of
from .unverified import strings

AXIS_INDEX = "shmap.axis_index"

ALL_GATHER = "stablehlo.all_gather"
ALL_REDUCE = "stablehlo.all_reduce"
REDUCE_SCATTER = "stablehlo.reduce_scatter"
TAKES_GLOBAL_DEVICE_IDS = frozenset({ALL_GATHER, ALL_REDUCE, REDUCE_SCATTER})
PERMUTE = "stablehlo.collective_permute"
RAGGED_ALL_TO_ALL = "ragged_all_to_all"
GROUPED = TAKES_GLOBAL_DEVICE_IDS | {"stablehlo.all_to_all", "stablehlo.collective_broadcast"}
COLLECTIVES = GROUPED | {PERMUTE}

GROUPS = "replica_groups"
PAIRS = "source_target_pairs"
CHANNEL_HANDLE = "channel_handle"

REDUCING = (ALL_REDUCE, REDUCE_SCATTER)
_COMBINING = frozenset(
    f"stablehlo.{name}" for name in ("add", "and", "maximum", "minimum", "multiply", "or", "xor")
)


@analysis
def collectives_of(module: ModuleOp) -> tuple[ir.Operation, ...]:
    """All `body_collectives` of a module."""
    return tuple(body_collectives(module.operation))


def body_collectives(root: ir.Operation) -> list[ir.Operation]:
    """The collectives inside `root` that are still in body form."""
    return [op for op in find_ops(root, sorted(COLLECTIVES)) if is_body_collective(op)]


def is_body_collective(op: ir.Operation) -> bool:
    """Whether `op` is a collective that is still in body form."""
    return op.name in COLLECTIVES and CHANNEL_HANDLE not in op.attributes


def over_whole_axes(module: ModuleOp, name: str) -> list[tuple[ir.Operation, tuple[str, ...]]]:
    """The body-form collectives of a name with groups over mesh axes, each with these."""
    return with_whole_axes(op for op in collectives_of(module) if op.name == name)


def with_whole_axes(ops: Iterable[ir.Operation]) -> list[tuple[ir.Operation, tuple[str, ...]]]:
    """Those of some collectives in body form that have groups over mesh axes, each with these."""
    return [(op, axes) for op in ops if is_body_collective(op) and (axes := whole_axes(op))]


def axis_index_calls(root: ir.Operation) -> list[ir.Operation]:
    """The `stablehlo.custom_call @shmap.axis_index` inside `root`."""
    return [op for op in find_ops(root, ["stablehlo.custom_call"]) if is_axis_index(op)]


def is_axis_index(op: ir.Operation) -> bool:
    return op.name == "stablehlo.custom_call" and call_target(op) == AXIS_INDEX


def is_collective(op: ir.Operation) -> bool:
    """Whether devices meet in an op: one of StableHLO's collectives, or a ragged_all_to_all."""
    return op.name in COLLECTIVES or is_ragged_all_to_all(op)


def short_name(op: ir.Operation) -> str:
    """The name of an op, or of what a custom call calls, without that of the dialect."""
    is_call = op.name == "stablehlo.custom_call"
    return call_target(op) if is_call else op.name.removeprefix("stablehlo.")


def is_ragged_all_to_all(op: ir.Operation) -> bool:
    """Whether `op` is this collective of XLA's, for which StableHLO has no operation."""
    return op.name == "stablehlo.custom_call" and call_target(op) == RAGGED_ALL_TO_ALL


def ragged_groups(custom_call: ir.Operation) -> list[list[int]]:
    """The rows of device ids of a ragged_all_to_all; none if it does not list any."""
    config = custom_call.attributes.get("backend_config")
    if not isinstance(config, ir.DictAttr) or GROUPS not in config:
        return []
    return np.array(ir.DenseIntElementsAttr(config[GROUPS])).tolist()


def call_target(custom_call: ir.Operation) -> str:
    return ir.StringAttr(custom_call.attributes["call_target_name"]).value


def indexed_axes(axis_index: ir.Operation) -> tuple[str, ...]:
    """The axes of an axis_index call, major axis first; () if the call names none."""
    config = axis_index.attributes.get("backend_config")
    if not isinstance(config, ir.DictAttr) or "axes" not in config:
        return ()
    return strings(config["axes"]) or ()


def group_axes(op: ir.Operation) -> tuple[str, ...] | None:
    """The mesh axes that name the op's groups, major axis first; None if it lists device ids."""
    refs = _group_axis_refs(op.attributes[GROUPS])
    return None if refs is None else tuple(name for name, _ in refs)


def group_mesh(op: ir.Operation) -> ir.Attribute:
    """The mesh, or the symbol of it, of an op whose groups are named by mesh axes."""
    return stablehlo.ReplicaGroupMeshAxesAttr(op.attributes[GROUPS]).mesh


def split_group_axes(op: ir.Operation) -> tuple[str, ...]:
    """Those of `group_axes` that are split, as StableHLO allows: the groups use a part of each."""
    refs = _group_axis_refs(op.attributes[GROUPS]) or ()
    return tuple(name for name, part in refs if part)


def group_parts(op: ir.Operation, mesh: Mesh) -> tuple[tuple[str, int, int], ...]:
    """The axes of `mesh` that name the op's groups, and where the part they use begins and ends.

    Of an axis of size 8, split into 2, 2 and 2, the second part is from 2 to 4.
    """
    refs = _group_axis_refs(op.attributes[GROUPS]) or ()
    parts = ((name, part or (1, mesh.sizes[name])) for name, part in refs)
    return tuple((name, begin, end) for name, (begin, end) in parts)


@memoized
def _group_axis_refs(
    groups: ir.Attribute,
) -> tuple[tuple[str, tuple[int, int] | None], ...] | None:
    """Each mesh axis of named groups, and the part of it if they take only a part."""
    if not stablehlo.ReplicaGroupMeshAxesAttr.isinstance(groups):
        return None
    axes = stablehlo.ReplicaGroupMeshAxesAttr(groups).axes
    refs = (stablehlo.AxisRefAttr(axis) for axis in ir.ArrayAttr(axes))
    return tuple((ref.name, _part(ref)) for ref in refs)


def _part(ref: stablehlo.AxisRefAttr) -> tuple[int, int] | None:
    info = ref.sub_axis_info
    if not isinstance(info, ir.Attribute):
        return None
    part = stablehlo.SubAxisInfoAttr(info)
    return part.pre_size, part.pre_size * part.size


def device_ids(op: ir.Operation, attribute: str) -> list[list[int]]:
    """The rows of a dense list of device ids: `replica_groups` or `source_target_pairs`."""
    return np.array(ir.DenseIntElementsAttr(op.attributes[attribute])).tolist()


def lists_one_replica(op: ir.Operation, groups: list[list[int]]) -> bool:
    """Whether the groups list replicas, of which there is one: then its devices are one group."""
    lists_replicas = (
        op.name in TAKES_GLOBAL_DEVICE_IDS
        and CHANNEL_HANDLE in op.attributes
        and "use_global_device_ids" not in op.attributes
    )
    return lists_replicas and groups in ([[0]], [])


def whole_axes(op: ir.Operation) -> tuple[str, ...] | None:
    """The mesh axes of an op with one operand, of its element type, and groups over whole axes.

    None for any other. This is the form that emission gives to every collective without
    `axis_index_groups`.
    """
    groups = op.attributes.get(GROUPS)
    if op.name in REDUCING and element_of(op.operands[0]) != element_of(op.results[0]):
        return None  # it promotes the elements before it reduces them
    return None if groups is None or len(op.operands) != 1 else _whole_axes(groups)


@memoized
def _whole_axes(groups: ir.Attribute) -> tuple[str, ...] | None:
    refs = _group_axis_refs(groups)
    if refs is None or any(is_part for _, is_part in refs):
        return None
    return tuple(name for name, _ in refs)


def name_group_axes(op: ir.Operation, axes: Sequence[str]) -> None:
    """Gives `op`, whose groups are named by mesh axes, groups over `axes` of the same mesh."""
    mesh = stablehlo.ReplicaGroupMeshAxesAttr(op.attributes[GROUPS]).mesh
    refs = [stablehlo.AxisRefAttr.get(axis) for axis in axes]
    op.attributes[GROUPS] = stablehlo.ReplicaGroupMeshAxesAttr.get(mesh, ir.ArrayAttr.get(refs))


def reduction(op: ir.Operation) -> str | None:
    """The name of the op with which a collective combines two values: "stablehlo.add".

    None if its region is more than that one op on its two arguments, or if the op does not mean
    the same wherever it has this name, as a comparison, whose direction is an attribute, or a call.
    """
    block = op.regions[0].blocks[0]
    ops = block.operations
    if len(ops) != 2:
        return None
    combine, end = ops[0].operation, ops[1].operation
    if combine.name not in _COMBINING:
        return None
    on_both = len(combine.operands) == 2 and set(combine.operands) == set(block.arguments)
    return combine.name if on_both and list(end.operands) == list(combine.results) else None


def depends_on_order(op: ir.Operation) -> bool:
    """Whether the bits of a result depend on the order in which the values of devices are combined.

    Integers are combined alike in any order by the one op of a `reduction`. Floating-point numbers
    are rounded, and a maximum of zeros may have either sign.
    """
    element = ir.RankedTensorType(op.results[0].type).element_type
    return reduction(op) is None or not isinstance(element, ir.IntegerType)
