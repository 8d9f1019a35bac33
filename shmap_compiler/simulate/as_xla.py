"""Has the interpreter compute what XLA does, where it computes something else, or dies."""

from __future__ import annotations

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo
from shmap_passes.ir.find_ops import find_ops
from shmap_passes.ir.ops import defining_op
from shmap_passes.ir.types import Value


def compute_as_xla(module: ir.Module) -> None:
    """Adds to a module what makes its results those of XLA."""
    _compare_bits(module)
    _define_division(module)
    _define_powers(module)
    _keep_nans(module)


def _compare_bits(module: ir.Module) -> None:
    """Orders floats totally, NaNs included, where a comparison asks for it.

    The interpreter compares them as IEEE 754 numbers. The bits of a float, those of a negative one
    but for the sign reversed, are ordered as signed integers (IEEE 754-2019, 5.10).
    """
    for op in find_ops(module.operation, ["stablehlo.compare"]):
        attribute = op.attributes.get("compare_type")
        if attribute is None or "TOTALORDER" not in str(attribute):
            continue
        with ir.InsertionPoint(op), op.location:
            ordered = [_ordered_bits(value) for value in op.operands]
        for number, value in enumerate(ordered):
            op.operands[number] = value
        op.attributes["compare_type"] = stablehlo.ComparisonTypeAttr.get("SIGNED")


def _define_division(module: ir.Module) -> None:
    """Has integers divided as XLA does where StableHLO leaves it open, and the interpreter dies.

    A quotient by zero has all bits set, and the remainder is the dividend. The smallest integer
    divided by -1 is itself, and the remainder is zero.
    """
    for op in find_ops(module.operation, _DIVISIONS):
        dividend, divisor = op.operands
        tensor = ir.RankedTensorType(dividend.type)
        if not isinstance(tensor.element_type, ir.IntegerType):
            continue
        integer = tensor.element_type
        with ir.InsertionPoint(op), op.location:
            by_zero = undefined = _is_equal(divisor, _splat(tensor, 0))
            if not integer.is_unsigned:
                smallest = _is_equal(dividend, _splat(tensor, -(1 << integer.width - 1)))
                by_minus_one = _is_equal(divisor, _splat(tensor, -1))
                undefined = stablehlo.or_(by_zero, stablehlo.and_(smallest, by_minus_one))
            op.operands[1] = stablehlo.select(undefined, _splat(tensor, 1), divisor)
            largest = (1 << integer.width) - 1 if integer.is_unsigned else -1
            instead = _splat(tensor, largest) if op.name == _DIVISIONS[0] else dividend
        _replace(op, by_zero, instead)


_DIVISIONS = ("stablehlo.divide", "stablehlo.remainder")


def _is_equal(left: Value, right: Value) -> Value:
    return stablehlo.compare(left, right, stablehlo.ComparisonDirectionAttr.get("EQ"))


def _ordered_bits(value: Value) -> Value:
    """Signed integers in the order of floats."""
    tensor = ir.RankedTensorType(value.type)
    width = ir.FloatType(tensor.element_type).width
    type_ = ir.RankedTensorType.get(tensor.shape, ir.IntegerType.get_signless(width))
    bits = stablehlo.bitcast_convert(type_, value)
    sign = _splat(type_, width - 1)
    all_but_sign = _splat(type_, (1 << width - 1) - 1)
    flipped = stablehlo.and_(stablehlo.shift_right_arithmetic(bits, sign), all_but_sign)
    return stablehlo.xor(bits, flipped)


def _splat(type_: ir.RankedTensorType, value: int) -> Value:
    # IntegerAttr takes 64 signed bits: a larger number is passed as the negative one of its bits.
    bits = value if value < 1 << 63 else value - (1 << 64)
    attribute = ir.IntegerAttr.get(type_.element_type, bits)
    return stablehlo.constant(ir.DenseElementsAttr.get_splat(type_, attribute))


def _define_powers(module: ir.Module) -> None:
    """Has complex numbers to the power of zero be one, also zero, infinities and NaN."""
    for op in find_ops(module.operation, ["stablehlo.power"]):
        exponent, tensor = op.operands[1], ir.RankedTensorType(op.operands[1].type)
        if isinstance(tensor.element_type, ir.ComplexType):
            with ir.InsertionPoint(op), op.location:
                zero, one = (_complex_splat(tensor, number) for number in (0, 1))
                _replace(op, _is_equal(exponent, zero), one)


def _keep_nans(module: ir.Module) -> None:
    """Has NaN stay NaN where a float is rounded to no bits of mantissa, which name it."""
    for op in find_ops(module.operation, ["stablehlo.reduce_precision"]):
        if ir.IntegerAttr(op.attributes["mantissa_bits"]).value == 0:
            value = op.operands[0]
            with ir.InsertionPoint(op), op.location:
                is_nan = stablehlo.compare(
                    value, value, stablehlo.ComparisonDirectionAttr.get("NE")
                )
                _replace(op, is_nan, value)


def _replace(op: ir.Operation, where: Value, instead: Value) -> None:
    """Replaces the elements of the result of `op` for which `where` holds."""
    with ir.InsertionPoint.after(op), op.location:
        result = stablehlo.select(where, instead, op.results[0])
    op.results[0].replace_all_uses_except(result, [defining_op(result)])


def _complex_splat(type_: ir.RankedTensorType, value: int) -> Value:
    element = ir.ComplexType(type_.element_type).element_type
    parts = ir.RankedTensorType.get(type_.shape, element)
    real, imaginary = (
        stablehlo.constant(ir.DenseElementsAttr.get_splat(parts, ir.FloatAttr.get(element, number)))
        for number in (value, 0)
    )
    return stablehlo.complex(real, imaginary)
