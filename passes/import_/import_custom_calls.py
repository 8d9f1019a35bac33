"""Brings a module with the sharding custom calls of GSPMD into body form.

`jax.shard_map`, torch_xla and tt-mlir write such modules for XLA's older partitioner, and so does
shmap-wrap-manual. A sharding lists devices there and names no axes. This pass chooses a mesh whose
axes make every sharding a product of axes, and every group if it can.

Before:  func.func public @main(%arg0: tensor<8x8xf32>) -> tensor<8x8xf32> {
           %0 = custom_call @Sharding(%arg0) {mhlo.sharding = "{devices=[4,1,2]<=[8] ..."}
           %1 = custom_call @SPMDFullToShardShape(%0) {mhlo.sharding = "{manual}"} : tensor<2x8xf32>
           %2 = call @body(%1)
           %3 = custom_call @Sharding(%2) {mhlo.sharding = "{manual}"}
           %4 = custom_call @SPMDShardToFullShape(%3) {mhlo.sharding = "{devices=[4,1,2]<=..."}
           return %4
         }
After:   sdy.mesh @mesh = <["axis_0"=4, "axis_1"=2]>
         func.func public @main(%arg0: tensor<2x8xf32> {sdy.sharding = <@mesh, [{"axis_0"}, {}]>})
             -> ... attributes {sdy.manual_axes = #sdy<manual_axes{"axis_0", "axis_1"}>} { body }

The mesh is that of the option, or the one by which collectives name their groups, or one with as
few axes as the shardings, groups and positions need, "axis_0", "axis_1" and so on. Devices are
numbered row-major in it. Hints in the region about automatic axes become those of Shardy's. Groups,
positions, and what @main does with full arrays are as in
shmap-import-manual-computation, and so is a module without @main.

Needs:   @SPMDFullToShardShape or @SPMDShardToFullShape; one replica; the sharding of each full
         array, in V1 or V2 form; blocks that divide the arrays; equal manual axes in all regions.
Leaves:  body form. Regions inside the region stay as they are. Lost are the names of axes and axes
         of size one, if the module does not hold them. What shmap-legalize-collectives makes of an
         all_to_all where some axes are automatic stays.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import func
from jaxlib.mlir.dialects.builtin import ModuleOp

from ..analysis.per_device_constants import evaluate
from ..base import PassRefused, PipelineError, Violation
from ..ir.boundary import value_attributes
from ..ir.collective_ops import COLLECTIVES, call_target
from ..ir.find_ops import find_ops
from ..ir.inline_calls import callee, erase_uncalled, functions_of
from ..ir.mesh import Mesh
from ..ir.ops import defining_op, is_token, partition_count, terminator
from ..ir.types import Value
from .body_of import free_symbol, main_of, replace_module
from .choose_mesh import choose_mesh, mesh_of_text
from .crossing import Crossing
from .hlo_sharding import read_hlo_sharding
from .import_pass import ImportPass
from .inline_custom_calls import inline_bodies, inline_regions_of_calls, take_inside
from .localize import finish, localize
from .name_groups import to_body_form
from .name_hints import name_hints
from .name_positions import PARTITION_ID, name_positions
from .placement import Placement
from .sharding_calls import SHARDING, ShardingCall, read_calls, sharding_text


@dataclass(frozen=True)
class ImportCustomCalls(ImportPass):
    """Brings a module with the sharding custom calls of GSPMD into body form."""

    name = "shmap-import-custom-calls"
    code = "SHM-P14"

    mesh: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.mesh and mesh_of_text(self.mesh) is None:
            raise PipelineError(
                f"{self.name}: option mesh={self.mesh} is not a list of axes, as in mesh=i=4,j=2"
            )

    def run(self, module: ModuleOp) -> None:
        copy: Any = module.operation.clone()
        main = main_of(copy, "the custom calls")
        inline_regions_of_calls(copy, main)
        calls = read_calls(main.operation)
        outer = [call for call in calls if not call.is_nested]
        inline_bodies(main, copy, outer)
        nested = _nested_functions(copy)
        collectives = _of_region(copy, COLLECTIVES, nested)
        positions = _of_region(copy, [PARTITION_ID], nested)
        mesh = choose_mesh(
            self.mesh,
            partition_count(copy.operation),
            [(each, call.op.location) for call in outer for each in call.shardings],
            collectives,
            positions,
            main.location,
        )
        mesh = Mesh(free_symbol(copy, mesh.symbol), mesh.axes)
        manual = _manual_axes(outer, mesh, main)
        hints = _hints(main, mesh, manual)
        crossings = _open(outer, mesh)
        violations = name_positions(_seeds(copy, positions, nested, mesh), mesh, manual)
        violations += to_body_form(collectives, mesh)
        if violations:
            raise PassRefused(violations)
        name_hints(_of_region(copy, ["stablehlo.custom_call"], nested), mesh, manual)
        erase_uncalled(copy)
        localize(copy, main, mesh, crossings, take_inside(main), hints)
        finish(copy, main, mesh, manual)
        replace_module(module, copy)


def _nested_functions(module: ModuleOp) -> set[str]:
    """The functions that regions in regions call."""
    functions = functions_of(module)
    queue = []
    for call in read_calls(module.operation):
        if call.is_nested:
            block = call.op.results[0] if call.enters else call.op.operands[0]
            users = [use.owner.operation for use in block.uses] if call.enters else []
            source = None if call.enters or call.before is None else call.before.operands[0]
            if source is not None and (made_by := defining_op(source)) is not None:
                users.append(made_by)
            queue += [op for op in users if op.name == "func.call" and len(op.operands)]
    found: set[str] = set()
    while queue:
        name = callee(queue.pop())
        if name in functions and name not in found:
            found.add(name)
            queue += find_ops(functions[name].operation, ["func.call"])
    return found


def _of_region(module: ModuleOp, names: Iterable[str], nested: set[str]) -> list[ir.Operation]:
    return [
        op
        for name, function in functions_of(module).items()
        if name not in nested
        for op in find_ops(function.operation, sorted(names))
    ]


def _seeds(
    module: ModuleOp, positions: Sequence[ir.Operation], nested: set[str], mesh: Mesh
) -> dict[ir.Operation, np.ndarray | None]:
    """What gives the position of a device: also calls that return only this."""
    functions = functions_of(module)
    seeds: dict[ir.Operation, np.ndarray | None] = {}
    for call in _of_region(module, ["func.call"], nested):
        function = functions.get(callee(call))
        if function is not None and not len(call.operands) and len(call.results) == 1:
            value = evaluate(terminator(function.entry_block).operands[0], mesh, {})
            if value is not None and value.size > 1:
                seeds[call] = value
    hidden = {callee(call) for call in seeds}
    for op in positions:
        if not _is_in(op, hidden):
            seeds[op] = None
    return seeds


def _is_in(op: ir.Operation, functions: set[str]) -> bool:
    parent: Any = op
    while parent is not None and not isinstance(parent.operation.opview, func.FuncOp):
        parent = parent.operation.parent
    return parent is not None and parent.operation.opview.name.value in functions


def _manual_axes(outer: Sequence[ShardingCall], mesh: Mesh, main: func.FuncOp) -> tuple[str, ...]:
    """The axes that all regions make manual."""
    found: dict[tuple[str, ...] | None, ir.Operation] = {}
    for call in outer:
        for region in [call.region] if call.region is not None else []:
            axes = mesh.names if region.kind == "manual" else region.group("manual", mesh)
            found.setdefault(axes, call.op)
    if None in found:
        text = f"the region is manual over devices that are no whole axes of {mesh}"
        raise PassRefused([Violation(found[None].location, text)])
    if len(found) > 1:
        text = (
            "the regions are manual over different devices; a module in body form has one set of "
            "manual axes: import them one at a time"
        )
        raise PassRefused(Violation(op.location, text) for op in list(found.values())[1:])
    return next((axes for axes in found if axes is not None), mesh.names)


def _hints(main: func.FuncOp, mesh: Mesh, manual: Sequence[str]) -> dict[Value, Placement]:
    """How values outside of regions should be split where no region says it."""
    found: dict[Value, Placement] = {}

    def add(value: Value, text: ir.Attribute) -> None:
        sharding = read_hlo_sharding(ir.StringAttr(text).value)
        if isinstance(sharding, str) or sharding.is_in_region or is_token(value.type):
            return
        placement = sharding.placement(ir.RankedTensorType(value.type).rank, mesh)
        if placement is not None and placement.block_type(value.type, mesh) is not None:
            found[value] = placement.along(manual)

    arguments = list(main.entry_block.arguments)
    attributes = value_attributes(main, "arg_attrs", len(arguments))
    for argument, named in zip(arguments, attributes, strict=True):
        if SHARDING in named and isinstance(named[SHARDING], ir.StringAttr):
            add(argument, named[SHARDING])
    for op in find_ops(main.operation, ["stablehlo.custom_call"]):
        if call_target(op) == "Sharding" and sharding_text(op) is not None:
            add(op.results[0], op.attributes[SHARDING])
    return found


def _open(outer: Sequence[ShardingCall], mesh: Mesh) -> list[Crossing]:
    """Replaces the calls around regions by crossings."""
    crossings: list[Crossing] = []
    violations: list[Violation] = []
    for call in outer:
        op = call.op
        full = op.operands[0] if call.enters else op.results[0]
        rank = ir.RankedTensorType(full.type).rank
        placement = call.full.placement(rank, mesh)
        if placement is None:
            text = f"the sharding of {full.type} is none of an array of rank {rank} on {mesh}"
            violations.append(Violation(op.location, text))
            continue
        source = op.operands[0]
        if not call.enters and call.before is not None:
            source = call.before.operands[0]
        with ir.InsertionPoint(op), op.location:
            cast = ir.Operation.create(
                "builtin.unrealized_conversion_cast",
                results=[op.results[0].type],
                operands=[source],
            )
        op.results[0].replace_all_uses_with(cast.results[0])
        op.erase()
        if not call.enters and call.before is not None and not list(call.before.results[0].uses):
            call.before.erase()
        crossings.append(Crossing(cast, placement, enters=call.enters))
    if violations:
        raise PassRefused(violations)
    return crossings
