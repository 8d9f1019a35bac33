"""How the arguments and results of @main are split: their types and shardings, read once.

A boundary is an argument or result of @main in body form: its type on one device, and how the
blocks of all devices are placed in the full array.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import func, sdy

from .memoize import memoized
from .mesh import Mesh
from .ops import is_token

SHARDING = "sdy.sharding"

Dims = tuple[tuple[str, ...], ...]
"""Per dimension the mesh axes that split it, major axis first."""


@dataclass(frozen=True)
class Unreduced:
    """The axes along which each device holds a summand of an array, and what combines these.

    `reduction` is the `sdy.ReductionOp` of a `#sdy.sharding`; None where Shardy knows sums only.
    """

    axes: tuple[str, ...] = ()
    reduction: object = None


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


def value_attributes(main: func.FuncOp, which: str, count: int) -> list[ir.DictAttr]:
    """The attributes of each argument (`arg_attrs`) or result (`res_attrs`) of a function."""
    return _entries(main.attributes.get(which), count)


def _entries(attributes: ir.Attribute | None, count: int) -> list[ir.DictAttr]:
    if attributes is None:
        return [ir.DictAttr.get({})] * count
    return [ir.DictAttr(entry) for entry in ir.ArrayAttr(attributes)]


@memoized
def read_boundaries(
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
    return f"type {type_} is not a tensor of static shape; its full shape cannot be computed"


def _read(sharding: ir.Attribute | None, mesh: Mesh) -> tuple[Dims, Unreduced, str | None]:
    """(how a sharding splits, what it leaves unreduced, or why that cannot be read)."""
    if sharding is None:
        complaint = (
            f"no {SHARDING}; add one that describes how its blocks are placed in the full array, "
            "with {} for a dimension that is not split"
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
            f"{SHARDING} is on mesh {symbol}, but the module's mesh is {mesh}; use @{mesh.symbol}"
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
