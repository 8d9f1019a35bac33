"""Brings a module whose @main holds `sdy.manual_computation` into body form.

`jax.shard_map` lowers to such modules under Shardy, and so does shmap-wrap-manual. This pass is the
inverse of the latter: it takes the blocks of the region for the arguments of @main, so that the
other passes can check and simplify the program, and wrap it for either partitioner.

Before:  func.func public @main(%arg0: tensor<8x8xf32>) -> tensor<8x8xf32> {
           %0 = sdy.manual_computation(%arg0) in_shardings=[<@mesh, [{"i"}, {}]>]
                    out_shardings=[<@mesh, [{"i"}, {}]>] manual_axes={"i", "j"} (...) { body }
           return %0
         }
After:   func.func public @main(%arg0: tensor<2x8xf32> {sdy.sharding = <@mesh, [{"i"}, {}]>}) -> ...
             attributes {sdy.manual_axes = #sdy<manual_axes{"i", "j"}>} { body }

Groups that list devices are named by axes where they are products of axes, and arithmetic on
`partition_id` becomes an axis index. What @main computes outside of the region is moved into it if
every device can do it on its blocks: elementwise operations on arrays that are split equally, any
operation on arrays that every device holds, loops and branches around regions. Several regions
become one. Regions in functions that @main calls are inlined.

Needs:   a region at least; one mesh, without device ids, and equal manual axes for all regions; no
         array that two regions want split differently; no effects outside of regions.
Leaves:  body form. Regions inside the region stay as they are. Lost are the names of meshes, and
         how the arrays of the caller were split if the regions want it otherwise.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxlib.mlir import ir, passmanager
from jaxlib.mlir.dialects import func, sdy
from jaxlib.mlir.dialects.builtin import ModuleOp

from ..analysis.per_device_constants import evaluate
from ..base import Pass, PassRefused, Violation
from ..export.inline_meshes import InlineMeshes
from ..ir.boundary import SHARDING, Unreduced, value_attributes
from ..ir.collective_ops import COLLECTIVES
from ..ir.find_ops import find_ops
from ..ir.mesh import MOST_LISTED, Mesh
from ..ir.ops import is_token, terminator, walk
from ..ir.types import Value
from ..ir.unverified import manual_axes
from .body_of import free_symbol, main_of, replace_module
from .full_values import Crossing
from .inline_calls import callee, erase_uncalled, functions_of, inline_calls, reaches
from .localize import finish, localize
from .name_groups import to_body_form
from .name_positions import PARTITION_ID, name_positions
from .placement import Placement

REGION = "sdy.manual_computation"


@dataclass(frozen=True)
class ImportManualComputation(Pass):
    """Brings a module whose @main holds `sdy.manual_computation` into body form."""

    name = "shmap-import-manual-computation"
    code = "SHM-P13"

    def add_to(
        self,
        manager: passmanager.PassManager,
        refused: list[Violation],
        before: Pass | None = None,
    ) -> None:
        """Meshes are inlined first, so that it does not matter how many the module declares."""
        InlineMeshes().add_to(manager, refused)
        super().add_to(manager, refused, before)

    def run(self, module: ModuleOp) -> None:
        copy: Any = module.operation.clone()
        main = main_of(copy, "the region")
        _inline_regions(copy, main)
        regions = _outermost(main)
        mesh, manual = _common_mesh(copy, regions)
        nested = _nested_functions(copy)
        violations = name_positions(_positions(copy, nested, mesh), mesh, manual)
        violations += to_body_form(_collectives(copy, nested), mesh)
        if violations:
            raise PassRefused(violations)
        hints = _hints(main, mesh, manual)
        crossings, inside = _open(regions, mesh, manual)
        localize(main, mesh, crossings, inside, hints)
        finish(copy, main, mesh, manual)
        replace_module(module, copy)


def _inline_regions(module: ModuleOp, main: func.FuncOp) -> None:
    """Inlines the functions through which @main reaches regions."""
    functions = functions_of(module)
    holders = {
        name for name, function in functions.items() if find_ops(function.operation, [REGION])
    }
    if not holders:
        text = (
            f"the module has no {REGION}, so there is no region to import; modules with "
            "@SPMDFullToShardShape are for shmap-import-custom-calls, and a program on full arrays "
            "must be partitioned first"
        )
        raise PassRefused([Violation(main.location, text)])
    lead_there = reaches(module, holders)
    inline_calls(
        module, main, lambda call: callee(call) in lead_there and _enclosing_region(call) is None
    )
    erase_uncalled(module, set(functions) - {"main"})
    if not _outermost(main):
        where = ", ".join(f"@{name}" for name in sorted(holders))
        text = f"the regions are in {where}, which @main does not call; call it, or name it @main"
        raise PassRefused([Violation(main.location, text)])


def _enclosing_region(op: ir.Operation) -> ir.Operation | None:
    """The region that an op is in; None for an op outside of regions."""
    parent = op.parent
    while parent is not None:
        if parent.operation.name == REGION:
            return parent.operation
        parent = parent.operation.parent
    return None


def _outermost(main: func.FuncOp) -> list[ir.Operation]:
    """The regions of @main that are in no other region, in order."""
    return [op for op in walk(main.operation) if op.name == REGION and not _enclosing_region(op)]


def _nested_functions(module: ModuleOp) -> set[str]:
    """The functions that regions in regions call."""
    functions = functions_of(module)
    queue = [
        op
        for op in find_ops(module.operation, [REGION])
        if _enclosing_region(op) or _function_of(op) != "main"
    ]
    found: set[str] = set()
    while queue:
        for call in find_ops(queue.pop(), ["func.call"]):
            name = callee(call)
            if name in functions and name not in found:
                found.add(name)
                queue.append(functions[name].operation)
    return found


def _function_of(op: ir.Operation) -> str:
    """The name of the function that an op is in; "" for an op outside of functions."""
    inner: Any = op
    while inner is not None and not isinstance(inner.opview, func.FuncOp):
        inner = inner.operation.parent
    return "" if inner is None else inner.opview.name.value


def _is_of_region(op: ir.Operation, nested: set[str]) -> bool:
    """Whether an op runs per device, in an outermost region."""
    function = _function_of(op)
    region = _enclosing_region(op)
    if function == "main":
        return region is not None and _enclosing_region(region) is None
    return region is None and function != "" and function not in nested


def _collectives(module: ModuleOp, nested: set[str]) -> list[ir.Operation]:
    ops = find_ops(module.operation, sorted(COLLECTIVES))
    return [op for op in ops if _is_of_region(op, nested)]


def _positions(
    module: ModuleOp, nested: set[str], mesh: Mesh
) -> dict[ir.Operation, np.ndarray | None]:
    """What gives the position of a device: also regions in the region that return only this."""
    found: dict[ir.Operation, np.ndarray | None] = {}
    for op in find_ops(module.operation, [PARTITION_ID, REGION]):
        if not _is_of_region(op, nested):
            continue
        if op.name == PARTITION_ID:
            found[op] = None
        elif not len(op.operands) and len(op.results) == 1 and mesh.size <= MOST_LISTED:
            value = evaluate(terminator(op.regions[0].blocks[0]).operands[0], mesh, {})
            if value is not None:
                found[op] = value
    return found


# ---- meshes and shardings ------------------------------------------------------------------------


def _common_mesh(module: ModuleOp, regions: Sequence[ir.Operation]) -> tuple[Mesh, tuple[str, ...]]:
    """The mesh and the manual axes of all regions."""
    violations: list[Violation] = []
    found: dict[tuple[Mesh, tuple[str, ...]], ir.Operation] = {}
    for region in regions:
        meshes = {sharding.mesh_or_ref for sharding in _shardings(region)}
        axes = manual_axes(region.attributes["manual_axes"]) or ()
        complaint = "; ".join(filter(None, map(_mesh_complaint, meshes)))
        if not meshes:
            complaint = "takes and returns nothing, so it is on no mesh; remove it"
        if complaint:
            violations.append(Violation(region.location, f"the region {complaint}"))
            continue
        for mesh in meshes:
            found.setdefault((_mesh(mesh), axes), region)
    if not violations and len(found) > 1:
        (one, _), *others = found.items()
        violations += [
            Violation(
                region.location,
                f"the region is on {mesh} with manual axes {_quoted(axes)}, and another on "
                f"{one[0]} with {_quoted(one[1])}; a module in body form has one mesh and one set "
                "of manual axes: import them one at a time",
            )
            for (mesh, axes), region in others
        ]
    if violations:
        raise PassRefused(violations)
    ((mesh, axes),) = found
    return Mesh(free_symbol(module, mesh.symbol), mesh.axes), axes


def _mesh_complaint(mesh: ir.Attribute) -> str:
    if not sdy.MeshAttr.isinstance(mesh):
        return f"is on the mesh {mesh}, which the module does not declare; declare it with sdy.mesh"
    if not list(sdy.MeshAttr(mesh).axes):
        return (
            f"is on {mesh}, a mesh without axes: it runs on one device, and nothing of it is per "
            "device; take it out of the region"
        )
    if list(sdy.MeshAttr(mesh).device_ids):
        return (
            f"is on {mesh}, which lists device ids; devices are positions in the mesh in body "
            "form: leave the ids to whoever places the program"
        )
    return ""


def _mesh(attribute: ir.Attribute) -> Mesh:
    axes = (sdy.MeshAxisAttr(axis) for axis in sdy.MeshAttr(attribute).axes)
    return Mesh("mesh", tuple((axis.name, axis.size) for axis in axes))


def _shardings(region: ir.Operation) -> list[sdy.TensorShardingAttr]:
    return [*_per_value(region, "in_shardings"), *_per_value(region, "out_shardings")]


def _per_value(region: ir.Operation, name: str) -> list[sdy.TensorShardingAttr]:
    shardings = sdy.TensorShardingPerValueAttr(region.attributes[name]).shardings
    return [sdy.TensorShardingAttr(each) for each in shardings]


def _placement(sharding: sdy.TensorShardingAttr, manual: Sequence[str]) -> Placement | str:
    """How a sharding splits over the manual axes, or why it cannot be read.

    What it says about automatic axes is a hint to the partitioner.
    """
    refs = [
        [sdy.AxisRefAttr(axis) for axis in sdy.DimensionShardingAttr(dim).axes]
        for dim in sharding.dimension_shardings
    ]
    unreduced = [sdy.AxisRefAttr(axis) for axis in sharding.unreduced_axes]
    parts = [
        ref.name
        for ref in (*(ref for dim in refs for ref in dim), *unreduced)
        if ref.sub_axis_info is not None and ref.name in manual
    ]
    if parts:
        return f"is split over part of axis {_quoted(parts)}; only whole axes can be manual"
    axes = tuple(ref.name for ref in unreduced)
    reduction = getattr(sharding, "reduction_op", None) if axes else None
    dims = tuple(tuple(ref.name for ref in dim if ref.name in manual) for dim in refs)
    return Placement(dims, Unreduced(axes, reduction))


def _hints(
    main: func.FuncOp, mesh: Mesh, manual: Sequence[str]
) -> dict[Value | ir.Operation, Placement]:
    """How the arguments of @main are split where no region says it."""
    found: dict[Value | ir.Operation, Placement] = {}
    arguments = list(main.entry_block.arguments)
    attributes = value_attributes(main, "arg_attrs", len(arguments))
    for argument, named in zip(arguments, attributes, strict=True):
        if SHARDING not in named or is_token(argument.type):
            continue
        sharding = sdy.TensorShardingAttr(named[SHARDING])
        placement = _placement(sharding, manual)
        on_mesh = sdy.MeshAttr.isinstance(sharding.mesh_or_ref)
        if (
            isinstance(placement, Placement)
            and on_mesh
            and _mesh(sharding.mesh_or_ref).axes == mesh.axes
            and placement.block_type(argument.type, mesh) is not None
        ):
            found[argument] = placement
    return found


# ---- opening regions -----------------------------------------------------------------------------


def _open(
    regions: Sequence[ir.Operation], mesh: Mesh, manual: Sequence[str]
) -> tuple[list[Crossing], set[ir.Operation]]:
    """Moves what is in the regions out of them, between crossings; returns these and what moved."""
    crossings: list[Crossing] = []
    inside: set[ir.Operation] = set()
    violations: list[Violation] = []
    for region in regions:
        block = region.regions[0].blocks[0]
        end = terminator(block)
        enters = _placements(
            region, "in_shardings", "argument", block.arguments, manual, violations
        )
        leaves = _placements(region, "out_shardings", "result", end.operands, manual, violations)
        if violations:
            continue
        for argument, operand, placement in zip(
            list(block.arguments), list(region.operands), enters, strict=True
        ):
            cast = _cast(operand, argument.type, region)
            crossings.append(Crossing(cast, placement, enters=True))
            argument.replace_all_uses_with(cast.results[0])
        for op in [op.operation for op in block.operations if op.operation != end]:
            op.move_before(region)
            inside.add(op)
        for value, result, placement in zip(
            list(end.operands), list(region.results), leaves, strict=True
        ):
            cast = _cast(value, result.type, region)
            crossings.append(Crossing(cast, placement, enters=False))
            result.replace_all_uses_with(cast.results[0])
        region.erase()
    if violations:
        raise PassRefused(violations)
    return crossings, inside


def _placements(
    region: ir.Operation,
    name: str,
    kind: str,
    blocks: Iterable[Value],
    manual: Sequence[str],
    violations: list[Violation],
) -> list[Placement | None]:
    found: list[Placement | None] = []
    shardings = _per_value(region, name)
    for k, (value, sharding) in enumerate(zip(blocks, shardings, strict=True)):
        placement = None if is_token(value.type) else _placement(sharding, manual)
        if isinstance(placement, str):
            violations.append(Violation(region.location, f"{kind} {k} of the region {placement}"))
            placement = None
        found.append(placement)
    return found


def _cast(value: Value, type_: ir.Type, before: ir.Operation) -> ir.Operation:
    with ir.InsertionPoint(before), before.location:
        return ir.Operation.create(
            "builtin.unrealized_conversion_cast", results=[type_], operands=[value]
        )


def _quoted(axes: Sequence[str]) -> str:
    return ", ".join(f'"{axis}"' for axis in axes) or "none"
