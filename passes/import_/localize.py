"""Rewrites @main from full arrays to the blocks of one device, once all crossings are known."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import func, sdy
from jaxlib.mlir.dialects.builtin import ModuleOp

from ..base import PassRefused, Violation
from ..ir.body_form import MANUAL_AXES
from ..ir.boundary import SHARDING, value_attributes
from ..ir.collective_ops import is_axis_index
from ..ir.constants import CONSTANT, with_type
from ..ir.inline_calls import functions_of, reaches
from ..ir.mesh import Mesh
from ..ir.ops import PARTITIONS, REPLICAS, is_token, terminator, walk
from ..ir.types import Value
from .crossing import Crossing
from .full_values import FullValues
from .name_groups import sdy_mesh
from .outside_ops import has_effect, is_dead, is_hint, splat
from .placement import Placement
from .reshard import reshard
from .splits import Splits


def localize(
    module: ModuleOp,
    main: func.FuncOp,
    mesh: Mesh,
    crossings: Sequence[Crossing],
    inside: set[ir.Operation],
    hints: dict[Value, Placement],
) -> None:
    """Makes @main the program of one device.

    Raises:
      PassRefused: what is outside of the regions is not the program of one device.
    """
    splits = Splits(hints)
    values = FullValues(
        {each.op: each for each in crossings}, inside, _acting_functions(module), splits
    )
    block = main.entry_block
    values.add_main(block)
    if splits.violations:
        raise PassRefused(splits.violations)
    inputs = [_placement(splits, value) for value in block.arguments]
    outputs = [_placement(splits, value) for value in terminator(block).operands]
    _split(values, mesh)
    _convert(splits, mesh)
    for each in crossings:
        each.op.results[0].replace_all_uses_with(each.op.operands[0])
        each.op.erase()
    for op in reversed(values.outside):
        _clean(op)
    _erase_dead(block, inside)
    _set_types(main, mesh, inputs, outputs)


def _acting_functions(module: ModuleOp) -> set[str]:
    """The functions that have an effect, communicate, or depend on the device."""
    acting = {
        name
        for name, function in functions_of(module).items()
        if any(has_effect(op) or is_axis_index(op) for op in walk(function.operation))
    }
    return reaches(module, acting)


def _placement(splits: Splits, value: Value) -> Placement | None:
    if is_token(value.type):
        return None
    return splits.placement(value) if splits.is_full(value) else Placement.whole(value.type)


def _split(values: FullValues, mesh: Mesh) -> None:
    """Gives each full value the type of one device's block."""
    splits = values.splits
    constants = [
        (op, k, like if isinstance(like, Placement) else splits.placement(like))
        for op, k, like in splits.constants
    ]
    wanted = [
        (value, placement, placement.block_type(value.type, mesh))
        for value in splits.all()
        for placement in [splits.placement(value)]
    ]
    violations = [
        *_uneven_blocks(values, mesh),
        *_constant_summands(constants),
        *values.summands(),
    ] or [
        Violation(value.location, f"{value.type} cannot be split as {placement}")
        for value, placement, type_ in wanted
        if type_ is None
    ]
    if violations:
        raise PassRefused(violations)
    for op, k, placement in constants:
        value = op.operands[k]
        if not placement.is_whole and splat(value) is not None:
            op.operands[k] = _split_splat(value, placement, mesh)
        elif not placement.is_whole:
            with ir.InsertionPoint(op), op.location:
                op.operands[k] = reshard(value, Placement.whole(value.type), placement, mesh)
    for value, _, type_ in wanted:
        if type_ is not None and type_ != value.type:
            value.set_type(type_)


def _convert(splits: Splits, mesh: Mesh) -> None:
    """Makes the conversions of full values those of their blocks."""
    placements = [
        (op, splits.placement(op.operands[0]), splits.placement(op.results[0]))
        for op in splits.conversions
    ]
    for op, before, after in placements:
        with ir.InsertionPoint(op), op.location:
            block = reshard(op.operands[0], before, after, mesh)
        op.results[0].replace_all_uses_with(block)
        op.erase()


def _uneven_blocks(values: FullValues, mesh: Mesh) -> Iterator[Violation]:
    for each in values.crossings.values():
        if each.placement is None:
            continue
        if each.placement.block_type(each.full.type, mesh) != each.block.type:
            split = f"the array {each.full.type} is split as {each.placement}, "
            if not ir.RankedTensorType(each.full.type).has_static_shape:
                why = "and has a dimension of unknown size; lower the program for known shapes"
            else:
                why = (
                    f"and its block is {each.block.type}, which is not the array divided by the "
                    f"{mesh}; pad the array to a multiple"
                )
            yield Violation(each.op.location, split + why)


def _constant_summands(
    constants: Iterable[tuple[ir.Operation, int, Placement]],
) -> Iterator[Violation]:
    for op, k, placement in constants:
        if placement.unreduced.axes and splat(op.operands[k]) is None:
            yield Violation(
                op.location,
                f"{op.operands[k].type} outside of the manual regions is computed from constants, "
                f"and each device would hold a summand of it, split as {placement}; compute it in "
                "the region",
            )


def _split_splat(value: Value, placement: Placement, mesh: Mesh) -> Value:
    op: Any = splat(value)
    type_: Any = placement.block_type(value.type, mesh)
    if op.name == CONSTANT:
        with ir.InsertionPoint(op), op.location:
            return with_type(op, type_)
    copy = op.clone()
    ir.InsertionPoint(op).insert(copy)
    copy.results[0].set_type(type_)
    return copy.results[0]


def _clean(op: ir.Operation) -> None:
    """Removes hints about full arrays, and ops that nothing uses."""
    if is_hint(op):
        op.results[0].replace_all_uses_with(op.operands[0])
    for name in (SHARDING, "mhlo.sharding"):
        if name in op.attributes:
            del op.attributes[name]
    if is_dead(op):
        op.erase()


def _erase_dead(block: ir.Block, inside: set[ir.Operation]) -> None:
    """Erases constants that only removed ops used."""
    for view in reversed(list(block.operations)):
        op = view.operation
        if op.name == "stablehlo.constant" and op not in inside and is_dead(op):
            op.erase()


def _set_types(
    main: func.FuncOp,
    mesh: Mesh,
    inputs: Sequence[Placement | None],
    outputs: Sequence[Placement | None],
) -> None:
    block = main.entry_block
    results = [value.type for value in terminator(block).operands]
    arg_attrs = _with_shardings(main, "arg_attrs", inputs, mesh)
    res_attrs = _with_shardings(main, "res_attrs", outputs, mesh)
    type_ = ir.FunctionType.get([argument.type for argument in block.arguments], results)
    main.attributes["function_type"] = ir.TypeAttr.get(type_)
    main.attributes["arg_attrs"] = arg_attrs
    main.attributes["res_attrs"] = res_attrs


def _with_shardings(
    main: func.FuncOp, which: str, placements: Sequence[Placement | None], mesh: Mesh
) -> ir.ArrayAttr:
    made = []
    for named, placement in zip(
        value_attributes(main, which, len(placements)), placements, strict=True
    ):
        kept = {
            each.name: each.attr for each in named if each.name not in (SHARDING, "mhlo.sharding")
        }
        if placement is not None:
            kept[SHARDING] = placement.attribute(mesh)
        made.append(ir.DictAttr.get(kept))
    return ir.ArrayAttr.get(made)


def finish(module: ModuleOp, main: func.FuncOp, mesh: Mesh, manual: Sequence[str]) -> None:
    """Declares the mesh, the manual axes and the entry; removes what describes the executable."""
    for op in list(module.body.operations):
        if isinstance(op, sdy.MeshOp):
            op.operation.erase()
    with ir.InsertionPoint.at_block_begin(module.body), ir.Location.unknown():
        sdy.MeshOp(mesh.symbol, sdy_mesh(mesh))
    axes = [ir.StringAttr.get(axis) for axis in mesh.names if axis in manual]
    main.attributes[MANUAL_AXES] = sdy.ManualAxesAttr.get(axes)
    main.attributes["sym_visibility"] = ir.StringAttr.get("public")
    for name in (PARTITIONS, REPLICAS):
        if name in module.operation.attributes:
            del module.operation.attributes[name]
