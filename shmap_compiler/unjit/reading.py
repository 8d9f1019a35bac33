"""Embedded StableHLO, read as a function of JAX.

The table that spells operations in the source of `unjit` gives the function. Operations that it
does not spell are embedded in the function, each by itself: a module is read as far as it can be.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path

import jax
import jax.numpy as jnp
from jax import lax
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import func
from shmap_passes import make_context
from shmap_passes.ir.collective_ops import call_target
from shmap_passes.ir.find_ops import find_ops
from shmap_passes.ir.inline_calls import functions_of, inline_calls
from shmap_passes.ir.mesh import Mesh
from shmap_passes.ir.ops import walk
from shmap_passes.ir.types import Value

from shmap_compiler.base.jax_compat import setting
from shmap_compiler.base.untyped import AnyValue, Function, OpView, PyTree
from shmap_compiler.lowering.embedded_module import apply_module
from shmap_compiler.unjit import derivative_functions
from shmap_compiler.unjit.derivative_rows import DERIVATIVE_ROWS
from shmap_compiler.unjit.layout import Code
from shmap_compiler.unjit.names import Names
from shmap_compiler.unjit.program import NoSpelling, Program
from shmap_compiler.unjit.spelling.operation import Op, Row
from shmap_compiler.unjit.wide import WideNumbers

_ONE_DEVICE = Mesh("mesh", (("device", 1),))


@dataclass(frozen=True)
class Reading:
    """A module as a function.

    Attributes:
      function: from arrays to a tuple of arrays; None if nothing of the module can be read.
      unread: the operation because of which that is so: "stablehlo.custom_call @mine".
    """

    function: Function | None
    unread: str = ""


def read_exactly(text: str) -> Reading:
    """A function that computes what a module computes, up to rounding."""
    return _read(text, False, bool(setting("jax_enable_x64")))


def read_for_derivatives(text: str) -> Reading:
    """A function that has the derivative of a module.

    It computes the same where operations leave no choice: what a factorization leaves in the other
    half of a matrix is theirs.
    """
    return _read(text, True, bool(setting("jax_enable_x64")))


@lru_cache(maxsize=512)
def _read(text: str, for_derivatives: bool, is_x64: bool) -> Reading:
    """`is_x64` is a setting on which the function depends."""
    with make_context(), ir.Location.unknown():
        module: OpView = ir.Module.parse(text).operation.opview
        main = functions_of(module)["main"]
        _inline(module, main)
        ops = list(main.entry_block.operations)[:-1]
        count = sum(op.operation.name != "stablehlo.constant" for op in ops)
        reader = _Reader(count, DERIVATIVE_ROWS if for_derivatives else {})
        try:
            name = reader.define(main.entry_block, "read", ["x"] * len(main.arguments))
        except (WideNumbers, NoSpelling) as error:
            return Reading(None, str(error))
        if reader.unread:
            return Reading(None, reader.unread)
        results = len(main.type.results)
    definitions = [line for lines in reader.body.definitions.values() for line in lines]
    namespace = {
        "jax": jax,
        "jnp": jnp,
        "lax": lax,
        "partial": partial,
        "derivative_functions": derivative_functions,
        "call_stablehlo": _call,
    }
    # Lines of a file in this folder are none of the user's.
    path = str(Path(__file__).with_name("<reading>"))
    exec(compile("\n".join([*definitions, *reader.body.lines]), path, "exec"), namespace)
    function = namespace[name]
    return Reading(function if results != 1 else lambda *arrays: (function(*arrays),))


def _call(text: str, *operands: AnyValue) -> PyTree:
    results = apply_module(text, operands)
    return results[0] if len(results) == 1 else tuple(results)


def _inline(module: OpView, main: func.FuncOp) -> None:
    """Inlines calls and composites, each of which computes what its function does."""
    for op in find_ops(module.operation, ["stablehlo.composite"]):
        with ir.InsertionPoint(op), op.location:
            types = [result.type for result in op.results]
            function = ir.FlatSymbolRefAttr(op.attributes["decomposition"])
            made = func.CallOp(types, function, list(op.operands))
        for result, value in zip(op.results, made.results, strict=True):
            result.replace_all_uses_with(value)
        op.erase()
    inline_calls(module, main, lambda call: True)


class _Reader(Program):
    """Writes the function of a module."""

    def __init__(self, count: int, rows: Mapping[str, Row]):
        """
        Args:
          count: how many operations the module has, beside constants.
          rows: of operations that the source calls as StableHLO.
        """
        super().__init__(_ONE_DEVICE, Names(), "")
        self.indent, self.unread = 0, ""
        self._count, self._rows = count, rows
        self.names.fresh("derivative_functions")

    def _find_calls(self, block: ir.Block) -> None:
        """Writes the operations themselves, as nobody reads the function."""

    def _spelled(self, op: ir.Operation) -> Code | None:
        return None if op.name in self._rows else super()._spelled(op)

    def _embed(self, op: ir.Operation) -> None:
        row = self._rows.get(op.name)
        self._assign_pending([value for each in walk(op) for value in each.operands])
        code = None if row is None else row(Op(op, self))
        if code is None:
            super()._embed(op)
        else:
            self.assign_values(list(op.results), code, "t", op)

    def _call_embedded(
        self, ops: Sequence[ir.Operation], outputs: Sequence[Value], what: str, wanted: str
    ) -> None:
        if len(ops) >= self._count:
            self.unread = self.unread or _name(ops[0])
        super()._call_embedded(ops, outputs, what, wanted)


def _name(op: ir.Operation) -> str:
    return f"{op.name} @{call_target(op)}" if op.name == "stablehlo.custom_call" else op.name
