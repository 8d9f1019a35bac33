"""A module as the simulator sees it: its functions, its mesh, its entry."""

from __future__ import annotations

import graphlib
import itertools
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import prod

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import func, sdy, stablehlo
from jaxlib.mlir.dialects.builtin import ModuleOp
from shmap_passes.files.parse import parse
from shmap_passes.import_.body_of import name_entry
from shmap_passes.import_.round_trip import restore_regions
from shmap_passes.import_.sharding_calls import ENTERS, LEAVES
from shmap_passes.ir.body_form import read_mesh
from shmap_passes.ir.collective_ops import (
    COLLECTIVES,
    GROUPED,
    GROUPS,
    PAIRS,
    PERMUTE,
    call_target,
    device_ids,
    group_axes,
)
from shmap_passes.ir.find_ops import find_ops
from shmap_passes.ir.mesh import Mesh
from shmap_passes.ir.ops import partition_count, walk
from shmap_passes.ir.shardy_notes import erase_shardy_notes

from shmap_compiler.simulate.chlo import write_in_stablehlo
from shmap_compiler.simulate.segments import CALLS, callee_name
from shmap_compiler.simulate.shardy_sums import resolve_shardy_collectives

_HINTS = frozenset({"sdy.sharding_constraint", "sdy.reshard"})
_OWN_LINE = re.compile(r'loc\("-":(\d+):(\d+)\)')
_TILES = re.compile(r'mhlo\.sharding = "\{devices=\[([\d,]+)\]')


@dataclass(frozen=True)
class ReadModule:
    """A parsed module.

    Attributes:
      module: the module, in a context of its own.
      functions: by name.
      meshes: by symbol; "" is the one that devices are numbered by.
    """

    module: ModuleOp
    functions: Mapping[str, func.FuncOp]
    meshes: Mapping[str, Mesh]

    @property
    def mesh(self) -> Mesh:
        """The mesh whose row-major positions number the devices."""
        return self.meshes[""]

    def mesh_of(self, attribute: ir.Attribute) -> Mesh:
        """The mesh that an attribute names or is."""
        if isinstance(attribute, ir.FlatSymbolRefAttr):
            return self.meshes[attribute.value]
        return _inline_mesh(attribute) or self.mesh


class HasOtherMesh(Exception):
    """A module whose axes are given has a mesh with other ones."""

    def __init__(self, mesh: Mesh):
        super().__init__(str(mesh))
        self.mesh = mesh


def read_module(
    text: str | bytes, context: ir.Context, axes: Mapping[str, int] | None, name: str
) -> ReadModule:
    """Parses a module and finds its mesh.

    Args:
      axes: names and sizes of the axes of the mesh, where the module does not tell.
      name: of the module: its own lines are the locations of operations that have no others.

    Raises:
      ir.MLIRError: the text is not a module.
      HasOtherMesh: the module has a mesh, with other axes.
      PassRefused: a part of a region that Shardy wrote as custom calls is missing.
    """
    with context, ir.Location.unknown():
        parsed = parse(text, context)
        _name_lines(parsed.operation, name)
        write_in_stablehlo(parsed)
        module = parsed.operation.opview
        assert isinstance(module, ModuleOp), "Module.parse returns modules only"
        name_entry(module)
        restore_regions(module)
        erase_shardy_notes(module.operation)
        functions = {
            op.name.value: op for op in module.body.operations if isinstance(op, func.FuncOp)
        }
        meshes = [read_mesh(op) for op in module.body.operations if isinstance(op, sdy.MeshOp)]
        named = {mesh.symbol: mesh for mesh in meshes}
        given = None if axes is None else Mesh("mesh", tuple(axes.items()))
        # A part of the devices, or none, as in `@empty_mesh`, may have a mesh of its own.
        largest = max(meshes, key=lambda mesh: mesh.size, default=None)
        own = _mesh_of_regions(module, meshes) or largest
        if given is not None and own is not None and own.size > 1:
            _check_axes(given, own, meshes)
        mesh = given or own or _mesh_in_use(module)
        resolve_shardy_collectives(module.operation, mesh)
        _erase_hints(module)
        return ReadModule(module, functions, {**named, "": mesh})


def recursive_function(module: ReadModule) -> str | None:
    """The name of a function that calls itself, in some steps; None if there is none."""
    calls = {
        name: {callee_name(op) for op in find_ops(function.operation, sorted(CALLS))}
        for name, function in module.functions.items()
    }
    try:
        graphlib.TopologicalSorter(calls).prepare()
    except graphlib.CycleError as error:
        return min(error.args[1])
    return None


def _check_axes(given: Mesh, own: Mesh, meshes: Iterable[Mesh]) -> None:
    if given.axes not in [mesh.axes for mesh in meshes]:
        raise HasOtherMesh(own)


def _erase_hints(module: ModuleOp) -> None:
    """Erases the ops by which the partitioner is told how to split an array, also in reductions."""
    for op in [op for op in walk(module.operation) if _is_hint(op)]:
        op.results[0].replace_all_uses_with(op.operands[0])
        op.erase()


def _is_hint(op: ir.Operation) -> bool:
    """Whether nothing is lost without `op`: @Sharding at a border says how arrays are cut there."""
    if op.name != "stablehlo.custom_call":
        return op.name in _HINTS
    if call_target(op) != "Sharding" or [v.type for v in op.operands] != [op.results[0].type]:
        return False
    users = (use.owner.operation for use in op.results[0].uses)
    return not any(
        each.name == "stablehlo.custom_call" and call_target(each) in (ENTERS, LEAVES)
        for each in users
    )


def _mesh_of_regions(module: ModuleOp, meshes: Iterable[Mesh]) -> Mesh | None:
    """The mesh that manual regions name: the first that is not on one device; None for no name."""
    declared = {mesh.symbol: mesh for mesh in meshes}
    for op in walk(module.operation):
        for symbol in _meshes_of_region(op):
            if isinstance(symbol, ir.FlatSymbolRefAttr) and declared[symbol.value].size > 1:
                return declared[symbol.value]
    return None


def _meshes_of_region(op: ir.Operation) -> Iterator[ir.Attribute]:
    """The meshes of the shardings of a manual computation; none for other ops."""
    if op.name == "sdy.manual_computation":
        for side in ("in_shardings", "out_shardings"):
            for each in sdy.TensorShardingPerValueAttr(op.attributes[side]).shardings:
                yield sdy.TensorShardingAttr(each).mesh_or_ref


def _mesh_in_use(module: ModuleOp) -> Mesh:
    """The mesh that the ops of a module name; one axis of all devices where they name none."""
    for op in walk(module.operation):
        for attribute in _meshes_of_region(op):
            mesh = _inline_mesh(attribute)
            if mesh is not None:
                return mesh
        if op.name in GROUPED and stablehlo.ReplicaGroupMeshAxesAttr.isinstance(
            op.attributes[GROUPS]
        ):
            mesh = _inline_mesh(stablehlo.ReplicaGroupMeshAxesAttr(op.attributes[GROUPS]).mesh)
            if mesh is not None:
                return mesh
    return Mesh("mesh", (("devices", _device_count(module)),))


def _device_count(module: ModuleOp) -> int:
    """The number of devices of a module that names no mesh axes."""
    count = partition_count(module.operation)
    if count:
        return count
    text = str(module)
    counts = [prod(map(int, match[1].split(","))) for match in _TILES.finditer(text)]
    if ENTERS in text or LEAVES in text:
        counts += [1 + device for device in _listed_devices(module)]
    return max(counts, default=1)


def _listed_devices(module: ModuleOp) -> Iterator[int]:
    """The devices that the collectives of a module list."""
    for op in find_ops(module.operation, sorted(COLLECTIVES)):
        if op.name == PERMUTE or group_axes(op) is None:
            rows = device_ids(op, PAIRS if op.name == PERMUTE else GROUPS)
            yield from itertools.chain(*rows)


def _name_lines(module: ir.Operation, name: str) -> None:
    """Puts a name in place of the "-" that MLIR gives to text without locations."""
    for op in walk(module):
        if found := _OWN_LINE.fullmatch(str(op.location)):
            op.location = ir.Location.file(name, int(found[1]), int(found[2]))


def _inline_mesh(attribute: ir.Attribute) -> Mesh | None:
    if isinstance(attribute, ir.FlatSymbolRefAttr):
        return None
    if stablehlo.MeshAttr.isinstance(attribute):
        listed = (
            stablehlo.MeshAxisAttr(axis)
            for axis in ir.ArrayAttr(stablehlo.MeshAttr(attribute).axes)
        )
        return Mesh("mesh", tuple((axis.name, axis.size) for axis in listed))
    try:
        axes = (sdy.MeshAxisAttr(axis) for axis in sdy.MeshAttr(attribute).axes)
        return Mesh("mesh", tuple((axis.name, axis.size) for axis in axes))
    except ValueError:
        return None
