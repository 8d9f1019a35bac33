"""Rejects modules with inconsistent shardings, meshes or groups, on which XLA may abort.

XLA's partitioner terminates the process for many of these modules. All errors are reported at once,
each at its operation.

Before:  "stablehlo.all_reduce"(%x) <{replica_groups = ...mesh_axes<mesh = @mesh, axes = ["k"]>}>
After:   error: all_reduce over axis "k": the mesh is @mesh [i=4, j=2]; name one of "i", "j"
Needs:   nothing.
Leaves:  the module as it is.

MLIR's own verifiers run while the module is parsed, before this pass. They reject, in the shardings
of @main, an unknown mesh or axis, a repeated axis and a wrong rank; dense groups that repeat a
device or omit one of 0..n-1, where n is the number of ids; permutations with a repeated or negative
source or target; an all_to_all whose split dimension is not a multiple of its split count. This
pass rejects what they accept:

    form       no @main, no mesh or several, no manual axes or axes of another kind, a boundary
               without sharding
    axes       manual axes unknown or repeated; a spec over an axis that is not manual;
               a group or axis index over an axis that is unknown, repeated or not manual
    ids        dense groups that do not cover the mesh; groups and permutations with ids that no
               device has, or that join devices along an axis that is not manual
    sizes      all_gather, reduce_scatter, all_to_all results that contradict the group size;
               full dimensions and arrays beyond 64 bits; meshes beyond the 32 bits in which XLA
               counts devices
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

from jaxlib.mlir import ir
from jaxlib.mlir.dialects.builtin import ModuleOp

from ..base import Pass, PassRefused, Violation
from ..ir.body_form import BodyForm, read_body_form
from ..ir.boundary import Boundary, Dims
from ..ir.collective_ops import collectives_of, is_axis_index
from ..ir.find_ops import find_ops
from ..ir.types import element_bytes
from .collective_diagnostics import (
    axis_index_diagnostics,
    collective_diagnostics,
    no_such_axis,
    quoted,
)

_LARGEST_DIMENSION = 2**63 - 1
_LARGEST_ARRAY_BYTES = 2**63 - 1
# XLA counts partitions in 32 bits.
_LARGEST_MESH = 2**31 - 1
_CALLS = ("func.call", "stablehlo.custom_call")


@dataclass(frozen=True)
class Verify(Pass):
    """Rejects modules with inconsistent shardings, meshes or groups, on which XLA may abort."""

    name = "shmap-verify"
    code = "SHM-P01"
    keeps_bits = True

    def run(self, module: ModuleOp) -> bool:
        form = read_body_form(module)
        violations = [Violation(location, text) for location, text in _complaints(form, module)]
        if violations:
            raise PassRefused(violations)
        return False


def _complaints(form: BodyForm, module: ModuleOp) -> Iterator[tuple[ir.Location, str]]:
    too_large = list(_mesh_complaints(form))
    if too_large:
        yield form.main.location, too_large[0]
        return  # what follows may count its devices
    for text in _entry_complaints(form):
        yield form.main.location, text
    ops = find_ops(module.operation, _CALLS)
    for op in ops:
        if op.name == "func.call" and ir.FlatSymbolRefAttr(op.attributes["callee"]).value == "main":
            text = "calls @main, which is the entry; move its body to a function of its own"
            yield op.location, text
    for op in filter(is_axis_index, ops):
        for text in axis_index_diagnostics(op, form):
            yield op.location, text
    good_groups: set[ir.Attribute] = set()  # few of many differ
    for op in collectives_of(module):
        for text in collective_diagnostics(op, form, good_groups):
            yield op.location, text


def _mesh_complaints(form: BodyForm) -> Iterator[str]:
    if form.mesh.size > _LARGEST_MESH:
        sizes = " * ".join(map(str, form.mesh.shape))
        yield (
            f"the mesh {form.mesh} has {sizes} = {form.mesh.size} devices, more than "
            f"{_LARGEST_MESH}, the most that XLA can count; make an axis smaller"
        )


def _entry_complaints(form: BodyForm) -> Iterator[str]:
    made_manual = (*form.manual, *form.outer)
    for axis in made_manual:
        if axis not in form.mesh.sizes:
            yield f'manual axis "{axis}": {no_such_axis(form)}'
    for axis in dict.fromkeys(made_manual):
        if (count := made_manual.count(axis)) > 1:
            yield f'axis "{axis}" is made manual {count} times; name it once'
    good: set[tuple[ir.Type, Dims | None]] = set()  # of hundreds few differ
    for boundary in (*form.inputs, *form.outputs):
        kind = boundary.type, boundary.dims
        if kind not in good:
            complaints = list(_boundary_complaints(boundary, form))
            yield from complaints
            if not complaints:
                good.add(kind)


def _boundary_complaints(boundary: Boundary, form: BodyForm) -> Iterator[str]:
    for axis in boundary.unreduced.axes:
        if axis not in form.mesh.sizes:
            yield f'@main\'s {boundary.name} is unreduced over "{axis}": {no_such_axis(form)}'
    any_too_large = False
    for dimension, axes in enumerate(boundary.dims or ()):
        if not axes:
            continue
        where = f"@main's {boundary.name}, dimension {dimension}"
        for axis in axes:
            if axis not in form.manual:
                yield (
                    f'{where} is split over "{axis}", which @main does not make manual '
                    f"(manual: {quoted(form.manual)}); leave it out or make it manual"
                )
        size = ir.RankedTensorType(boundary.type).shape[dimension]
        full = size * form.mesh.product(axes)
        if full > _LARGEST_DIMENSION:
            any_too_large = True
            yield (
                f"{where}: {size} per device over {form.mesh.product(axes)} devices is {full} in "
                f"the full array, more than {_LARGEST_DIMENSION}"
            )
    if boundary.dims is not None and not any_too_large:
        yield from _size_complaints(boundary, form)


def _size_complaints(boundary: Boundary, form: BodyForm) -> Iterator[str]:
    block = ir.RankedTensorType(boundary.type)
    blocks = prod(form.mesh.product(axes) for axes in boundary.dims or ())
    bytes_ = prod(block.shape) * blocks * element_bytes(block.element_type)
    if bytes_ > _LARGEST_ARRAY_BYTES:
        yield (
            f"@main's {boundary.name}: the full array has {bytes_} bytes, more than "
            f"{_LARGEST_ARRAY_BYTES}; make a dimension smaller"
        )
