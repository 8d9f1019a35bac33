"""The module that an import pass works on: a copy, which replaces the module at the end."""

from __future__ import annotations

import itertools

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import func, sdy
from jaxlib.mlir.dialects.builtin import ModuleOp

from ..base import PassRefused, Violation
from ..ir.body_form import MANUAL_AXES
from ..ir.find_ops import find_ops
from ..ir.inline_calls import callee, functions_of
from ..ir.ops import replica_count


def main_of(module: ModuleOp, what: str) -> func.FuncOp:
    """The entry of a module that is not in body form yet, which is @main from now on.

    Raises:
      PassRefused: the module has no @main with one block, it is in body form, or it runs as more
        than one replica.
    """
    replicas = replica_count(module.operation)
    if replicas > 1:
        text = (
            f"the module runs as {replicas} replicas, and body form describes the devices of one: "
            "lower the program for partitions, with mhlo.num_replicas = 1"
        )
        raise PassRefused([Violation(module.operation.location, text)])
    name_entry(module)
    functions = functions_of(module)
    if "main" not in functions:
        have = ", ".join(f"@{name}" for name in functions) or "none"
        text = (
            f"the module has no function @main with a body, nor one public function only; its "
            f"functions: {have}; name the one that holds {what} @main"
        )
        raise PassRefused([Violation(module.operation.location, text)])
    main = functions["main"]
    if MANUAL_AXES in main.attributes:
        text = "@main is in body form already; leave this pass out"
        raise PassRefused([Violation(main.location, text)])
    unlike = [op for op in functions.values() if len(list(op.operation.regions[0].blocks)) != 1]
    if unlike:
        text = "has several blocks; StableHLO's functions have one: turn branches into stablehlo.if"
        raise PassRefused(Violation(op.location, f"@{op.name.value} {text}") for op in unlike)
    return main


def name_entry(module: ModuleOp) -> None:
    """Names the only public function @main, if there is none of that name."""
    if "main" not in functions_of(module) and (only := _only_public(module)) is not None:
        only.attributes["sym_name"] = ir.StringAttr.get("main")


def _only_public(module: ModuleOp) -> func.FuncOp | None:
    """The one function that others can call, and that no function of the module calls."""
    functions = functions_of(module).values()
    found = [function for function in functions if _is_public(function)]
    if len(found) != 1:
        return None
    name = found[0].name.value
    if free_symbol(module, "main") != "main":  # it is declared, without a body
        return None
    calls = (call for each in functions for call in find_ops(each.operation, ["func.call"]))
    return None if name in map(callee, calls) else found[0]


def _is_public(function: func.FuncOp) -> bool:
    visibility = function.attributes.get("sym_visibility")
    return visibility is None or ir.StringAttr(visibility).value == "public"


def free_symbol(module: ModuleOp, wanted: str) -> str:
    """`wanted`, or with a number if a function of the module has that name."""
    taken = {
        ir.StringAttr(op.operation.attributes["sym_name"]).value
        for op in module.body.operations
        if "sym_name" in op.operation.attributes and not isinstance(op, sdy.MeshOp)
    }
    names = itertools.chain([wanted], (f"{wanted}_{k}" for k in itertools.count()))
    return next(name for name in names if name not in taken)


def replace_module(module: ModuleOp, copy: ModuleOp) -> None:
    """Makes `module` what `copy` is."""
    for op in list(module.body.operations):
        op.operation.erase()
    for op in list(copy.body.operations):
        module.body.append(op.operation)
    attributes = module.operation.attributes
    for name in [attributes[k].name for k in range(len(attributes))]:
        if name not in copy.operation.attributes:
            del attributes[name]
    copy.operation.erase()
