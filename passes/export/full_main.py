"""What both forms of wrap-manual share: the new @main on full arrays, values without elements."""

from __future__ import annotations

from collections.abc import Sequence

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import func

from ..ir.body_form import BodyForm
from ..ir.boundary import SHARDING, Boundary, Dims, value_attributes
from ..ir.mesh import Mesh
from ..ir.types import Value


def remove_attributes(function: func.FuncOp, *names: str) -> None:
    for name in names:
        if name in function.attributes:
            del function.attributes[name]


def new_main(form: BodyForm) -> func.FuncOp:
    """Creates an empty public @main on full types before the old one, with its other attributes."""
    inputs = _full_types(form.inputs, form.mesh)
    outputs = _full_types(form.outputs, form.mesh)
    with ir.InsertionPoint(form.main), form.main.location:
        main = func.FuncOp("main", (inputs, outputs), visibility="public")
    main.attributes["arg_attrs"] = without_sharding(form.main, "arg_attrs", len(inputs))
    main.attributes["res_attrs"] = without_sharding(form.main, "res_attrs", len(outputs))
    main.add_entry_block()
    return main


def _full_types(boundaries: Sequence[Boundary], mesh: Mesh) -> list[ir.Type]:
    made: dict[tuple[ir.Type, Dims | None], ir.Type] = {}  # of hundreds few differ
    types = []
    for boundary in boundaries:
        kind = boundary.type, boundary.dims
        if kind not in made:
            made[kind] = boundary.full_type(mesh)
        types.append(made[kind])
    return types


def without_sharding(main: func.FuncOp, which: str, count: int) -> ir.ArrayAttr:
    """Returns the attributes of arguments or results other than the sharding (donation, ...)."""
    attributes = value_attributes(main, which, count)
    rest = {each: each for each in attributes}  # of hundreds few differ
    for each in rest:
        if SHARDING in each:
            is_all = len(each) == 1  # as it nearly always is
            others = () if is_all else (named for named in each if named.name != SHARDING)
            rest[each] = ir.DictAttr.get({named.name: named.attr for named in others})
    return ir.ArrayAttr.get([rest[each] for each in attributes])


def replace_empty_arguments(form: BodyForm, block: ir.Block) -> None:
    """By constants: without elements there is one value of each type."""
    for number in reversed(form.empty_inputs):
        argument = block.arguments[number]
        if list(argument.uses):
            at = ir.InsertionPoint.at_block_begin(block)
            argument.replace_all_uses_with(empty_constant(argument.type, at))
        block.erase_argument(number)


def empty_constant(type_: ir.Type, at: ir.InsertionPoint) -> Value:
    """The one value there is of a type without elements."""
    constant = ir.Operation.parse(f"stablehlo.constant dense<> : {type_}")
    at.insert(constant)
    return constant.result
