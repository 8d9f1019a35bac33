"""From a collective to the step in which groups of devices meet."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from functools import partial

import numpy as np
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo
from shmap_passes.checks.collective_diagnostics import size_diagnostics
from shmap_passes.ir.collective_ops import (
    GROUPS,
    RAGGED_ALL_TO_ALL,
    device_ids,
    group_axes,
    lists_one_replica,
    ragged_groups,
    split_group_axes,
)
from shmap_passes.ir.ops import free_values

from shmap_compiler.base.device_groups import group_axes as axes_of_groups
from shmap_compiler.base.device_groups import pair_axes
from shmap_compiler.base.untyped import AnyValue, Function
from shmap_compiler.simulate.collectives import Group, Result, result_of
from shmap_compiler.simulate.cuts import Groups
from shmap_compiler.simulate.device import FIX, CannotSimulate
from shmap_compiler.simulate.element_types import UnknownElementType
from shmap_compiler.simulate.interpreter import EvaluationFailed, evaluated
from shmap_compiler.simulate.module import ReadModule
from shmap_compiler.simulate.numbering import Numbering
from shmap_compiler.simulate.part_axes import FinerMesh, ImpossiblePart, part_of
from shmap_compiler.simulate.places import SourcePlace, place_of
from shmap_compiler.simulate.segments import elementwise
from shmap_compiler.simulate.steps import Collective, Step, Unsupported


def collective_step(op: ir.Operation, module: ReadModule, numbering: Numbering) -> Step:
    """The step of a collective."""
    place, numbers = place_of(op), numbering.around(op)
    try:
        groups, axes = _groups(op, module)
    except ImpossiblePart as error:
        fix = "let one divide the other, or list the devices"
        return Unsupported(place, *numbers, f"groups over {error}", fix)
    except _UnknownDevices as error:
        return not_on_mesh(op, str(error), numbering)
    sizes = {len(group) for group in groups if group}
    if wrong := [each for size in sizes for each in size_diagnostics(op, size)]:
        needed = "a result of the size that its groups make"
        fix = "shmap-opt --shmap-verify checks a whole module"
        return Unsupported(place, *numbers, wrong[0], fix, needed)
    if any(value not in list(op.operands) for value in free_values([op])):
        found = "a reduction with a value from outside of its region, which XLA does not take"
        fix = "compute the value in the region"
        return Unsupported(place, *numbers, found, fix, "a reduction of its two arguments")
    try:
        result = result_of(op, partial(_general, module))
    except UnknownElementType as error:
        found = f"{op.name}, which has a value of type {error.args[0]}"
        return Unsupported(place, *numbers, found, "use arrays of another element type")
    if left_out := _left_out(groups, module):
        if op.name != "stablehlo.collective_broadcast":
            return not_on_mesh(op, f"groups that leave out device {left_out[0]}", numbering)
        result = _zeros_in(left_out, result)
    if op.name == "stablehlo.custom_call":
        place = SourcePlace(f"stablehlo.{RAGGED_ALL_TO_ALL}", place.line)
    return Collective(place, *numbers, groups, axes=axes, result=result)


def _left_out(groups: Groups, module: ReadModule) -> list[int]:
    """The devices that no group lists."""
    return sorted(set(range(module.mesh.size)).difference(*groups))


def _zeros_in(devices: list[int], ordinary: Result) -> Result:
    """A collective in which some devices take no part and receive zeros."""

    def result(group: Group, operands: list[list[AnyValue]]) -> list[list[AnyValue]]:
        if group[0] in devices:
            return [[np.zeros_like(x) for x in received] for received in operands]
        return ordinary(group, operands)

    return result


def not_on_mesh(op: ir.Operation, found: str, numbering: Numbering) -> Unsupported:
    """The step of an op that names devices or axes that the mesh does not have."""
    fix = "name others; shmap-opt --shmap-verify checks a whole module"
    needed = "devices and axes that the mesh has, and each device in a group"
    return Unsupported(place_of(op), *numbering.around(op), found, fix, needed)


class _UnknownDevices(Exception):
    """A collective names devices, or axes, that the mesh does not have."""


def _groups(op: ir.Operation, module: ReadModule) -> tuple[Groups, tuple[str, ...] | None]:
    """The groups of devices that meet, and the mesh axes along which they extend."""
    sizes, everyone = module.mesh.sizes, tuple(range(module.mesh.size))
    if op.name == "stablehlo.collective_permute":
        pairs = tuple((a, b) for a, b in device_ids(op, "source_target_pairs"))
        _check_devices(itertools.chain(*pairs), module)
        return (everyone,), pair_axes(pairs, sizes) if pairs else ()
    if op.name == "stablehlo.custom_call":
        rows = ragged_groups(op)
    elif (axes := group_axes(op)) is not None:
        attribute = stablehlo.ReplicaGroupMeshAxesAttr(op.attributes[GROUPS])
        symbol = attribute.mesh
        if isinstance(symbol, ir.FlatSymbolRefAttr) and symbol.value not in module.meshes:
            raise _UnknownDevices(f"groups on mesh @{symbol.value}, which the module lacks")
        named = module.mesh_of(symbol)
        if named.size != module.mesh.size:
            raise _UnknownDevices(f"groups on {named}, and the mesh is {module.mesh}")
        for axis in axes:
            if axis not in named.sizes:
                raise _UnknownDevices(f'groups over axis "{axis}", which {named} lacks')
        if not split_group_axes(op):
            return tuple(map(tuple, named.groups(axes))), axes
        parts = [part_of(stablehlo.AxisRefAttr(each)) for each in ir.ArrayAttr(attribute.axes)]
        finer = FinerMesh(named, parts)
        names = [axis for part in parts for axis in finer.axes(part)]
        return tuple(map(tuple, finer.mesh.groups(names))), None
    else:
        rows = device_ids(op, GROUPS)
        if lists_one_replica(op, rows):
            return (everyone,), tuple(sizes)
    groups = tuple(tuple(d for d in row if d >= 0) for row in rows) or (everyone,)
    _check_devices(itertools.chain(*groups), module)
    equal = len({len(group) for group in groups}) == 1
    complete = sorted(d for group in groups for d in group) == list(everyone)
    return groups, axes_of_groups(groups, sizes) if equal and complete else None


def _check_devices(devices: Iterable[int], module: ReadModule) -> None:
    """Raises _UnknownDevices for one that the mesh does not have."""
    for device in devices:
        if not 0 <= device < module.mesh.size:
            raise _UnknownDevices(f"device {device}; {module.mesh} has {module.mesh.size} devices")


def _general(module: ReadModule, op: ir.Operation, type_: ir.Type) -> Function:
    """The function of a reduction region that is more than one op."""
    segment, place = elementwise(op, type_, module.functions), place_of(op)

    def combine(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        try:
            (combined,) = evaluated(segment, [a, b])
        except EvaluationFailed as error:
            found = f"the reference interpreter failed in its reduction: {error}"
            raise CannotSimulate(place, found, FIX) from None
        return combined

    return combine
