"""Inlines calls that return values without elements, where all automatic axes have size one.

There JAX writes a hint on the results of a call, that they are manual, as it does beside any
automatic axis. XLA makes a constant of a result without elements, without a sharding, in a tuple
with the others, and GSPMD ends the process.
"""

from __future__ import annotations

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import func
from jaxlib.mlir.dialects.builtin import ModuleOp

from ..ir.body_form import BodyForm
from ..ir.inline_calls import callee, erase_uncalled, functions_of, inline_calls, reaches


def inline_calls_without_elements(module: ModuleOp, form: BodyForm) -> None:
    """Inlines them, and the calls of functions that hold one."""
    if len(form.region) == len(form.mesh.axes) or form.mesh.product(form.automatic) > 1:
        return
    functions = functions_of(module)
    found = {name for name, each in functions.items() if _returns_empty(each)}
    found -= {form.main.name.value}
    if found:
        holders = reaches(module, found)
        inline_calls(module, form.main, lambda call: callee(call) in holders)
        erase_uncalled(module)


def _returns_empty(function: func.FuncOp) -> bool:
    """Whether a function has a result without elements."""
    types = function.type.results
    return any(isinstance(each, ir.RankedTensorType) and 0 in each.shape for each in types)
