"""Reads the body form: what emission writes and every pass before wrap-manual reads.

    sdy.mesh @mesh = <["i"=4, "j"=2]>
    func.func public @main(
            %arg0: tensor<2x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"i"}, {}]>})
        -> (tensor<2x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"i"}, {}]>})
        attributes {sdy.manual_axes = #sdy<manual_axes{"i", "j"}>}

Types are per device; the attributes say how the blocks lie in the full arrays. Axes that are not
in `sdy.manual_axes` are automatic, except those in the optional `shmap.outer_manual_axes`, which
an enclosing region has made manual already. Tokens carry no sharding.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import func, sdy
from jaxlib.mlir.dialects.builtin import ModuleOp

from ..base import Problem, Refused
from .mesh import Mesh
from .remembering import remembered

MANUAL_AXES = "sdy.manual_axes"
OUTER_MANUAL_AXES = "shmap.outer_manual_axes"
SHARDING = "sdy.sharding"

_ORIGIN = (
    "body form is what `shmap lower --stage body` prints and what this pass needs; passes that "
    "bring other modules into it (shmap-import-...) are planned"
)

Dims = tuple[tuple[str, ...], ...]
"""Per dimension the mesh axes that split it, major axis first."""


@dataclass(frozen=True)
class Unreduced:
    """The axes along which each device holds a summand of an array, and what combines these.

    `reduction` is the `sdy.ReductionOp` of a `#sdy.sharding`; None where Shardy knows sums only.
    """

    axes: tuple[str, ...] = ()
    reduction: Any = None


@dataclass(frozen=True)
class Boundary:
    """An argument or result of @main: its per-device type, and how the full array is cut."""

    name: str
    type: ir.Type
    dims: Dims | None
    """None for a token, which has no sharding."""
    unreduced: Unreduced = Unreduced()

    @property
    def varying(self) -> tuple[str, ...]:
        """The axes along which devices hold different blocks."""
        return (*(axis for dim in self.dims or () for axis in dim), *self.unreduced.axes)

    @property
    def has_elements(self) -> bool:
        return self.dims is None or 0 not in ir.RankedTensorType(self.type).shape

    def full_type(self, mesh: Mesh) -> ir.Type:
        """The type of the full array: each dimension times the axes that split it."""
        if self.dims is None or not any(self.dims):
            return self.type
        block = ir.RankedTensorType(self.type)
        shape = [
            size * mesh.product(axes) for size, axes in zip(block.shape, self.dims, strict=True)
        ]
        return ir.RankedTensorType.get(shape, block.element_type, block.encoding)


@dataclass(frozen=True)
class BodyForm:
    """The entry function of a module in body form with everything its attributes say."""

    main: func.FuncOp
    mesh: Mesh
    manual: tuple[str, ...]
    outer: tuple[str, ...]

    @property
    def inputs(self) -> tuple[Boundary, ...]:
        return self._boundaries[0]

    @property
    def outputs(self) -> tuple[Boundary, ...]:
        return self._boundaries[1]

    @cached_property
    def _boundaries(self) -> tuple[tuple[Boundary, ...], tuple[Boundary, ...]]:
        """Read when asked for: most passes do not. Raises `Refused` if they cannot be read."""
        main = self.main
        attributes = (main.attributes.get(each) for each in ("arg_attrs", "res_attrs"))
        inputs, outputs, complaints = _both_boundaries(main.type, *attributes, self.mesh)
        if complaints:
            raise Refused(Problem(main.location, text) for text in complaints)
        return inputs, outputs

    @cached_property
    def region(self) -> tuple[str, ...]:
        """All axes that are manual in the body, in mesh order."""
        here = {*self.manual, *self.outer}
        return tuple(axis for axis in self.mesh.names if axis in here)

    @cached_property
    def automatic(self) -> tuple[str, ...]:
        """The axes that XLA's partitioner still owns inside the body, in mesh order."""
        return self.mesh.without(self.region)

    @property
    def is_partly_manual(self) -> bool:
        """Whether the devices lie along manual axes and along automatic ones."""
        return self.mesh.product(self.region) > 1 and self.mesh.product(self.automatic) > 1


def read_body_form(module: ModuleOp) -> BodyForm:
    """The body form of `module`; raises `Refused` if its entry or its mesh are not of that form."""
    main = _only_main(module)
    mesh = read_mesh(_only_mesh(module))
    if MANUAL_AXES not in main.attributes:
        raise _refusal(
            main,
            f"@main has no {MANUAL_AXES}, so it is not in body form; say which axes its types are "
            f"per-device over, as in attributes {{{MANUAL_AXES} = #sdy<manual_axes{{...}}>}}",
        )
    return BodyForm(
        main,
        mesh,
        manual=manual_axes(main.attributes[MANUAL_AXES]),
        outer=_strings(main.attributes[OUTER_MANUAL_AXES])
        if OUTER_MANUAL_AXES in main.attributes
        else (),
    )


def walk(root: ir.Operation) -> list[ir.Operation]:
    """Every operation inside `root`, outer before inner, as a list that may be rewritten freely."""
    found: list[ir.Operation] = []

    def visit(op: ir.Operation) -> ir.WalkResult:
        found.append(op.operation)
        return ir.WalkResult.ADVANCE

    root.walk(visit, ir.WalkOrder.PRE_ORDER)
    return found


def defining_op(value: ir.Value) -> ir.Operation | None:
    """The op whose result `value` is; None for an argument of a block."""
    return None if isinstance(value, ir.BlockArgument) else ir.OpResult(value).owner.operation


def terminator(block: ir.Block) -> ir.Operation:
    return block.operations[len(block.operations) - 1].operation


def is_token(type_: ir.Type) -> bool:
    # Printing a type takes long, and nearly all are tensors.
    return not isinstance(type_, ir.RankedTensorType) and str(type_) == "!stablehlo.token"


def value_attributes(main: func.FuncOp, which: str, count: int) -> list[ir.DictAttr]:
    """The attributes of each argument (`arg_attrs`) or result (`res_attrs`) of a function."""
    return _entries(main.attributes.get(which), count)


def _entries(attributes: ir.Attribute | None, count: int) -> list[ir.DictAttr]:
    if attributes is None:
        return [ir.DictAttr.get({})] * count
    return [ir.DictAttr(entry) for entry in ir.ArrayAttr(attributes)]


def read_mesh(op: sdy.MeshOp) -> Mesh:
    mesh = sdy.MeshAttr(op.mesh)
    axes = (sdy.MeshAxisAttr(axis) for axis in mesh.axes)
    return Mesh(ir.StringAttr(op.sym_name).value, tuple((axis.name, axis.size) for axis in axes))


def _only_main(module: ModuleOp) -> func.FuncOp:
    functions = [op for op in module.body.operations if isinstance(op, func.FuncOp)]
    for function in functions:
        if function.name.value == "main" and not function.is_external:
            return function
    have = ", ".join(f"@{function.name.value}" for function in functions) or "none"
    raise _refusal(
        module,
        f"the module has no function @main with a body; its functions: {have}",
    )


def _only_mesh(module: ModuleOp) -> sdy.MeshOp:
    meshes = [op for op in module.body.operations if isinstance(op, sdy.MeshOp)]
    if not meshes:
        raise _refusal(
            module,
            'the module has no sdy.mesh; declare the one it runs on: sdy.mesh @mesh = <["i"=4]>',
        )
    if len(meshes) > 1:
        raise Refused(
            Problem(
                mesh.location,
                f"@{ir.StringAttr(mesh.sym_name).value} is one of {len(meshes)} meshes; a module "
                "in body form runs on one: keep the one that @main's shardings name",
            )
            for mesh in meshes[1:]
        )
    mesh = meshes[0]
    if list(sdy.MeshAttr(mesh.mesh).device_ids):
        raise _refusal(
            mesh,
            f"@{ir.StringAttr(mesh.sym_name).value} lists device ids; devices are positions in the "
            "mesh here, leave the ids to whoever places the program",
        )
    return mesh


@remembered
def _both_boundaries(
    type_: ir.FunctionType,
    arg_attrs: ir.Attribute | None,
    res_attrs: ir.Attribute | None,
    mesh: Mesh,
) -> tuple[tuple[Boundary, ...], tuple[Boundary, ...], tuple[str, ...]]:
    """(the arguments, the results, why some of them cannot be read)."""
    complaints: list[str] = []
    inputs = tuple(_boundaries("argument", type_.inputs, arg_attrs, mesh, complaints))
    outputs = tuple(_boundaries("result", type_.results, res_attrs, mesh, complaints))
    return inputs, outputs, tuple(complaints)


def _boundaries(
    kind: str,
    types: Iterable[ir.Type],
    named_attributes: ir.Attribute | None,
    mesh: Mesh,
    complaints: list[str],
) -> Iterator[Boundary]:
    types = list(types)
    attributes = _entries(named_attributes, len(types))
    # Reading takes long, and of a gradient's hundreds of arguments few are split differently.
    read: dict[ir.DictAttr, tuple[Dims, Unreduced, str | None]] = {}
    for index, (type_, named) in enumerate(zip(types, attributes, strict=True)):
        name = f"{kind} {index}"
        if is_token(type_):
            yield Boundary(name, type_, None)
            continue
        if named not in read:
            read[named] = _read(named[SHARDING] if SHARDING in named else None, mesh)  # noqa: SIM401
        dims, unreduced, complaint = read[named]
        complaint = _type_complaint(type_) or complaint
        if complaint:
            complaints.append(f"@main's {name}: {complaint}")
        yield Boundary(name, type_, dims, unreduced)


def _type_complaint(type_: ir.Type) -> str | None:
    """Why nothing of this type can cross the boundary, or None."""
    if isinstance(type_, ir.RankedTensorType) and type_.has_static_shape:
        return None
    return f"type {type_} is no tensor of static shape; the full shape cannot be computed from it"


def _read(sharding: ir.Attribute | None, mesh: Mesh) -> tuple[Dims, Unreduced, str | None]:
    """(how a sharding splits, what it leaves unreduced, or why that cannot be read)."""
    if sharding is None:
        complaint = (
            f"no {SHARDING}; say how its blocks lie in the full array, with {{}} for a dimension "
            "that is not split"
        )
        return (), Unreduced(), complaint
    sharding = sdy.TensorShardingAttr(sharding)
    complaint = _complaint(sharding, mesh)
    if complaint:
        return (), Unreduced(), complaint
    return _dims(sharding), _unreduced(sharding), None


def _complaint(sharding: sdy.TensorShardingAttr, mesh: Mesh) -> str | None:
    """Why this sharding cannot be read, or None."""
    symbol = sharding.mesh_or_ref
    if not isinstance(symbol, ir.FlatSymbolRefAttr) or symbol.value != mesh.symbol:
        return (
            f"{SHARDING} speaks of mesh {symbol}, the module's mesh is {mesh}; name @{mesh.symbol}"
        )
    if list(sharding.replicated_axes):
        return (
            f"{SHARDING} has replicated axes; leave them out, all axes that it does not mention "
            "are replicated"
        )
    refs = [ref for dim in _refs(sharding) for ref in dim]
    if any(ref.sub_axis_info is not None for ref in refs):
        return f"{SHARDING} splits a dimension over part of an axis; only whole axes can be manual"
    if any(sdy.AxisRefAttr(ref).sub_axis_info is not None for ref in sharding.unreduced_axes):
        return f"{SHARDING} is unreduced over part of an axis; only whole axes can be manual"
    return None


def _refs(sharding: sdy.TensorShardingAttr) -> list[list[sdy.AxisRefAttr]]:
    dims = (sdy.DimensionShardingAttr(dim) for dim in sharding.dimension_shardings)
    return [[sdy.AxisRefAttr(axis) for axis in dim.axes] for dim in dims]


def _dims(sharding: sdy.TensorShardingAttr) -> Dims:
    return tuple(tuple(axis.name for axis in dim) for dim in _refs(sharding))


def _unreduced(sharding: sdy.TensorShardingAttr) -> Unreduced:
    axes = tuple(sdy.AxisRefAttr(axis).name for axis in sharding.unreduced_axes)
    return Unreduced(axes, getattr(sharding, "reduction_op", None)) if axes else Unreduced()


def manual_axes(attribute: ir.Attribute) -> tuple[str, ...]:
    """The axes of an attribute `#sdy<manual_axes{...}>`."""
    axes = sdy.ManualAxesAttr(attribute)
    return tuple(axes[index] for index in range(len(axes)))


def _strings(attribute: ir.Attribute) -> tuple[str, ...]:
    return tuple(ir.StringAttr(text).value for text in ir.ArrayAttr(attribute))


def _refusal(op: ir.OpView, message: str) -> Refused:
    return Refused([Problem(op.location, message, notes=(Problem(op.location, _ORIGIN),))])
