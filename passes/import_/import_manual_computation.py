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
operation on arrays that every device holds, loops and branches around regions. An array that is
wanted in another split than it has, such as by a second region, takes the communication that a
partitioner would add: an all_to_all, an all_gather, or a slice. Several regions become one. Regions
in functions that @main calls are inlined. If there is no @main, the only public function becomes
@main. Shardy's own collectives that move pieces of full arrays only say how these are split, and an
`sdy.all_reduce` over manual axes becomes StableHLO's. Regions that Shardy wrote as custom calls
(for HLO, and in what `jax.export` of earlier JAX serialized) are written in its dialect. Regions
that make no axis manual and named computations are inlined, and what Shardy notes for itself is
erased. Of a module that was exported from body form, the import is that body form.

Needs:   a region at least; one replica; one mesh, without device ids, and equal manual axes for all
         regions; no summands of an array where its sums are wanted; no effects outside of regions.
Leaves:  body form. Regions inside the region stay as they are. Lost are the names of meshes, and
         how the arrays of the caller were split if the regions want it otherwise.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import func
from jaxlib.mlir.dialects.builtin import ModuleOp

from ..analysis.per_device_constants import evaluate
from ..base import PassRefused, Violation
from ..ir.collective_ops import COLLECTIVES
from ..ir.find_ops import find_ops
from ..ir.inline_calls import callee, erase_uncalled, functions_of
from ..ir.mesh import MOST_LISTED, Mesh
from ..ir.ops import terminator, walk
from ..ir.shardy_notes import inline_region
from ..ir.types import Value
from ..ir.unverified import manual_axes
from .body_of import main_of, replace_module
from .crossing import Crossing
from .import_pass import ImportPass
from .inline_regions import inline_regions
from .localize import finish, localize
from .manual_regions import common_mesh, hints_of, placements
from .name_groups import to_body_form
from .name_hints import name_meshes_of_hints
from .name_positions import PARTITION_ID, name_positions
from .shardy_collectives import SHARDY_COLLECTIVES, to_stablehlo

REGION = "sdy.manual_computation"


@dataclass(frozen=True)
class ImportManualComputation(ImportPass):
    """Brings a module whose @main holds `sdy.manual_computation` into body form."""

    name = "shmap-import-manual-computation"
    code = "SHM-P13"

    def run(self, module: ModuleOp) -> None:
        copy: Any = module.operation.clone()
        main = main_of(copy, "the region")
        _inline_regions(copy, main)
        _inline_automatic_regions(copy)
        regions = _outermost(main)
        mesh, manual = common_mesh(copy, regions)
        nested = _nested_functions(copy)
        violations = name_positions(_positions(copy, nested, mesh), mesh, manual)
        violations += to_body_form(_collectives(copy, nested), mesh)
        shardys = find_ops(copy, sorted(SHARDY_COLLECTIVES))
        violations += to_stablehlo(
            [op for op in shardys if _is_of_region(op, nested)], manual, mesh
        )
        if violations:
            raise PassRefused(violations)
        constraints = find_ops(copy, ["sdy.sharding_constraint"])
        name_meshes_of_hints([op for op in constraints if _is_of_region(op, nested)], mesh)
        hints = hints_of(main, mesh, manual)
        crossings, inside = _open(regions, mesh, manual)
        localize(copy, main, mesh, crossings, inside, hints)
        finish(copy, main, mesh, manual)
        replace_module(module, copy)


def _inline_regions(module: ModuleOp, main: func.FuncOp) -> None:
    """Inlines what @main calls outside of regions, where functions may hold regions."""
    inline_regions(
        module,
        main,
        lambda function: bool(find_ops(function.operation, [REGION])),
        f"{REGION}, so there is no region to import; for modules with @SPMDFullToShardShape use "
        "shmap-import-custom-calls",
        lambda _: lambda call: _enclosing_region(call) is None,
    )
    erase_uncalled(module)


def _inline_automatic_regions(module: ModuleOp) -> None:
    """Inlines regions that make no axis manual, if others do: arrays stay full arrays there."""
    regions = find_ops(module.operation, [REGION])
    automatic = [op for op in regions if not manual_axes(op.attributes["manual_axes"])]
    if len(automatic) < len(regions):
        for op in automatic:
            inline_region(op)
            op.erase()


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
        enters = placements(region, "in_shardings", "argument", block.arguments, manual, violations)
        leaves = placements(region, "out_shardings", "result", end.operands, manual, violations)
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


def _cast(value: Value, type_: ir.Type, before: ir.Operation) -> ir.Operation:
    with ir.InsertionPoint(before), before.location:
        return ir.Operation.create(
            "builtin.unrealized_conversion_cast", results=[type_], operands=[value]
        )
