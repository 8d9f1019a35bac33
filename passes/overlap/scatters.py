"""Finds products whose sum over devices is scattered."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from jaxlib.mlir import ir

from ..ir.body_form import BodyForm
from ..ir.collective_ops import REDUCE_SCATTER, over_whole_axes, reduction
from ..ir.elementwise import ELEMENTWISE
from ..ir.ops import defining_op
from ..ir.types import Value, shape_of
from .cuts import Cut, cut_of_operand
from .products import DOT, Product


@dataclass(frozen=True)
class ScatteredProduct:
    """A reduce_scatter that adds, and the product that it is computed from.

    Attributes:
      op: the reduce_scatter.
      axes: the group, first axis major.
      count: the number of devices in the group.
      dimension: the scattered one.
      chain: the operations with one operand between product and reduce_scatter, in this order.
      cut: the scattered dimension of the product; its `size` is that of one block.
    """

    op: ir.Operation
    axes: tuple[str, ...]
    count: int
    dimension: int
    product: Product
    chain: tuple[ir.Operation, ...]
    cut: Cut

    def replace(self, value: Value) -> None:
        """Replaces the sum, and erases it with what it is computed from."""
        self.op.results[0].replace_all_uses_with(value)
        for op in (self.op, *reversed(self.chain), self.product.op):
            op.erase()


def scattered_products(root: ir.Operation, form: BodyForm) -> Iterator[ScatteredProduct]:
    """The reduce_scatters of products inside `root`, over several devices.

    Each is looked at when it is asked for, so those before may be rewritten.
    """
    for op, axes in over_whole_axes(root, REDUCE_SCATTER):
        count = form.mesh.product(axes)
        if count > 1 and reduction(op) == "stablehlo.add":
            found = _scattered(op, axes, count)
            if found is not None:
                yield found


def _scattered(op: ir.Operation, axes: tuple[str, ...], count: int) -> ScatteredProduct | None:
    dimension = ir.IntegerAttr(op.attributes["scatter_dimension"]).value
    size = shape_of(op.results[0])[dimension]
    cut: Cut | None = Cut(dimension, size, outer=count)
    chain: list[ir.Operation] = []
    value = op.operands[0]
    while cut is not None:
        source = defining_op(value)
        if source is None or source.block != op.block or len(list(value.uses)) != 1:
            return None
        if source.name == DOT:
            product = Product.of(source)
            return ScatteredProduct(op, axes, count, dimension, product, tuple(chain), cut)
        if source.name == "stablehlo.transpose":
            order = list(ir.DenseI64ArrayAttr(source.attributes["permutation"]))
            cut = Cut(order[cut.dimension], cut.size, cut.outer)
        elif source.name in ELEMENTWISE and len(source.operands) == 1:
            cut = cut_of_operand(source, 0, cut)
        else:
            return None
        chain.insert(0, source)
        value = source.operands[0]
    return None
