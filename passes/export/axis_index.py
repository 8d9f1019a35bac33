"""The index of a device along mesh axes, as arithmetic on `stablehlo.partition_id`.

`partition_id` is the row-major position of a device in the mesh, so the index along an axis is one
digit of it: (partition_id / stride) % size. In a region that is manual over some axes only,
`partition_id` differs between the devices that share a value. Shardy allows it inside a computation
that is manual over the remaining axes as well; GSPMD requires that the result is marked as manual
and converted to the sharding of the region.
"""

from __future__ import annotations

from collections.abc import Sequence

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import sdy, stablehlo

from ..ir.body_form import BodyForm
from ..ir.mesh import Mesh
from ..ir.sharding_text import FULLY_MANUAL, region_sharding
from ..ir.types import Value
from .sharding_calls import sharding_call


def axis_index(form: BodyForm, axes: Sequence[str], type_: ir.Type, partitioner: str) -> Value:
    """Builds the row-major index along `axes`, first axis major, as a scalar of integer `type_`."""
    if form.mesh.product(axes) == 1:
        return _constant(type_, 0)
    if partitioner == "shardy":
        return _for_shardy(form, axes, type_)
    return _for_gspmd(form, axes, type_)


def _for_shardy(form: BodyForm, axes: Sequence[str], type_: ir.Type) -> Value:
    if not form.automatic:
        return _index(stablehlo.partition_id(), form.mesh, axes, type_)
    scalar = sdy.TensorShardingAttr.get(form.mesh.symbol, [])
    computation = sdy.ManualComputationOp(
        [type_],
        [],
        sdy.TensorShardingPerValueAttr.get([]),
        sdy.TensorShardingPerValueAttr.get([scalar]),
        sdy.ManualAxesAttr.get([ir.StringAttr.get(axis) for axis in form.automatic]),
    )
    with ir.InsertionPoint(ir.Block.create_at_start(computation.body)):
        sdy.ReturnOp([_index(stablehlo.partition_id(), form.mesh, axes, type_)])
    return computation.results[0]


def _for_gspmd(form: BodyForm, axes: Sequence[str], type_: ir.Type) -> Value:
    device = stablehlo.partition_id()
    # The partitioner infers this elsewhere, but not in the condition of a loop.
    device.owner.attributes["mhlo.sharding"] = ir.StringAttr.get(FULLY_MANUAL)
    index = _index(device, form.mesh, axes, type_)
    if not form.is_partly_manual:
        return index
    index = sharding_call("Sharding", index, type_, FULLY_MANUAL)
    region = region_sharding(form.mesh, 0, form.region)
    return sharding_call("SPMDShardToFullShape", index, type_, region)


def _index(device: Value, mesh: Mesh, axes: Sequence[str], type_: ir.Type) -> Value:
    def constant(value: int) -> Value:
        return _constant(device.type, value)

    def digit(size: int, stride: int) -> Value:
        value = device
        if stride > 1:
            value = stablehlo.divide(value, constant(stride))
        if size * stride < mesh.size:
            value = stablehlo.remainder(value, constant(size))
        return value

    major, *minor = _digits(mesh, axes)
    index = digit(*major)
    for size, stride in minor:
        index = stablehlo.add(stablehlo.multiply(index, constant(size)), digit(size, stride))
    return stablehlo.convert(type_, index)


def _digits(mesh: Mesh, axes: Sequence[str]) -> list[tuple[int, int]]:
    """(size, stride) of each digit of the index; axes that are neighbours in the mesh make one."""
    digits: list[tuple[int, int]] = []
    for axis in axes:
        size, stride = mesh.sizes[axis], mesh.stride(axis)
        if size == 1:
            continue
        if digits and digits[-1][1] == size * stride:
            digits[-1] = (digits[-1][0] * size, stride)
        else:
            digits.append((size, stride))
    return digits


def _constant(type_: ir.Type, value: int) -> Value:
    element = ir.IntegerAttr.get(ir.RankedTensorType(type_).element_type, value)
    return stablehlo.constant(ir.DenseElementsAttr.get_splat(type_, element))
