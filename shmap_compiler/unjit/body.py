"""Body form of what XLA's partitioner made: its StableHLO, with mesh axes instead of devices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxlib.mlir import ir, passmanager
from jaxlib.mlir.dialects import func, sdy, stablehlo
from shmap_passes import make_context
from shmap_passes.import_.name_groups import sdy_mesh, to_body_form
from shmap_passes.import_.name_positions import PARTITION_ID, name_positions
from shmap_passes.import_.placement import Placement
from shmap_passes.ir.body_form import MANUAL_AXES, read_mesh
from shmap_passes.ir.collective_ops import (
    CHANNEL_HANDLE,
    COLLECTIVES,
    GROUPED,
    GROUPS,
    group_axes,
    group_mesh,
    group_parts,
)
from shmap_passes.ir.dialects import register_mlir_passes
from shmap_passes.ir.find_ops import find_ops
from shmap_passes.ir.inline_calls import erase_uncalled, functions_of, inline_calls
from shmap_passes.ir.mesh import Mesh
from shmap_passes.ir.ops import walk

from shmap_compiler.base.untyped import Unchecked
from shmap_compiler.explain.replica_groups import AlongAxes, Groups
from shmap_compiler.unjit.plainer_operations import write_plainly

_CLEAN = (
    "builtin.module(func.func(stablehlo-legalize-deprecated-ops{fail-on-unused=false}),"
    "canonicalize,cse,symbol-dce)"
)
_IDENTITIES = ("mhlo.copy", "mhlo.bitcast")
_BACKEND_CONFIG = "mhlo.backend_config"  # the arguments of a library's function
_RENAMED = {"mhlo.erf": "chlo.erf", "mhlo.topk": "chlo.top_k"}


class NotConvertible(Exception):
    """Something in the partitioned program has no counterpart in body form."""


def body_form(
    code: bytes,
    groups: Mapping[tuple[int, AlongAxes], Groups],
    mesh: Mesh,
    inputs: Sequence[Placement],
    outputs: Sequence[Placement],
) -> str:
    """The text of the module in body form, with locations.

    Args:
      code: the partitioned program as StableHLO.
      groups: those that are named by axes, by the channel of a collective and the names.
      mesh: its mesh.
      inputs: how each argument of `@main` is split.
      outputs: how each result is.

    Raises:
      NotConvertible: it has an operation, or groups of devices, that body form does not know.
    """
    with make_context(), ir.Location.unknown():
        module = ir.Module.parse(code)
        opview: Any = module.operation.opview
        main = functions_of(opview)["main"]
        inline_calls(opview, main, lambda call: True)
        erase_uncalled(opview)
        _list_groups(module, groups)
        _replace_foreign(module.operation)
        _untuple(module.operation)
        _clean_attributes(module.operation)
        _place(module, main, mesh, inputs, outputs)
        collectives = find_ops(main.operation, sorted(COLLECTIVES))
        violations = list(to_body_form(collectives, mesh))
        seeds: dict[Any, Any] = {
            op: None for op in find_ops(main.operation, [PARTITION_ID]) if list(op.results[0].uses)
        }
        violations += name_positions(seeds, mesh, mesh.names)
        if violations:
            raise NotConvertible(violations[0].message)
        register_mlir_passes()
        manager = passmanager.PassManager.parse(_CLEAN)
        manager.run(module.operation)
        write_plainly(main.operation)
        manager.run(module.operation)
        module.operation.verify()
        return str(module.operation.get_asm(enable_debug_info=True))


def _list_groups(module: ir.Module, groups: Mapping[tuple[int, AlongAxes], Groups]) -> None:
    """Lists the devices of groups that HLO names by axes of meshes of its own.

    The conversion to StableHLO loses in which order such a mesh has its devices.
    """
    ops = [op for op in module.body.operations if isinstance(op, sdy.MeshOp)]
    meshes = {mesh.symbol: mesh for mesh in map(read_mesh, ops)}
    for op in find_ops(module.operation, sorted(GROUPED)):
        if group_axes(op) is None:
            continue
        mesh = meshes[ir.FlatSymbolRefAttr(group_mesh(op)).value]
        key = _channel(op), AlongAxes(mesh.axes, group_parts(op, mesh))
        if key not in groups:
            raise NotConvertible(f"{op.name} with groups that its HLO does not have")
        ids = np.array(groups[key], np.int64)
        op.attributes[GROUPS] = ir.DenseElementsAttr.get(ids.data)
    for op in ops:
        op.operation.erase()


def _channel(op: ir.Operation) -> int:
    if CHANNEL_HANDLE not in op.attributes:
        return 0
    return stablehlo.ChannelHandle(op.attributes[CHANNEL_HANDLE]).handle


def _replace_foreign(root: ir.Operation) -> None:
    """Replaces operations of MHLO."""
    for op in walk(root):
        if op.name in _IDENTITIES and op.operands[0].type == op.results[0].type:
            op.results[0].replace_all_uses_with(op.operands[0])
            op.erase()
        elif op.name in _RENAMED:
            attributes = {
                name: op.attributes[name] for name in _names(op.attributes) if name == "k"
            }
            with ir.InsertionPoint(op), op.location:
                made = ir.Operation.create(
                    _RENAMED[op.name],
                    results=[result.type for result in op.results],
                    operands=list(op.operands),
                    attributes=attributes,
                )
            for old, new in zip(op.results, made.results, strict=True):
                old.replace_all_uses_with(new)
            op.erase()
        elif op.name.startswith("mhlo."):
            raise NotConvertible(f"{op.name} at {op.location}")


def _untuple(root: ir.Operation) -> None:
    """Gives calls that return one tuple the elements of it as results."""
    for op in find_ops(root, ["stablehlo.custom_call"]):
        if len(op.results) != 1 or not isinstance(op.results[0].type, ir.TupleType):
            continue
        types = ir.TupleType(op.results[0].type)
        attributes = {name: op.attributes[name] for name in _names(op.attributes)}
        with ir.InsertionPoint(op), op.location:
            made = ir.Operation.create(
                op.name,
                results=[types.get_type(k) for k in range(types.num_types)],
                operands=list(op.operands),
                attributes=attributes,
            )
        for use in list(op.results[0].uses):
            user = use.owner.operation
            if user.name != "stablehlo.get_tuple_element":
                raise NotConvertible(f"{user.name} on the results of a custom call")
            index = ir.IntegerAttr(user.attributes["index"]).value
            user.results[0].replace_all_uses_with(made.results[index])
            user.erase()
        op.erase()


def _clean_attributes(root: ir.Operation) -> None:
    """Removes what other dialects note on operations, such as layouts and shardings."""
    for op in walk(root):
        for name in _names(op.attributes):
            foreign = "." in name and not name.startswith("sdy.") and name != _BACKEND_CONFIG
            if foreign or name in ("xla_shape", "result_layout", "sdy.sharding"):
                del op.attributes[name]


def _names(attributes: Unchecked) -> list[str]:
    return [named if isinstance(named, str) else named.name for named in attributes]


def _place(
    module: ir.Module,
    main: func.FuncOp,
    mesh: Mesh,
    inputs: Sequence[Placement],
    outputs: Sequence[Placement],
) -> None:
    with ir.InsertionPoint.at_block_begin(module.body):
        sdy.MeshOp(mesh.symbol, sdy_mesh(mesh))
    main.attributes["sym_visibility"] = ir.StringAttr.get("public")
    axes = ", ".join(f'"{axis}"' for axis in mesh.names)
    main.attributes[MANUAL_AXES] = ir.Attribute.parse(f"#sdy<manual_axes{{{axes}}}>")
    sides = (
        ("arg_attrs", inputs, main.type.inputs),
        ("res_attrs", outputs, main.type.results),
    )
    for name, placements, types in sides:
        main.attributes[name] = ir.ArrayAttr.get(
            [
                ir.DictAttr.get({"sdy.sharding": _of_rank(each, type_).attribute(mesh)})
                for each, type_ in zip(placements, types, strict=True)
            ]
        )


def _of_rank(placement: Placement, type_: ir.Type) -> Placement:
    """The placement of the numbers that a random key is, which no axis splits."""
    missing = ir.RankedTensorType(type_).rank - len(placement.dims)
    return Placement((*placement.dims, *((),) * missing))
