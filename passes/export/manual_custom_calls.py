"""Wraps the body for GSPMD: sharding custom calls around a call of the body.

func.func public @main(%arg0: tensor<8x8xf32>) -> tensor<8x8xf32> {
  %0 = custom_call @Sharding(%arg0) {mhlo.sharding = "{devices=[4,1,2]<=..."}
  %1 = custom_call @SPMDFullToShardShape(%0) {mhlo.sharding = "{manual}"} : tensor<2x8xf32>
  %2 = call @shmap_body(%1)
  %3 = custom_call @Sharding(%2) {mhlo.sharding = "{manual}"}
  %4 = custom_call @SPMDShardToFullShape(%3) {mhlo.sharding = "{devices=[4,1,2]<=..."}
  return %4
}
func.func private @shmap_body(%arg0: tensor<2x8xf32>) -> tensor<2x8xf32> { body }
"""

from __future__ import annotations

import itertools

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import func
from jaxlib.mlir.dialects.builtin import ModuleOp

from ..ir.body_form import OWN_ATTRIBUTES, BodyForm
from ..ir.boundary import Boundary, Dims, Unreduced
from ..ir.memoize import memoized
from ..ir.mesh import Mesh
from ..ir.ops import PARTITIONS
from ..ir.sharding_text import full_sharding, region_sharding
from ..ir.types import Value
from .full_main import empty_constant, new_main, remove_attributes, replace_empty_arguments
from .sharding_calls import sharding_call


def wrap_in_custom_calls(form: BodyForm, module: ModuleOp) -> None:
    """Values without elements stay outside.

    XLA folds them to constants, and would give those outside the manual sharding of those inside.
    """
    count = ir.IntegerAttr.get(ir.IntegerType.get_signless(32), form.mesh.size)
    module.operation.attributes[PARTITIONS] = count
    main = new_main(form)
    body = _private_body(form, module)
    with ir.InsertionPoint(main.entry_block) as at, main.location:
        blocks = [
            full_to_block(form, boundary, value)
            for boundary, value in zip(form.inputs, main.arguments, strict=True)
            if boundary.has_elements
        ]
        results = iter(func.CallOp(body, blocks).results)
        fulls = [
            block_to_full(form, boundary, next(results))
            if boundary.has_elements
            else _empty_full(form, boundary, at)
            for boundary in form.outputs
        ]
        func.ReturnOp(fulls)


def _private_body(form: BodyForm, module: ModuleOp) -> func.FuncOp:
    """The old @main as a private function without any word about full arrays.

    It takes and gives only values that have elements.
    """
    body = form.main
    block = body.entry_block
    terminator = block.operations[len(block.operations) - 1]
    given = zip(terminator.operands, form.outputs, strict=True)
    results = [value for value, boundary in given if boundary.has_elements]
    with ir.InsertionPoint(terminator), terminator.location:
        func.ReturnOp(results)
    terminator.operation.erase()
    replace_empty_arguments(form, block)
    type_ = ir.FunctionType.get([a.type for a in block.arguments], [v.type for v in results])
    body.attributes["function_type"] = ir.TypeAttr.get(type_)
    body.attributes["sym_name"] = ir.StringAttr.get(_free_name(module, "shmap_body"))
    body.attributes["sym_visibility"] = ir.StringAttr.get("private")
    remove_attributes(body, "arg_attrs", "res_attrs", *OWN_ATTRIBUTES)
    return body


def _free_name(module: ModuleOp, wanted: str) -> str:
    """`wanted`, or with a number when a nested region's body already has that name."""
    symbols = ir.SymbolTable(module.operation)
    names = itertools.chain([wanted], (f"{wanted}_{number}" for number in itertools.count()))
    return next(name for name in names if name not in symbols)


def full_to_block(form: BodyForm, boundary: Boundary, value: Value) -> Value:
    if boundary.dims is None or form.is_one_device:
        return value
    cut, region, config = _texts(form, boundary.dims, boundary.unreduced)
    full = sharding_call("Sharding", value, value.type, cut, config)
    return sharding_call("SPMDFullToShardShape", full, boundary.type, region, config)


def block_to_full(form: BodyForm, boundary: Boundary, value: Value) -> Value:
    if boundary.dims is None or form.is_one_device:
        return value
    cut, region, config = _texts(form, boundary.dims, boundary.unreduced)
    block = sharding_call("Sharding", value, value.type, region, config)
    full_type = boundary.full_type(form.mesh)
    return sharding_call("SPMDShardToFullShape", block, full_type, cut, config)


def _empty_full(form: BodyForm, boundary: Boundary, at: ir.InsertionPoint) -> Value:
    """The full array of a result without elements."""
    full_type = boundary.full_type(form.mesh)
    nothing = empty_constant(full_type, at)
    if boundary.dims is None or form.is_one_device:
        return nothing
    cut, _, config = _texts(form, boundary.dims, boundary.unreduced)
    return sharding_call("Sharding", nothing, full_type, cut, config)


def _texts(form: BodyForm, dims: Dims, unreduced: Unreduced) -> tuple[str, str, str]:
    """The sharding of a full array, that of its blocks, and the configuration of both calls."""
    some_are_left = len(form.manual) < len(form.mesh.axes)
    return _texts_on(form.mesh, form.outer, form.region, some_are_left, dims, unreduced.axes)


@memoized  # of hundreds few differ
def _texts_on(
    mesh: Mesh,
    outer: tuple[str, ...],
    region: tuple[str, ...],
    some_are_left: bool,
    dims: Dims,
    unreduced: tuple[str, ...],
) -> tuple[str, str, str]:
    full = full_sharding(mesh, dims, outer, unreduced)
    config = _unspecified_dims(dims) if some_are_left else ""
    return full, region_sharding(mesh, len(dims), region), config


def _unspecified_dims(dims: Dims) -> str:
    """Leaves every dimension to the partitioner for the axes that this region does not take."""
    return f"unspecified_dims=[{','.join(map(str, range(len(dims))))}]" if dims else ""
