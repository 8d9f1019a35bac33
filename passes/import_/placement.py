"""How a full array is split among devices, as the two kinds of modules write it."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import sdy

from ..ir.boundary import Dims, Unreduced
from ..ir.mesh import Mesh

_REDUCED = Unreduced()


@dataclass(frozen=True)
class Placement:
    """Per dimension the axes that split it, and the axes along which devices hold summands."""

    dims: Dims
    unreduced: Unreduced = _REDUCED

    @staticmethod
    def whole(type_: ir.Type) -> Placement:
        """Every device holds the array."""
        return Placement(((),) * ir.RankedTensorType(type_).rank)

    @property
    def is_whole(self) -> bool:
        return not any(self.dims) and not self.unreduced.axes

    def along(self, axes: Collection[str]) -> Placement:
        """The same, without the axes that split dimensions and are not among some."""
        return replace(self, dims=tuple(tuple(a for a in dim if a in axes) for dim in self.dims))

    def block_type(self, full: ir.Type, mesh: Mesh) -> ir.Type | None:
        """The type of one device's block; None if the blocks do not divide the array."""
        if not any(self.dims):
            return full
        tensor = ir.RankedTensorType(full)
        if len(self.dims) != tensor.rank or not tensor.has_static_shape:
            return None
        counts = [mesh.product(axes) for axes in self.dims]
        if any(size % count for size, count in zip(tensor.shape, counts, strict=True)):
            return None
        shape = [size // count for size, count in zip(tensor.shape, counts, strict=True)]
        return ir.RankedTensorType.get(shape, tensor.element_type, tensor.encoding)

    def attribute(self, mesh: Mesh) -> ir.Attribute:
        """The `#sdy.sharding` of an argument or result in body form."""
        kind: dict[str, Any] = {}
        if self.unreduced.reduction is not None:
            kind = {"reduction_op": self.unreduced.reduction}
        return sdy.TensorShardingAttr.get(
            mesh.symbol,
            [
                sdy.DimensionShardingAttr.get(
                    [sdy.AxisRefAttr.get(axis) for axis in axes], is_closed=True
                )
                for axes in self.dims
            ],
            unreduced_axes=[sdy.AxisRefAttr.get(axis) for axis in self.unreduced.axes],
            **kind,
        )

    def __str__(self) -> str:
        dims = ["{" + ", ".join(f'"{axis}"' for axis in axes) + "}" for axes in self.dims]
        text = f"[{', '.join(dims)}]"
        if self.unreduced.axes:
            text += f" unreduced={{{', '.join(self.unreduced.axes)}}}"
        return text
