"""Regions as Shardy writes them where its dialect is not known, back in the dialect.

XLA carries modules through HLO in this form, and `jax.export` of earlier JAX serializes it:

    module attributes {mhlo.frontend_attributes = {xla.sdy.meshes = "{mesh = #sdy.mesh<...>}"}}
    %0 = custom_call @xla.sdy.GlobalToLocalShape(%x)             %2 = sdy.manual_computation(%x)
        {xla.sdy.in_shardings = "...", xla.sdy.manual_axes = ..}       in_shardings=[...]
    %1 = call @xla.sdy.manual_computation_body(%0)                     out_shardings=[...]
    %2 = custom_call @xla.sdy.LocalToGlobalShape(%1)                   manual_axes={...}
        {xla.sdy.out_shardings = "...", xla.sdy.manual_axes = ..}      (%0: ...) { body }
    %3 = custom_call @xla.sdy.FuncResultSharding(%2)             %2

Earlier versions note the shardings on the call of the body, with quotes escaped twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import func, sdy
from jaxlib.mlir.dialects.builtin import ModuleOp

from ..base import PassRefused, Violation
from ..ir.boundary import SHARDING
from ..ir.collective_ops import call_target
from ..ir.find_ops import find_ops
from ..ir.inline_calls import callee, functions_of, inline
from ..ir.ops import defining_op
from ..ir.types import Value
from .body_of import replace_module

ENTERS, LEAVES = "xla.sdy.GlobalToLocalShape", "xla.sdy.LocalToGlobalShape"
_RESULT = "xla.sdy.FuncResultSharding"
_BODY = "manual_computation_body"
_NOTES = "mhlo.frontend_attributes"


def restore_regions(module: ModuleOp) -> None:
    """Writes all regions of `module` that are in this form in Shardy's dialect.

    Raises:
      PassRefused: a part of one is missing.
    """
    if has_custom_regions(module):
        copy: Any = module.operation.clone()
        _restore(copy)
        replace_module(module, copy)


def has_custom_regions(module: ModuleOp) -> bool:
    """Whether there are regions that Shardy wrote as custom calls."""
    calls = find_ops(module.operation, ["stablehlo.custom_call"])
    return any(call_target(op) in (ENTERS, LEAVES) for op in calls)


def _restore(module: ModuleOp) -> None:
    _declare_meshes(module)
    for op in find_ops(module.operation, ["stablehlo.custom_call"]):
        _restore_sharding(op)
    for function in functions_of(module).values():
        for which in ("arg_attrs", "res_attrs"):
            if which in function.attributes:
                values = ir.ArrayAttr(function.attributes[which])
                restored = [_restored(value, function.location) for value in values]
                function.attributes[which] = ir.ArrayAttr.get(restored)
    bodies = {name for name in functions_of(module) if _BODY in name}
    while left := [op for op in find_ops(module.operation, ["func.call"]) if callee(op) in bodies]:
        # Those in the body of another region come first.
        inner = [op for op in left if not _calls(module, callee(op), bodies)]
        if not inner:
            text = "the bodies of regions call one another"
            raise PassRefused(Violation(op.location, text) for op in left)
        for op in inner:
            _restore_region(op, functions_of(module)[callee(op)])
    for name in bodies:
        functions_of(module)[name].operation.erase()


def _calls(module: ModuleOp, name: str, bodies: set[str]) -> bool:
    calls = find_ops(functions_of(module)[name].operation, ["func.call"])
    return any(callee(op) in bodies for op in calls)


def _note(op: ir.Operation | None, name: str) -> ir.Attribute | None:
    """An attribute of Shardy's that `op` has as text."""
    if op is None or _NOTES not in op.attributes:
        return None
    return _parsed(op.attributes[_NOTES], name, op.location)


def _parsed(notes: ir.Attribute, name: str, location: ir.Location) -> ir.Attribute | None:
    if not isinstance(notes, ir.DictAttr) or name not in notes:
        return None
    written = notes[name]
    try:
        source = ir.StringAttr(written).value.replace('\\"', '"')
        # In a list, as MLIR ends the process at text without an attribute.
        (attribute,) = ir.ArrayAttr(ir.Attribute.parse(f"[{source}\n]"))
    except (ir.MLIRError, ValueError):
        text = f"{name} is {written}, which is not an attribute written as text"
        raise PassRefused([Violation(location, text)]) from None
    return attribute


def _declare_meshes(module: ModuleOp) -> None:
    meshes = _note(module.operation, "xla.sdy.meshes")
    if meshes is None:
        return
    named: dict[str, ir.Attribute] = {}
    if isinstance(meshes, ir.DictAttr):
        named = {each.name: each.attr for each in meshes}
    if not named or not all(map(sdy.MeshAttr.isinstance, named.values())):
        text = f"xla.sdy.meshes is {meshes}, and must be a dictionary of meshes"
        raise PassRefused([Violation(module.operation.location, text)])
    declared = {
        ir.StringAttr(op.sym_name).value
        for op in module.body.operations
        if isinstance(op, sdy.MeshOp)
    }
    for name, mesh in named.items():
        if name not in declared:
            with ir.InsertionPoint.at_block_begin(module.body), module.operation.location:
                sdy.MeshOp(name, mesh)
    del module.operation.attributes[_NOTES]


def _restore_sharding(op: ir.Operation) -> None:
    """A hint about a full array, or a note about a result of `@main`."""
    target = call_target(op)
    if target not in ("Sharding", _RESULT):
        return
    value = op.operands[0]
    sharding = _note(op, "xla.sdy.sharding")
    if target == "Sharding":
        if sharding is None:
            return
        (each,) = _listed(sharding, "xla.sdy.sharding", op)
        with ir.InsertionPoint(op), op.location:
            made = ir.Operation.create(
                "sdy.sharding_constraint",
                results=[op.results[0].type],
                operands=[value],
                attributes={"sharding": each},
            )
        value = made.results[0]
    op.results[0].replace_all_uses_with(value)
    op.erase()


def _listed(attribute: ir.Attribute, name: str, op: ir.Operation) -> list[ir.Attribute]:
    """The shardings of the results of `op` that its note `name` lists."""
    shardings: list[ir.Attribute] = []
    if sdy.TensorShardingPerValueAttr.isinstance(attribute):
        shardings = list(sdy.TensorShardingPerValueAttr(attribute).shardings)
    if len(shardings) != len(op.results):
        text = f"{name} is {attribute}, and must list {len(op.results)}, one for each value"
        raise PassRefused([Violation(op.location, text)])
    return shardings


def _restored(named: ir.Attribute, location: ir.Location) -> ir.DictAttr:
    """The attributes of an argument or result of a function, with its sharding."""
    kept = {each.name: each.attr for each in ir.DictAttr(named)}
    notes = kept.pop(_NOTES, None)
    sharding = None if notes is None else _parsed(notes, "xla.sdy.sharding", location)
    if sharding is not None:
        kept[SHARDING] = sharding
    return ir.DictAttr.get(kept)


def _restore_region(call: ir.Operation, body: func.FuncOp) -> None:
    """Makes the call of a region's body, and what is around it, a region."""
    enters = _around([defining_op(value) for value in call.operands], ENTERS, call)
    users = [use.owner.operation for value in call.results for use in value.uses]
    leaves = _around(users, LEAVES, call)
    noted = [each for each in (call, enters, leaves) if each is not None]
    order = [] if enters is None else [ir.OpResult(v).result_number for v in call.operands]
    returned = [] if leaves is None else [ir.OpResult(v).result_number for v in leaves.operands]
    ins = _shardings("xla.sdy.in_shardings", noted, enters)
    with ir.InsertionPoint(leaves or call), call.location:
        region = ir.Operation.create(
            "sdy.manual_computation",
            results=[] if leaves is None else [result.type for result in leaves.results],
            operands=[] if enters is None else [enters.operands[k] for k in order],
            attributes={
                "in_shardings": sdy.TensorShardingPerValueAttr.get([ins[k] for k in order]),
                "out_shardings": sdy.TensorShardingPerValueAttr.get(
                    _shardings("xla.sdy.out_shardings", noted, leaves)
                ),
                "manual_axes": _found("xla.sdy.manual_axes", noted),
            },
            regions=1,
        )
        types = [value.type for value in call.operands]
        block = region.regions[0].blocks.append(*types, arg_locs=[call.location] * len(types))
    with ir.InsertionPoint(block), call.location:
        name = ir.FlatSymbolRefAttr.get(body.name.value)
        inner = func.CallOp([value.type for value in call.results], name, list(block.arguments))
        results: list[Value] = list(inner.operation.results)
        ir.Operation.create("sdy.return", operands=[results[k] for k in returned])
    inline(inner.operation, body)
    for old, new in zip(leaves.results if leaves else (), region.results, strict=True):
        old.replace_all_uses_with(new)
    for op in (leaves, call, enters):
        if op is not None and not any(list(value.uses) for value in op.results):
            op.erase()


def _around(
    found: Sequence[ir.Operation | None], target: str, call: ir.Operation
) -> ir.Operation | None:
    """The one custom call of a name through which all values of a region go; None for no values."""
    ops = {op for op in found if op is not None and op.name == "stablehlo.custom_call"}
    if len(found) == 0:
        return None
    is_missing = any(op is None for op in found)
    if len(ops) != 1 or is_missing or call_target(next(iter(ops))) != target:
        text = f"the arguments or results of @{callee(call)} do not all go through one @{target}"
        raise PassRefused([Violation(call.location, text)])
    return next(iter(ops))


def _found(name: str, noted: Sequence[ir.Operation]) -> ir.Attribute:
    for op in noted:
        attribute = _note(op, name)
        if attribute is not None:
            return attribute
    text = (
        f'the region has no {name}; write it, as in mhlo.frontend_attributes = {{{name} = "..."}}'
    )
    raise PassRefused([Violation(noted[0].location, text)])


def _shardings(
    name: str, noted: Sequence[ir.Operation], side: ir.Operation | None
) -> list[ir.Attribute]:
    return [] if side is None else _listed(_found(name, noted), name, side)
