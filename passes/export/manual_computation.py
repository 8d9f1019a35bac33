"""Wraps the body for Shardy: an `sdy.manual_computation` that holds the body.

func.func public @main(%arg0: tensor<8x8xf32>) -> tensor<8x8xf32> {
  %0 = sdy.manual_computation(%arg0) in_shardings=[<@mesh, [{"i"}, {}]>]
           out_shardings=[<@mesh, [{"i"}, {}]>] manual_axes={"i", "j"} (...) { body }
  return %0
}
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import func, sdy

from ..ir.body_form import BodyForm
from ..ir.boundary import Boundary, Dims, Unreduced, sharding_attribute
from ..ir.types import Value
from .full_main import new_main, replace_empty_arguments

_T = TypeVar("_T")


def wrap_in_manual_computation(form: BodyForm) -> None:
    """The body moves inline, because XLA does not combine collectives across calls.

    Arguments without elements stay outside: XLA folds them to constants, and refuses a computation
    where no argument is left.
    """
    main = new_main(form)
    passed = _with_elements(form, form.inputs)
    block = form.main.entry_block
    replace_empty_arguments(form, block)
    with ir.InsertionPoint(main.entry_block) as at, main.location:
        operands = _with_elements(form, list(main.arguments))
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


def _with_elements(form: BodyForm, each_input: Sequence[_T]) -> list[_T]:
    """Those of the inputs that have elements."""
    return [value for k, value in enumerate(each_input) if k not in form.empty_inputs]


def _passed_through(block: ir.Block, at: ir.InsertionPoint) -> Value:
    """A number for a body that returns nothing, and was run for a call of the host.

    XLA inlines a computation without results. Its operations are then not manual any more, and
    XLA rejects host calls without operands among them.
    """
    type_ = ir.RankedTensorType.get([], ir.IntegerType.get_signless(32))
    constant = ir.Operation.parse(f"stablehlo.constant dense<0> : {type_}")
    at.insert(constant)
    block.add_argument(type_, ir.Location.unknown())
    return constant.result


def _shardings(form: BodyForm, boundaries: Sequence[Boundary], extra: int = 0) -> ir.Attribute:
    """Those of the boundaries, and of `extra` numbers that all devices have."""
    made: dict[tuple[Dims | None, Unreduced], ir.Attribute] = {}  # of hundreds few differ
    shardings = []
    for boundary in boundaries:
        key = boundary.dims, boundary.unreduced
        if key not in made:
            made[key] = _sharding(form, *key)
        shardings.append(made[key])
    shardings += [_sharding(form, (), Unreduced())] * extra
    return sdy.TensorShardingPerValueAttr.get(shardings)


def _sharding(form: BodyForm, dims: Dims | None, unreduced: Unreduced) -> ir.Attribute:
    """Dimensions stay open where the partitioner may split them further, over automatic axes.

    It must not split them over an axis over which the array is unreduced.
    """
    is_closed = not form.automatic or any(axis in form.automatic for axis in unreduced.axes)
    return sharding_attribute(form.mesh.symbol, dims or (), unreduced, is_closed)
