"""Lets a module in body form return the values that it computes on the way.

    %1 = stablehlo.sine %0 : tensor<2xf32>          %1 = stablehlo.sine %0 : tensor<2xf32>
    ...                                             ...
    return %9 : tensor<2xf32>                       %r = stablehlo.reshape %1 : ... tensor<1x2xf32>
                                                    return %r : tensor<1x2xf32>

The blocks of the devices are stacked in a new first dimension, so that nothing has to be known of
how a value is placed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import func, stablehlo
from jaxlib.mlir.dialects.builtin import ModuleOp
from shmap_passes import make_context
from shmap_passes.ir.body_form import BodyForm, read_body_form
from shmap_passes.ir.ops import defining_op, free_values, terminator

from shmap_compiler.base.untyped import AnyValue, Unchecked
from shmap_compiler.simulate.element_types import ELEMENT_TYPES
from shmap_compiler.simulate.places import SourcePlace, place_of


@dataclass(frozen=True)
class InnerValue:
    """A result of an operation in the entry block.

    Attributes:
      op: the number of the operation in the block.
      result: the number of its result.
      place: the operation.
    """

    op: int
    result: int
    place: SourcePlace


def values_behind(text: str, result: int) -> list[InnerValue]:
    """The tensors from which a result of `@main` is computed, in program order.

    Constants are left out.
    """
    with make_context(), ir.Location.unknown():
        _module, body = _parsed(text)
        ops, end = _entry(body)
        needed: set[Any] = {end.operands[result]}
        found: list[InnerValue] = []
        for number, op in reversed(list(enumerate(ops))):
            values = [(k, value) for k, value in enumerate(op.results) if value in needed]
            if not values:
                continue
            needed.update(free_values([op]))
            if op.name != "stablehlo.constant":
                place = place_of(op)
                found += [InnerValue(number, k, place) for k, v in values[::-1] if _is_tensor(v)]
        return found[::-1]


def stacked_devices(text: str) -> list[int]:
    """The devices whose blocks `returning` stacks: all of them, or one along automatic axes."""
    with make_context(), ir.Location.unknown():
        _module, body = _parsed(text)
        at = [body.mesh.coordinates(device) for device in range(body.mesh.size)]
        return [d for d, index in enumerate(at) if not any(index[a] for a in body.automatic)]


def returning(text: str, values: Sequence[tuple[int, int]]) -> str:
    """The module with other results: (number of an operation, number of its result) of each.

    The blocks of the devices are stacked in a new first dimension.
    """
    with make_context(), ir.Location.unknown():
        module, body = _parsed(text)
        ops, end = _entry(body)
        with ir.InsertionPoint(end):
            stacked = [_stacked(ops[op].results[result]) for op, result in values]
            func.ReturnOp(stacked)
        end.erase()
        main, inputs = body.main, list(body.main.type.inputs)
        type_ = ir.FunctionType.get(inputs, [value.type for value in stacked])
        main.attributes["function_type"] = ir.TypeAttr.get(type_)
        axes = ", ".join(f'"{axis}"' for axis in body.region)
        attributes = []
        for value in stacked:
            dims = ", ".join([f"{{{axes}}}", *["{}"] * (ir.RankedTensorType(value.type).rank - 1)])
            sharding = ir.Attribute.parse(f"#sdy.sharding<@{body.mesh.symbol}, [{dims}]>")
            attributes.append(ir.DictAttr.get({"sdy.sharding": sharding}))
        main.attributes["res_attrs"] = ir.ArrayAttr.get(attributes)
        return str(module.operation.get_asm(enable_debug_info=True))


def _parsed(text: str) -> tuple[ir.Module, BodyForm]:
    """A module, which has to be kept as long as what is read from it."""
    module = ir.Module.parse(text)
    opview = module.operation.opview
    assert isinstance(opview, ModuleOp), "Module.parse returns modules only"
    return module, read_body_form(opview)


def _entry(body: BodyForm) -> tuple[list[ir.Operation], ir.Operation]:
    """The operations of the entry block, and its end."""
    block = body.main.entry_block
    return [each.operation for each in block.operations], terminator(block)


def _stacked(value: Unchecked) -> AnyValue:
    tensor, op = ir.RankedTensorType(value.type), defining_op(value)
    location = ir.Location.unknown() if op is None else op.location
    type_ = ir.RankedTensorType.get([1, *tensor.shape], tensor.element_type)
    return stablehlo.reshape(type_, value, loc=location)


def _is_tensor(value: Unchecked) -> bool:
    type_ = value.type
    if not isinstance(type_, ir.RankedTensorType):
        return False
    return str(type_.element_type) in ELEMENT_TYPES
