"""What devices receive in a collective: functions from the operands of a group to its results."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from jaxlib.mlir import ir
from shmap_passes.ir.collective_ops import reduction
from shmap_passes.ir.types import Value

from shmap_compiler.base.untyped import AnyValue
from shmap_compiler.simulate.arithmetic import (
    accumulated_in,
    combiner,
    left_fold,
    result_dtype,
    rounded,
)

Group = tuple[int, ...]
Result = Callable[[Group, list[list[AnyValue]]], list[list[AnyValue]]]
"""From a group and the operands of its devices, in order, to the results of each."""

General = Callable[[ir.Operation, ir.Type], Callable[[AnyValue, AnyValue], AnyValue]]
"""Makes the function of a reduction region that is more than one op, on arrays of a type."""


def result_of(op: ir.Operation, general: General) -> Result:
    """What the devices of a group receive in `op`."""
    return _MAKERS[op.name](op, general)


def _integer(op: ir.Operation, name: str) -> int:
    return ir.IntegerAttr(op.attributes[name]).value


def _of_each(function: Callable[[list[AnyValue]], Sequence[AnyValue]]) -> Result:
    """A collective that treats each of its operands alike."""

    def result(group: Group, operands: list[list[AnyValue]]) -> list[list[AnyValue]]:
        columns = [function(list(column)) for column in zip(*operands, strict=True)]
        return [[column[rank] for column in columns] for rank in range(len(group))]

    return result


def _totals(op: ir.Operation, general: General) -> list[Callable[[Sequence[AnyValue]], AnyValue]]:
    """What reduces the values of devices, for each operand: in the type of the result."""
    simple = combiner(reduction(op))
    dtype = result_dtype(op)
    wider = accumulated_in(reduction(op), dtype)
    element = ir.RankedTensorType(op.results[0].type).element_type

    def total(operand: Value) -> Callable[[Sequence[AnyValue]], AnyValue]:
        shape = ir.RankedTensorType(operand.type).shape
        combine = simple or general(op, ir.RankedTensorType.get(shape, element))

        def run(xs: Sequence[AnyValue]) -> AnyValue:
            given = [x.astype(dtype, copy=False).astype(wider, copy=False) for x in xs]
            return rounded(left_fold(combine, given), dtype)

        return run

    return [total(operand) for operand in op.operands]


def _all_reduce(op: ir.Operation, general: General) -> Result:
    totals = _totals(op, general)

    def result(group: Group, operands: list[list[AnyValue]]) -> list[list[AnyValue]]:
        columns = zip(totals, zip(*operands, strict=True), strict=True)
        reduced = [total(column) for total, column in columns]
        return [list(reduced) for _ in group]

    return result


def _reduce_scatter(op: ir.Operation, general: General) -> Result:
    (total,) = _totals(op, general)
    dim = _integer(op, "scatter_dimension")
    return _of_each(lambda xs: np.split(total(xs), len(xs), dim))


def _all_gather(op: ir.Operation, _: General) -> Result:
    dim = _integer(op, "all_gather_dim")
    return _of_each(lambda xs: [np.concatenate(xs, dim)] * len(xs))


def _all_to_all(op: ir.Operation, _: General) -> Result:
    split, concat = _integer(op, "split_dimension"), _integer(op, "concat_dimension")

    def exchange(xs: list[AnyValue]) -> list[AnyValue]:
        parts = [np.split(x, len(xs), split) for x in xs]
        return [np.concatenate(received, concat) for received in zip(*parts, strict=True)]

    return _of_each(exchange)


def _broadcast(op: ir.Operation, _: General) -> Result:
    return _of_each(lambda xs: [xs[0]] * len(xs))


def _permute(op: ir.Operation, _: General) -> Result:
    pairs = np.array(ir.DenseIntElementsAttr(op.attributes["source_target_pairs"])).reshape(-1, 2)
    source_of = {target: source for source, target in pairs.tolist()}

    def result(group: Group, operands: list[list[AnyValue]]) -> list[list[AnyValue]]:
        sent = dict(zip(group, operands, strict=True))
        return [
            sent[source_of[device]]
            if device in source_of
            else [np.zeros_like(x) for x in sent[device]]
            for device in group
        ]

    return result


def _ragged_all_to_all(op: ir.Operation, _: General) -> Result:
    def result(group: Group, operands: list[list[AnyValue]]) -> list[list[AnyValue]]:
        received = []
        for rank in range(len(group)):
            output = operands[rank][1].copy()
            for rows, _, *slices, _ in operands:
                for_this = [np.split(each, len(group))[rank].tolist() for each in slices]
                for start, count, to in zip(*for_this, strict=True):
                    output[to : to + count] = rows[start : start + count]
            received.append([output])
        return received

    return result


_MAKERS: dict[str, Callable[[ir.Operation, General], Result]] = {
    "stablehlo.all_reduce": _all_reduce,
    "stablehlo.reduce_scatter": _reduce_scatter,
    "stablehlo.all_gather": _all_gather,
    "stablehlo.all_to_all": _all_to_all,
    "stablehlo.collective_broadcast": _broadcast,
    "stablehlo.collective_permute": _permute,
    "stablehlo.custom_call": _ragged_all_to_all,
}
