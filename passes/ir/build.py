"""Builds operations of StableHLO with one result, at the current insertion point and location.

The functions, but for `like`, are named as in `jaxlib.mlir.dialects.stablehlo`. That module has a
class for each operation and infers the types of results, which takes several times as long.
"""

from __future__ import annotations

from collections.abc import Sequence

from jaxlib.mlir import ir
from jaxlib.mlir.dialects.stablehlo import ComparisonDirectionAttr

from .types import Value, element_of, shape_of, tensor


def constant(value: ir.Attribute) -> Value:
    return _built("constant", value.type, [], {"value": value})


def add(left: Value, right: Value) -> Value:
    return _built("add", left.type, [left, right])


def subtract(left: Value, right: Value) -> Value:
    return _built("subtract", left.type, [left, right])


def multiply(left: Value, right: Value) -> Value:
    return _built("multiply", left.type, [left, right])


def remainder(left: Value, right: Value) -> Value:
    return _built("remainder", left.type, [left, right])


def less(left: Value, right: Value) -> Value:
    """Whether `left` is less than `right`."""
    type_ = tensor(shape_of(left), ir.IntegerType.get_signless(1))
    direction = ComparisonDirectionAttr.get("LT")
    return _built("compare", type_, [left, right], {"comparison_direction": direction})


def select(condition: Value, then: Value, otherwise: Value) -> Value:
    return _built("select", then.type, [condition, then, otherwise])


def convert(value: Value, element: ir.Type) -> Value:
    """The value with elements of another type, or itself if they have it."""
    if element_of(value) == element:
        return value
    return _built("convert", tensor(shape_of(value), element), [value])


def reshape(type_: ir.Type, value: Value) -> Value:
    return _built("reshape", type_, [value])


def transpose(value: Value, order: Sequence[int]) -> Value:
    """The value whose dimension `k` is dimension `order[k]` of another."""
    shape = shape_of(value)
    type_ = tensor([shape[dimension] for dimension in order], element_of(value))
    return _built("transpose", type_, [value], {"permutation": _numbers(order)})


def broadcast_in_dim(type_: ir.Type, value: Value, dimensions: Sequence[int]) -> Value:
    return _built(
        "broadcast_in_dim", type_, [value], {"broadcast_dimensions": _numbers(dimensions)}
    )


def concatenate(values: Sequence[Value], dimension: int) -> Value:
    shape = shape_of(values[0])
    shape[dimension] = sum(shape_of(value)[dimension] for value in values)
    number = ir.IntegerAttr.get(ir.IntegerType.get_signless(64), dimension)
    type_ = tensor(shape, element_of(values[0]))
    return _built("concatenate", type_, values, {"dimension": number})


def slice_(value: Value, starts: Sequence[int], ends: Sequence[int]) -> Value:
    """The indices from `starts` to `ends`."""
    shape = [end - start for start, end in zip(starts, ends, strict=True)]
    attributes = {
        "start_indices": _numbers(starts),
        "limit_indices": _numbers(ends),
        "strides": _numbers([1] * len(shape)),
    }
    return _built("slice", tensor(shape, element_of(value)), [value], attributes)


def dynamic_slice(value: Value, starts: Sequence[Value], sizes: Sequence[int]) -> Value:
    type_ = tensor(sizes, element_of(value))
    return _built("dynamic_slice", type_, [value, *starts], {"slice_sizes": _numbers(sizes)})


def dynamic_update_slice(whole: Value, piece: Value, starts: Sequence[Value]) -> Value:
    return _built("dynamic_update_slice", whole.type, [whole, piece, *starts])


def like(op: ir.Operation, type_: ir.Type, operands: Sequence[Value]) -> Value:
    """What an operation gives for other operands, as a value of another type.

    Its attributes, its region and its location are those of `op`.
    """
    copy = op.clone().operation
    for number, operand in enumerate(operands):
        copy.operands[number] = operand
    result = copy.results[0]
    result.set_type(type_)
    return result


def _built(
    name: str,
    type_: ir.Type,
    operands: Sequence[Value],
    attributes: dict[str, ir.Attribute] | None = None,
) -> Value:
    return ir.Operation.create(f"stablehlo.{name}", [type_], operands, attributes).result


def _numbers(values: Sequence[int]) -> ir.Attribute:
    return ir.DenseI64ArrayAttr.get(values)
