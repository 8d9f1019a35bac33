"""Outlines ops into modules of their own, which the interpreter evaluates."""

from __future__ import annotations

import io
import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import func, stablehlo
from shmap_passes.ir.ops import replace_operands, walk
from shmap_passes.ir.types import Value

from shmap_compiler.base.untyped import AnyValue, Unchecked
from shmap_compiler.simulate.as_xla import compute_as_xla
from shmap_compiler.simulate.element_types import (
    ElementType,
    UnknownElementType,
    known_element_type,
)
from shmap_compiler.simulate.steps import Segment

CALLS = {"func.call": "callee", "stablehlo.composite": "decomposition"}
"""The ops that call a function, and the attribute that names it."""

_numbers = itertools.count()


def callee_name(op: ir.Operation) -> str:
    """The function that an op of `CALLS` calls."""
    return ir.FlatSymbolRefAttr(op.attributes[CALLS[op.name]]).value


def outline(
    ops: Sequence[ir.Operation],
    inputs: Sequence[Value],
    outputs: Sequence[Value],
    functions: Mapping[str, func.FuncOp],
) -> Segment:
    """A segment that computes `outputs` of `inputs` as `ops` do."""
    in_types = tuple(map(element_type, inputs))
    out_types = tuple(map(element_type, outputs))
    module = ir.Module.create()
    taken = [t for v, e in zip(inputs, in_types, strict=True) for t in _carriers(v, e)]
    given = [t for v, e in zip(outputs, out_types, strict=True) for t in _carriers(v, e)]
    with ir.InsertionPoint(module.body):
        main = func.FuncOp("main", (taken, given), visibility="public")
        for name in _needed(ops, functions):
            _without_attributes(functions[name].operation.clone())
    with ir.InsertionPoint(main.add_entry_block()):
        arguments = iter(main.arguments)
        mapping: dict[Any, Any] = {
            v: _from_carriers(v, e, arguments) for v, e in zip(inputs, in_types, strict=True)
        }
        for op in ops:
            copy = op.clone()
            _without_attributes(copy)
            replace_operands(copy, mapping)
            mapping.update(zip(op.results, copy.results, strict=True))
        func.ReturnOp(
            [
                carrier
                for v, e in zip(outputs, out_types, strict=True)
                for carrier in _to_carriers(mapping[v], e)
            ]
        )
    return _finished(module, in_types, out_types)


def _finished(
    module: ir.Module, inputs: tuple[ElementType, ...], outputs: tuple[ElementType, ...]
) -> Segment:
    """The segment of a module, which computes what XLA does where the interpreter does not."""
    _protect_operands(module)
    compute_as_xla(module)
    return Segment(next(_numbers), _bytecode(module), inputs, outputs)


def _protect_operands(module: ir.Module) -> None:
    """Has scatters update copies: in jaxlib 0.10 the interpreter writes into their operands."""
    scatters = [op for op in walk(module.operation) if op.name == "stablehlo.scatter"]
    for op in scatters:
        for number in range(len(op.results)):
            operand = op.operands[number]
            shape = ir.RankedTensorType(operand.type).shape
            with ir.InsertionPoint(op), op.location:
                copy = stablehlo.slice(operand, [0] * len(shape), shape, [1] * len(shape))
            op.operands[number] = copy


def elementwise(op: ir.Operation, type_: ir.Type, functions: Mapping[str, func.FuncOp]) -> Segment:
    """A segment that applies the reduction region of `op` to the elements of two arrays.

    Args:
      type_: of both arrays and of their combination; its elements are of the type of the region.
    """
    tensor = ir.RankedTensorType(type_)
    element = known_element_type(str(tensor.element_type))
    module = ir.Module.create()
    carriers = [ir.RankedTensorType.get(tensor.shape, ir.Type.parse(c)) for c in element.carriers]
    with ir.InsertionPoint(module.body):
        main = func.FuncOp("main", ([*carriers, *carriers], carriers), visibility="public")
        for name in _needed([op], functions):
            _without_attributes(functions[name].operation.clone())
    with ir.InsertionPoint(main.add_entry_block()):
        arguments = iter(main.arguments)
        pair = [_converted(type_, element, arguments) for _ in range(2)]
        mapped = stablehlo.MapOp(type_, pair, list(range(tensor.rank)))
        region = op.regions[0].blocks[0]
        block = mapped.regions[0].blocks.append(
            *[a.type for a in region.arguments],
            arg_locs=[ir.Location.unknown()] * len(region.arguments),
        )
        mapping: dict[Any, Any] = dict(zip(region.arguments, block.arguments, strict=True))
        with ir.InsertionPoint(block):
            for each in region.operations:
                copy = each.operation.clone()
                _without_attributes(copy)
                replace_operands(copy, mapping)
                mapping.update(zip(each.operation.results, copy.results, strict=True))
        func.ReturnOp(_to_carriers(mapped.results[0], element))
    return _finished(module, (element, element), (element,))


def element_type(value: Value) -> ElementType:
    """The element type of a tensor. Raises UnknownElementType if it cannot be simulated."""
    if not isinstance(value.type, ir.RankedTensorType):
        raise UnknownElementType(str(value.type))
    return known_element_type(str(value.type.element_type))


def _carriers(value: Value, element: ElementType) -> list[ir.Type]:
    shape = ir.RankedTensorType(value.type).shape
    return [ir.RankedTensorType.get(shape, ir.Type.parse(c)) for c in element.carriers]


def _from_carriers(value: Value, element: ElementType, arguments: AnyValue) -> AnyValue:
    return _converted(value.type, element, arguments)


def _converted(type_: ir.Type, element: ElementType, arguments: AnyValue) -> AnyValue:
    first = next(arguments)
    if element.conversion == "complex":
        return stablehlo.complex(first, next(arguments))
    if element.conversion == "bitcast_convert":
        return stablehlo.bitcast_convert(type_, first)
    return stablehlo.convert(type_, first) if element.conversion else first


def _to_carriers(value: Unchecked, element: ElementType) -> list[AnyValue]:
    if element.conversion == "complex":
        return [stablehlo.real(value), stablehlo.imag(value)]
    (carrier,) = _carriers(value, element)
    if element.conversion == "bitcast_convert":
        return [stablehlo.bitcast_convert(carrier, value)]
    return [stablehlo.convert(carrier, value) if element.conversion else value]


def _needed(ops: Iterable[ir.Operation], functions: Mapping[str, func.FuncOp]) -> list[str]:
    """The functions that ops call, and that those call."""
    found: dict[str, None] = {}
    waiting = [each for op in ops for each in walk(op)]
    while waiting:
        op = waiting.pop()
        if op.name in CALLS and (name := callee_name(op)) not in found:
            found[name] = None
            waiting += walk(functions[name].operation)
    return list(found)


def _without_attributes(op: ir.Operation) -> None:
    """Removes attributes of other dialects: shardings name meshes that the segment lacks."""
    for each in walk(op):
        of_values = ("arg_attrs", "res_attrs") if each.name == "func.func" else ()
        for name in [named if isinstance(named, str) else named.name for named in each.attributes]:
            if "." in name or name in of_values:
                del each.attributes[name]


def _bytecode(module: ir.Module) -> bytes:
    buffer = io.BytesIO()
    module.operation.write_bytecode(buffer)
    return buffer.getvalue()
