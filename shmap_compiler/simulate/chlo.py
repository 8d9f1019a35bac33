"""Writes the operations of CHLO, which JAX lowers some functions to, in StableHLO."""

from __future__ import annotations

from jaxlib.mlir import ir, passmanager
from jaxlib.mlir.dialects import stablehlo
from shmap_passes.ir.dialects import register_mlir_passes
from shmap_passes.ir.find_ops import find_ops


def write_in_stablehlo(module: ir.Module) -> None:
    """Replaces the operations of CHLO in all functions.

    StableHLO's own pass cannot write an erf of eight bits, which XLA takes.
    """
    for op in find_ops(module.operation, ["chlo.erf"]):
        _compute_in_single(op)
    register_mlir_passes()
    legalize = "builtin.module(func.func(chlo-legalize-to-stablehlo))"
    passmanager.PassManager.parse(legalize).run(module.operation)


def _compute_in_single(op: ir.Operation) -> None:
    """Has an operation on floats of eight bits computed in single precision, and rounded."""
    type_ = op.results[0].type
    if not isinstance(type_, ir.RankedTensorType) or not _is_float8(type_.element_type):
        return
    single = ir.RankedTensorType.get(type_.shape, ir.F32Type.get())
    with ir.InsertionPoint(op), op.location:
        operands = [stablehlo.convert(single, operand) for operand in op.operands]
        wide = ir.Operation.create(op.name, results=[single], operands=operands)
        rounded = stablehlo.convert(type_, wide.results[0])
    op.results[0].replace_all_uses_with(rounded)
    op.erase()


def _is_float8(type_: ir.Type) -> bool:
    return isinstance(type_, ir.FloatType) and type_.width == 8
