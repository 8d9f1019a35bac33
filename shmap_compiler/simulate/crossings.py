"""From the border of per-device code to the steps in which devices cross it.

Three forms describe a border: attributes of `@main` in body form, `sdy.manual_computation`, and
GSPMD's custom calls @SPMDFullToShardShape and @SPMDShardToFullShape.
"""

from __future__ import annotations

from collections.abc import Sequence

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import sdy
from shmap_passes.ir.body_form import BodyForm
from shmap_passes.ir.boundary import Boundary
from shmap_passes.ir.ops import defining_op
from shmap_passes.ir.types import Value
from shmap_passes.ir.unverified import manual_axes

from shmap_compiler.simulate import borders
from shmap_compiler.simulate.cuts import Cut
from shmap_compiler.simulate.module import ReadModule
from shmap_compiler.simulate.numbering import Numbering
from shmap_compiler.simulate.places import SourcePlace, place_of
from shmap_compiler.simulate.steps import Block, Enter, Leave, Step, Unsupported

INTO, OUT_OF = "SPMDFullToShardShape", "SPMDShardToFullShape"
"""The custom calls of GSPMD."""


def around_body(
    form: BodyForm, body: Block, numbering: Numbering, module: ReadModule
) -> tuple[Block, tuple[list[ir.Type], list[ir.Type]]]:
    """A module in body form, from full arrays to full arrays; the types of these."""
    inputs = [boundary.full_type(form.mesh) for boundary in form.inputs]
    outputs = [boundary.full_type(form.mesh) for boundary in form.outputs]
    place = place_of(form.main.operation)
    arguments = tuple(numbering.fresh() for _ in body.arguments)
    results = tuple(numbering.fresh() for _ in body.results)
    enter = Enter(place, arguments, body.arguments, _cuts_of_body(form, form.inputs, inputs))
    outs = _cuts_of_body(form, form.outputs, outputs)
    leave = _leave(place, body.results, results, outs, outputs, module)
    return Block(arguments, (enter, *body.steps, leave), results), (inputs, outputs)


def _cuts_of_body(
    form: BodyForm, side: Sequence[Boundary], types: Sequence[ir.Type]
) -> tuple[Cut | None, ...]:
    return tuple(
        None
        if each.dims is None
        else borders.by_axes(form.mesh, each.dims, shape(t), form.region, each.unreduced.axes)
        for each, t in zip(side, types, strict=True)
    )


def around_region(
    op: ir.Operation, body: Block, numbering: Numbering, module: ReadModule
) -> list[Step]:
    """The steps of a `sdy.manual_computation`."""
    place, (operands, results) = place_of(op), numbering.around(op)
    outs = _cuts_of_region(op, "out_shardings", list(op.results), module)
    types = [value.type for value in op.results]
    ins = _cuts_of_region(op, "in_shardings", list(op.operands), module)
    return [
        Enter(place, operands, body.arguments, ins),
        *body.steps,
        _leave(place, body.results, results, outs, types, module),
    ]


def _cuts_of_region(
    op: ir.Operation, name: str, values: Sequence[Value], module: ReadModule
) -> tuple[Cut | None, ...]:
    region = manual_axes(op.attributes["manual_axes"]) or ()
    shardings = sdy.TensorShardingPerValueAttr(op.attributes[name]).shardings
    for sharding in shardings:
        mesh = module.mesh_of(sdy.TensorShardingAttr(sharding).mesh_or_ref)
        if mesh.size > 1 and mesh.axes != module.mesh.axes:
            raise borders.UnreadableSharding(
                f"{sharding} of {place_of(op)}, on {mesh}, where another region is on {module.mesh}"
            )
    return tuple(
        borders.read_sdy(sharding, module.mesh, shape(value.type), region)
        if isinstance(value.type, ir.RankedTensorType)
        else None
        for sharding, value in zip(shardings, values, strict=True)
    )


def crossing_call(op: ir.Operation, target: str, numbering: Numbering, module: ReadModule) -> Step:
    """The step of one of GSPMD's two custom calls."""
    place, (operands, results) = place_of(op), numbering.around(op)
    if target == INTO:
        text = _sharding_text(defining_op(op.operands[0]))
        region = _sharding_text(op)
        cut = borders.read_text(text, shape(op.operands[0].type), module.mesh.size, region)
        if _shape_of_blocks(cut) != shape(op.results[0].type):
            return _of_other_blocks(op, text, numbering)
        return Enter(place, operands, results, (cut,))
    type_ = op.results[0].type
    region = _text_of_block(op.operands[0])
    text = _sharding_text(op)
    cut = borders.read_text(text, shape(type_), module.mesh.size, region)
    if _shape_of_blocks(cut) != shape(op.operands[0].type):
        return _of_other_blocks(op, text, numbering)
    return _leave(place, operands, results, (cut,), [type_], module)


def _shape_of_blocks(cut: Cut) -> tuple[int, ...]:
    """All devices have blocks of one shape."""
    return tuple(stop - start for start, stop in cut.windows[0])


def _of_other_blocks(op: ir.Operation, text: str, numbering: Numbering) -> Unsupported:
    before, after = op.operands[0].type, op.results[0].type
    found = f"from {before} to {after} with the sharding {text}"
    fix = "give the block the size of the array divided by the number of parts"
    needed = "blocks that are the parts of the array"
    return Unsupported(place_of(op), *numbering.around(op), found, fix, needed)


def _sharding_text(op: ir.Operation | None) -> str:
    """The sharding that an op has as text."""
    text = None if op is None else op.attributes.get("mhlo.sharding")
    if not isinstance(text, ir.StringAttr):
        raise borders.UnreadableSharding("of a value that enters or leaves a region: none")
    return text.value


def _text_of_block(block: Value) -> str:
    """The sharding of a block that leaves; all axes are manual if nothing says it."""
    made = defining_op(block)
    has_text = made is not None and "mhlo.sharding" in made.attributes
    return _sharding_text(made) if has_text else "{manual}"


def _leave(
    place: SourcePlace,
    operands: tuple[int, ...],
    results: tuple[int, ...],
    cuts: tuple[Cut | None, ...],
    types: Sequence[ir.Type],
    module: ReadModule,
) -> Leave:
    everyone = (tuple(range(module.mesh.size)),)
    groups = next((cut.groups for cut in cuts if cut is not None), everyone)
    return Leave(place, operands, results, groups, cuts=cuts, shapes=tuple(map(shape, types)))


def shape(type_: ir.Type) -> tuple[int, ...]:
    """The shape of a tensor; () of anything else."""
    return tuple(ir.RankedTensorType(type_).shape) if isinstance(type_, ir.RankedTensorType) else ()
