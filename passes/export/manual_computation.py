"""Wraps the body for Shardy: an `sdy.manual_computation` that holds the body.

func.func public @main(%arg0: tensor<8x8xf32>) -> tensor<8x8xf32> {
  %0 = sdy.manual_computation(%arg0) in_shardings=[<@mesh, [{"i"}, {}]>]
           out_shardings=[<@mesh, [{"i"}, {}]>] manual_axes={"i", "j"} (...) { body }
  return %0
}
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import func, sdy

from ..ir.body_form import BodyForm
from ..ir.boundary import Boundary, Dims, Unreduced
from ..ir.memoize import memoized
from ..ir.types import Value
from .full_main import new_main, replace_empty_arguments


def wrap_in_manual_computation(form: BodyForm) -> None:
    """The body moves inline, because XLA does not combine collectives across calls.

    Arguments without elements stay outside: XLA folds them to constants, and refuses a computation
    where no argument is left.
    """
    main = new_main(form)
    passed = [boundary for boundary in form.inputs if boundary.has_elements]
    block = form.main.entry_block
    replace_empty_arguments(form, block)
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
        [_dimension_sharding(axes, is_closed) for axes in dims or ()],
        unreduced_axes=[sdy.AxisRefAttr.get(axis) for axis in unreduced.axes],
        **kind,
    )


@memoized
def _dimension_sharding(axes: tuple[str, ...], is_closed: bool) -> ir.Attribute:
    return sdy.DimensionShardingAttr.get(
        [sdy.AxisRefAttr.get(axis) for axis in axes], is_closed=is_closed
    )
