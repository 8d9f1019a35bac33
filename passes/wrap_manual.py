"""Wraps the per-device body into a program on full arrays, as XLA's partitioner reads it.

Up to here the module is what one device computes. XLA compiles programs on full arrays; this pass
says how the full arrays are cut for the body and how its results are put together.

Before:  func.func public @main(%arg0: tensor<2x8xf32> {sdy.sharding = <@mesh, [{"i"}, {}]>}) -> ...
             attributes {sdy.manual_axes = #sdy<manual_axes{"i", "j"}>} { body }
After, partitioner=gspmd:
         func.func public @main(%arg0: tensor<8x8xf32>) -> tensor<8x8xf32> {
           %0 = custom_call @Sharding(%arg0) {mhlo.sharding = "{devices=[4,1,2]<=..."}
           %1 = custom_call @SPMDFullToShardShape(%0) {mhlo.sharding = "{manual}"} : tensor<2x8xf32>
           %2 = call @shmap_body(%1)
           %3 = custom_call @Sharding(%2) {mhlo.sharding = "{manual}"}
           %4 = custom_call @SPMDShardToFullShape(%3) {mhlo.sharding = "{devices=[4,1,2]<=..."}
           return %4
         }
         func.func private @shmap_body(%arg0: tensor<2x8xf32>) -> tensor<2x8xf32> { body }
After, partitioner=shardy:
         func.func public @main(%arg0: tensor<8x8xf32>) -> tensor<8x8xf32> {
           %0 = sdy.manual_computation(%arg0) in_shardings=[<@mesh, [{"i"}, {}]>]
                    out_shardings=[<@mesh, [{"i"}, {}]>] manual_axes={"i", "j"} (...) { body }
           return %0
         }
Needs:   body form; legalized collectives (an axis index cannot be legalized after this).
Leaves:  @main on full types, without `sdy.sharding` and `sdy.manual_axes`.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import func, sdy
from jaxlib.mlir.dialects.builtin import ModuleOp

from .base import Pass
from .support.body_form import (
    MANUAL_AXES,
    OUTER_MANUAL_AXES,
    SHARDING,
    BodyForm,
    Boundary,
    Dims,
    Unreduced,
    read_body_form,
    value_attributes,
)
from .support.sharding_calls import sharding_call
from .support.sharding_text import full_sharding, region_sharding


@dataclass(frozen=True)
class WrapManual(Pass):
    """Wraps the per-device body into a program on full arrays, as XLA's partitioner reads it."""

    name = "shmap-wrap-manual"
    code = "SHM-P11"
    needs_body_form = True
    ends_body_form = True

    partitioner: Literal["gspmd", "shardy"] = "gspmd"

    def run(self, module: ModuleOp) -> None:
        form = read_body_form(module)
        if form.mesh.size == 1:
            _leave_unwrapped(form)
        elif self.partitioner == "gspmd":
            _wrap_in_custom_calls(form, module)
        else:
            _wrap_in_manual_computation(form)


def _leave_unwrapped(form: BodyForm) -> None:
    """On one device blocks are full arrays, and XLA runs no partitioner to read a wrapping."""
    main = form.main
    main.attributes["arg_attrs"] = _without_sharding(main, "arg_attrs", len(form.inputs))
    main.attributes["res_attrs"] = _without_sharding(main, "res_attrs", len(form.outputs))
    _drop(main, MANUAL_AXES, OUTER_MANUAL_AXES)


def _drop(function: func.FuncOp, *names: str) -> None:
    for name in names:
        if name in function.attributes:
            del function.attributes[name]


def _new_main(form: BodyForm) -> func.FuncOp:
    """An empty public @main on full types, before the old one, with its other attributes."""
    inputs = [boundary.full_type(form.mesh) for boundary in form.inputs]
    outputs = [boundary.full_type(form.mesh) for boundary in form.outputs]
    with ir.InsertionPoint(form.main), form.main.location:
        main = func.FuncOp("main", (inputs, outputs), visibility="public")
    main.attributes["arg_attrs"] = _without_sharding(form.main, "arg_attrs", len(inputs))
    main.attributes["res_attrs"] = _without_sharding(form.main, "res_attrs", len(outputs))
    main.add_entry_block()
    return main


def _without_sharding(main: func.FuncOp, which: str, count: int) -> ir.ArrayAttr:
    """What else @main's attributes say about its arguments or results (donation, ...)."""
    attributes = value_attributes(main, which, count)
    rest = {
        each: ir.DictAttr.get({named.name: named.attr for named in each if named.name != SHARDING})
        for each in set(attributes)
    }
    return ir.ArrayAttr.get([rest[each] for each in attributes])


# ---- partitioner=gspmd: custom calls around a call of the body ----------------------------------


def _wrap_in_custom_calls(form: BodyForm, module: ModuleOp) -> None:
    """Values without elements stay outside.

    XLA folds them to constants, and would give those outside the manual sharding of those inside.
    """
    main = _new_main(form)
    body = _private_body(form, module)
    with ir.InsertionPoint(main.entry_block) as at, main.location:
        blocks = [
            _full_to_block(form, boundary, value)
            for boundary, value in zip(form.inputs, main.arguments, strict=True)
            if boundary.has_elements
        ]
        results = iter(func.CallOp(body, blocks).results)
        fulls = [
            _block_to_full(form, boundary, next(results))
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
    _replace_empty_arguments(form, block)
    type_ = ir.FunctionType.get([a.type for a in block.arguments], [v.type for v in results])
    body.attributes["function_type"] = ir.TypeAttr.get(type_)
    body.attributes["sym_name"] = ir.StringAttr.get(_free_name(module, "shmap_body"))
    body.attributes["sym_visibility"] = ir.StringAttr.get("private")
    _drop(body, "arg_attrs", "res_attrs", MANUAL_AXES, OUTER_MANUAL_AXES)
    return body


def _free_name(module: ModuleOp, wanted: str) -> str:
    """`wanted`, or with a number when a nested region's body already has that name."""
    symbols = ir.SymbolTable(module.operation)
    names = itertools.chain([wanted], (f"{wanted}_{number}" for number in itertools.count()))
    return next(name for name in names if name not in symbols)


def _full_to_block(form: BodyForm, boundary: Boundary, value: ir.Value) -> ir.Value:
    if boundary.dims is None or _is_one_device(form):
        return value
    config = _unspecified_dims(form, boundary.dims)
    cut = full_sharding(form.mesh, boundary.dims, form.outer, boundary.unreduced.axes)
    region = region_sharding(form.mesh, len(boundary.dims), form.region)
    full = sharding_call("Sharding", value, value.type, cut, config)
    return sharding_call("SPMDFullToShardShape", full, boundary.type, region, config)


def _block_to_full(form: BodyForm, boundary: Boundary, value: ir.Value) -> ir.Value:
    if boundary.dims is None or _is_one_device(form):
        return value
    config = _unspecified_dims(form, boundary.dims)
    cut = full_sharding(form.mesh, boundary.dims, form.outer, boundary.unreduced.axes)
    region = region_sharding(form.mesh, len(boundary.dims), form.region)
    block = sharding_call("Sharding", value, value.type, region, config)
    full_type = boundary.full_type(form.mesh)
    return sharding_call("SPMDShardToFullShape", block, full_type, cut, config)


def _empty_full(form: BodyForm, boundary: Boundary, at: ir.InsertionPoint) -> ir.Value:
    """The full array of a result without elements."""
    full_type = boundary.full_type(form.mesh)
    nothing = _nothing(full_type, at)
    if boundary.dims is None or _is_one_device(form):
        return nothing
    config = _unspecified_dims(form, boundary.dims)
    cut = full_sharding(form.mesh, boundary.dims, form.outer, boundary.unreduced.axes)
    return sharding_call("Sharding", nothing, full_type, cut, config)


def _is_one_device(form: BodyForm) -> bool:
    """Whether blocks are full arrays; XLA takes no manual sharding over one device."""
    return form.mesh.product(form.region) == 1


def _unspecified_dims(form: BodyForm, dims: Dims) -> str:
    """Leaves every dimension to the partitioner for the axes that this region does not take."""
    if not dims or len(form.manual) == len(form.mesh.axes):
        return ""
    return f"unspecified_dims=[{','.join(str(dim) for dim in range(len(dims)))}]"


# ---- partitioner=shardy: a manual computation that holds the body -------------------------------


def _wrap_in_manual_computation(form: BodyForm) -> None:
    """The body moves inline, because XLA does not combine collectives across calls.

    Arguments without elements stay outside: XLA folds them to constants, and refuses a computation
    where no argument is left.
    """
    main = _new_main(form)
    passed = [boundary for boundary in form.inputs if boundary.has_elements]
    block = form.main.entry_block
    _replace_empty_arguments(form, block)
    with ir.InsertionPoint(main.entry_block) as at, main.location:
        operands = [v for v, b in zip(main.arguments, form.inputs, strict=True) if b.has_elements]
        types, count = list(main.type.results), len(form.outputs)
        in_shardings, out_shardings = _shardings(form, passed), _shardings(form, form.outputs)
        if not types:
            operands.append(_passed_through(block, at))
            types.append(operands[-1].type)
            in_shardings = _shardings(form, passed, extra=1)
            out_shardings = _shardings(form, form.outputs, extra=1)
        computation = sdy.ManualComputationOp(
            types,
            operands,
            in_shardings,
            out_shardings,
            sdy.ManualAxesAttr.get([ir.StringAttr.get(axis) for axis in form.manual]),
        )
        func.ReturnOp(list(computation.results)[:count])

    block.append_to(computation.body)
    terminator = block.operations[len(block.operations) - 1]
    returned = list(terminator.operands) or [block.arguments[len(block.arguments) - 1]]
    with ir.InsertionPoint(terminator), terminator.location:
        sdy.ReturnOp(returned)
    terminator.operation.erase()
    form.main.operation.erase()


def _passed_through(block: ir.Block, at: ir.InsertionPoint) -> ir.Value:
    """A number for a body that returns nothing, and was run for a call of the host.

    XLA puts what is in a computation without results in its place, where it is no longer manual,
    and then refuses calls of the host that take nothing either.
    """
    type_ = ir.RankedTensorType.get([], ir.IntegerType.get_signless(32))
    constant = ir.Operation.parse(f"stablehlo.constant dense<0> : {type_}")
    at.insert(constant)
    block.add_argument(type_, ir.Location.unknown())
    return constant.result


def _replace_empty_arguments(form: BodyForm, block: ir.Block) -> None:
    """By constants: without elements there is one value of each type."""
    for number, boundary in reversed(list(enumerate(form.inputs))):
        if not boundary.has_elements:
            argument = block.arguments[number]
            if list(argument.uses):
                at = ir.InsertionPoint.at_block_begin(block)
                argument.replace_all_uses_with(_nothing(argument.type, at))
            block.erase_argument(number)


def _nothing(type_: ir.Type, at: ir.InsertionPoint) -> ir.Value:
    """The one value there is of a type without elements."""
    constant = ir.Operation.parse(f"stablehlo.constant dense<> : {type_}")
    at.insert(constant)
    return constant.result


def _shardings(form: BodyForm, boundaries: Sequence[Boundary], extra: int = 0) -> ir.Attribute:
    """Those of the boundaries, and of `extra` numbers that all devices have."""
    # Of hundreds of boundaries few are split differently.
    keys = [(boundary.dims, boundary.unreduced) for boundary in boundaries]
    made = {key: _sharding(form, *key) for key in set(keys)}
    whole = [_sharding(form, (), Unreduced())] * extra
    return sdy.TensorShardingPerValueAttr.get([*[made[key] for key in keys], *whole])


def _sharding(form: BodyForm, dims: Dims | None, unreduced: Unreduced) -> ir.Attribute:
    """Dimensions stay open where the partitioner may split them further, over automatic axes.

    It must not split them over an axis over which the array is unreduced.
    """
    is_closed = not form.automatic or any(axis in form.automatic for axis in unreduced.axes)
    kind: dict[str, Any] = {}
    if unreduced.reduction is not None:
        kind = {"reduction_op": unreduced.reduction}
    return sdy.TensorShardingAttr.get(
        form.mesh.symbol,
        [
            sdy.DimensionShardingAttr.get(
                [sdy.AxisRefAttr.get(axis) for axis in axes], is_closed=is_closed
            )
            for axes in dims or ()
        ],
        unreduced_axes=[sdy.AxisRefAttr.get(axis) for axis in unreduced.axes],
        **kind,
    )
