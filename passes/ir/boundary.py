"""How the arguments and results of @main are split: their types and shardings, written and read.

A boundary is an argument or result of @main in body form: its type on one device, and how the
blocks of all devices are placed in the full array.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import func, sdy

from .memoize import memoized, remember
from .mesh import Mesh
from .ops import is_token
from .types import Reduction

SHARDING = "sdy.sharding"

Dims = tuple[tuple[str, ...], ...]
"""Per dimension the mesh axes that split it, major axis first."""


class Unreduced(NamedTuple):
    """The axes along which each device holds a summand of an array, and what combines these.

    `reduction` is the `sdy.ReductionOp` of a `#sdy.sharding`; None where Shardy knows sums only.
    """

    axes: tuple[str, ...] = ()
    reduction: Reduction = None

    @property
    def is_sum(self) -> bool:
        return getattr(self.reduction, "value", 0) == 0


class Boundary(NamedTuple):
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


class Placed(NamedTuple):
    """A boundary without its name: see `Boundary`."""

    type: ir.Type
    dims: Dims | None
    unreduced: Unreduced = Unreduced()


def write_boundaries(
    main: func.FuncOp, inputs: Sequence[Placed], outputs: Sequence[Placed], mesh: Mesh
) -> None:
    """Writes how the arguments and results of @main are placed to its attributes.

    Inside `memoizing`, no pass has to read these attributes.
    """
    arguments, results = (_written(each, mesh) for each in (inputs, outputs))
    main.attributes["arg_attrs"], main.attributes["res_attrs"] = arguments, results
    if any(each.unreduced.axes for each in (*inputs, *outputs)):
        return  # some versions of Shardy's attribute also name the operation that reduces them
    written = (
        tuple(Boundary(f"{kind} {k}", *each) for k, each in enumerate(placed))
        for kind, placed in (("argument", inputs), ("result", outputs))
    )
    remember(read_boundaries, (main.type, arguments, results, mesh), (*written, ()))


def _written(placed: Sequence[Placed], mesh: Mesh) -> ir.ArrayAttr:
    made: dict[tuple[Dims | None, Unreduced], ir.DictAttr] = {}  # of hundreds few differ
    attributes = []
    for _, dims, unreduced in placed:
        key = dims, unreduced
        if key not in made:
            named = (
                {}
                if dims is None
                else {SHARDING: sharding_attribute(mesh.symbol, dims, unreduced, True)}
            )
            made[key] = ir.DictAttr.get(named)
        attributes.append(made[key])
    return ir.ArrayAttr.get(attributes)


@memoized
def sharding_attribute(
    symbol: str, dims: Dims, unreduced: Unreduced, is_closed: bool
) -> ir.Attribute:
    """The `#sdy.sharding` of an array on the mesh of a symbol.

    Args:
      is_closed: whether the partitioner must not split dimensions further.
    """
    kind = {} if unreduced.reduction is None else {"reduction_op": unreduced.reduction}
    unreduced_axes = [sdy.AxisRefAttr.get(axis) for axis in unreduced.axes]
    return sdy.TensorShardingAttr.get(
        symbol,
        [_dimension_sharding(axes, is_closed) for axes in dims],
        unreduced_axes=unreduced_axes,
        **kind,
    )


@memoized
def _dimension_sharding(axes: tuple[str, ...], is_closed: bool) -> ir.Attribute:
    refs = [sdy.AxisRefAttr.get(axis) for axis in axes]
    return sdy.DimensionShardingAttr.get(refs, is_closed=is_closed)


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
    # Reading takes long, and of a gradient's hundreds of arguments few differ.
    read: dict[tuple[ir.Type, ir.DictAttr], tuple[Dims | None, Unreduced, str | None]] = {}
    for index, each in enumerate(zip(types, attributes, strict=True)):
        if each not in read:
            read[each] = _read(*each, mesh)
        dims, unreduced, complaint = read[each]
        name = f"{kind} {index}"
        if complaint:
            complaints.append(f"@main's {name}: {complaint}")
        yield Boundary(name, each[0], dims, unreduced)


def _type_complaint(type_: ir.Type) -> str | None:
    """Why nothing of this type can cross the boundary, or None."""
    if isinstance(type_, ir.RankedTensorType) and type_.has_static_shape:
        return None
    return f"type {type_} is not a tensor of static shape; its full shape cannot be computed"


def _read(
    type_: ir.Type, named: ir.DictAttr, mesh: Mesh
) -> tuple[Dims | None, Unreduced, str | None]:
    """(how the sharding of a value splits it, what it leaves unreduced, why it cannot be read)."""
    if is_token(type_):
        return None, Unreduced(), None
    dims, unreduced, complaint = read_sharding(
        named[SHARDING] if SHARDING in named else None,  # noqa: SIM401
        mesh,
    )
    return dims, unreduced, _type_complaint(type_) or complaint


def read_sharding(sharding: ir.Attribute | None, mesh: Mesh) -> tuple[Dims, Unreduced, str | None]:
    """(how a sharding splits an array, what it leaves unreduced, why it cannot be read)."""
    if sharding is None:
        complaint = (
            f"no {SHARDING}; add one that describes how its blocks are placed in the full array, "
            "with {} for a dimension that is not split"
        )
        return (), Unreduced(), complaint
    sharding = sdy.TensorShardingAttr(sharding)
    dims = [_refs(dim) for dim in sharding.dimension_shardings]
    complaint = _complaint(sharding, dims, mesh)
    if complaint:
        return (), Unreduced(), complaint
    return tuple(tuple(name for name, _ in dim) for dim in dims), _unreduced(sharding), None


_Refs = tuple[tuple[str, bool], ...]
"""The name of each axis that splits a dimension, and whether only a part of the axis does."""


@memoized
def _refs(dimension: ir.Attribute) -> _Refs:
    axes = (sdy.AxisRefAttr(axis) for axis in sdy.DimensionShardingAttr(dimension).axes)
    return tuple((axis.name, axis.sub_axis_info is not None) for axis in axes)


def _complaint(sharding: sdy.TensorShardingAttr, dims: Sequence[_Refs], mesh: Mesh) -> str | None:
    """Why this sharding cannot be read, or None."""
    symbol = sharding.mesh_or_ref
    if not _is_mesh(symbol, mesh):
        return (
            f"{SHARDING} is on mesh {symbol}, but the module's mesh is {mesh}; use @{mesh.symbol}"
        )
    if list(sharding.replicated_axes):
        return (
            f"{SHARDING} has replicated axes; leave them out, all axes that it does not mention "
            "are replicated"
        )
    if any(is_part for dim in dims for _, is_part in dim):
        return f"{SHARDING} splits a dimension over part of an axis; only whole axes can be manual"
    if any(sdy.AxisRefAttr(ref).sub_axis_info is not None for ref in sharding.unreduced_axes):
        return f"{SHARDING} is unreduced over part of an axis; only whole axes can be manual"
    return None


def _is_mesh(named: ir.Attribute, mesh: Mesh) -> bool:
    """Whether a sharding is on a mesh: by its symbol, or in regions inside, by its axes."""
    if isinstance(named, ir.FlatSymbolRefAttr):
        return named.value == mesh.symbol
    inlined = sdy.MeshAttr(named)
    axes = tuple((a.name, a.size) for a in (sdy.MeshAxisAttr(axis) for axis in inlined.axes))
    return axes == mesh.axes and not list(inlined.device_ids)


def _unreduced(sharding: sdy.TensorShardingAttr) -> Unreduced:
    axes = tuple(sdy.AxisRefAttr(axis).name for axis in sharding.unreduced_axes)
    return Unreduced(axes, getattr(sharding, "reduction_op", None)) if axes else Unreduced()
