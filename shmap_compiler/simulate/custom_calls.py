"""What custom calls mean to the player."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxlib.mlir import ir
from shmap_passes.ir.collective_ops import (
    call_target,
    indexed_axes,
    is_axis_index,
    is_collective,
)
from shmap_passes.ir.mesh import Mesh

from shmap_compiler.simulate import lapack
from shmap_compiler.simulate.arithmetic import poisoned
from shmap_compiler.simulate.collective_steps import collective_step, not_on_mesh
from shmap_compiler.simulate.crossings import INTO, OUT_OF, crossing_call, shape
from shmap_compiler.simulate.module import ReadModule
from shmap_compiler.simulate.numbering import Numbering
from shmap_compiler.simulate.places import place_of
from shmap_compiler.simulate.segments import element_type
from shmap_compiler.simulate.steps import Computed, Position, Same, Step, Unsupported

_IDENTITIES = frozenset({"Sharding", "annotate_device_placement", "LayoutConstraint"})
_BUFFER = "AllocateBuffer"


def custom_call_step(op: ir.Operation, module: ReadModule, numbering: Numbering) -> Step:
    """The step of a custom call; one that is an error to play if its meaning is not known."""
    place, numbers, target = place_of(op), numbering.around(op), call_target(op)
    if is_collective(op):
        return collective_step(op, module, numbering)
    if target in (INTO, OUT_OF):
        return crossing_call(op, target, numbering, module)
    if is_axis_index(op):
        axes = indexed_axes(op)
        for axis in axes:
            if axis not in module.mesh.sizes:
                found = f'the index along axis "{axis}", which {module.mesh} lacks'
                return not_on_mesh(op, found, numbering)
        ranks = [_rank(device, axes, module.mesh) for device in range(module.mesh.size)]
        return Position(place, *numbers, scalars(op, ranks))
    if target in _IDENTITIES:
        before, after = op.operands[0].type, op.results[0].type
        if shape(before) != shape(after):
            fix = "write @SPMDFullToShardShape or @SPMDShardToFullShape, which cut and join arrays"
            found = f"@{target} from {before} to {after}"
            return Unsupported(place, *numbers, found, fix, "a result of the same shape")
        return Same(place, *numbers)
    if target == _BUFFER:
        return Computed(place, *numbers, poisoned(op))
    if (computed := lapack.call_of(op, target)) is not None:
        return Computed(place, *numbers, computed)
    if "callback" in target:
        found = "a call back into Python, whose function the module does not contain"
        fix = "remove the callback or print, or run the program on devices"
    else:
        found = f"the custom call @{target}, whose meaning is not known"
        fix = "replace it by operations of jax.lax, or run the program on devices"
    return Unsupported(place, *numbers, found, fix)


def scalars(op: ir.Operation, values: Sequence[int]) -> tuple[np.ndarray, ...]:
    """Numbers as arrays of the type of an op's result."""
    dtype = element_type(op.results[0]).dtype
    return tuple(np.array(value, dtype) for value in values)


def _rank(device: int, axes: Sequence[str], mesh: Mesh) -> int:
    at, index = mesh.coordinates(device), 0
    for axis in axes:
        index = index * mesh.sizes[axis] + at[axis]
    return index
