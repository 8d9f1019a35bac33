"""Finds products that are summed over devices, and those whose sum is scattered."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from jaxlib.mlir import ir

from ..ir.body_form import BodyForm
from ..ir.collective_ops import reduction, with_whole_axes
from ..ir.elementwise import ELEMENTWISE
from ..ir.ops import defining_op
from ..ir.types import Value, shape_of
from .cuts import Cut, cut_of_operand, cut_through
from .equal_sites import shared
from .form import Form
from .products import DOT, Product


@dataclass(frozen=True)
class SummedProduct:
    """A collective that adds, and the product that it is computed from.

    Attributes:
      op: the all_reduce or reduce_scatter.
      axes: the group, first axis major.
      count: the number of devices in the group.
      product: a product that nothing else uses.
      chain: the operations with one operand between product and collective, in this order.
    """

    op: ir.Operation
    axes: tuple[str, ...]
    count: int
    product: Product
    chain: tuple[ir.Operation, ...]

    @property
    def sides(self) -> tuple[int, ...]:
        """The operands whose free dimensions can be cut, first those that are cut rather."""
        return (1, 0)

    def replace_by(self, name: str, form: Form, build: Callable[[], Value]) -> None:
        """Replaces the sum, and erases it with what it is computed from.

        Args:
          name: of a function, if equal sites share one.
          build: builds, in a form, what takes its place.
        """
        ops = (self.product.op, *self.chain, self.op)
        (value,) = shared(name, ops, self.op.results, form, lambda: [build()])
        self.op.results[0].replace_all_uses_with(value)
        for op in reversed(ops):
            op.erase()

    def cuts(self, cut: Cut) -> dict[Value, Cut] | None:
        """By value, the cut of the product and of what is computed from it; None if it has none."""
        cuts = {self.product.result: cut}
        for op in self.chain:
            through = cut_through(op, 0, cuts[op.operands[0]])
            if through is None:
                return None
            cuts[op.results[0]] = through
        return cuts


@dataclass(frozen=True)
class ScatteredProduct(SummedProduct):
    """A reduce_scatter that adds, and the product that it is computed from.

    Attributes:
      dimension: the scattered one.
      cut: the scattered dimension of the product; its `size` is that of one block.
    """

    dimension: int
    cut: Cut

    @property
    def sides(self) -> tuple[int, ...]:
        """The operand that is not scattered."""
        scattered = self.product.operand_dimensions(self.cut.dimension)
        return tuple(1 - side for side in scattered) if len(scattered) == 1 else ()


def summed_products(ops: Sequence[ir.Operation], form: BodyForm) -> Iterator[SummedProduct]:
    """Those of some all_reduces that add products of several devices.

    Each is looked at when it is asked for, so those before may be rewritten.
    """
    for each in _sums(ops, form):
        found = _summed(*each)
        if found is not None:
            yield found


def scattered_products(ops: Sequence[ir.Operation], form: BodyForm) -> Iterator[ScatteredProduct]:
    """Those of some reduce_scatters that add products of several devices.

    Each is looked at when it is asked for, so those before may be rewritten.
    """
    for each in _sums(ops, form):
        found = _scattered(*each)
        if found is not None:
            yield found


def _sums(
    ops: Sequence[ir.Operation], form: BodyForm
) -> Iterator[tuple[ir.Operation, tuple[str, ...], int]]:
    """The collectives that add over several devices, with the axes and their number."""
    for op, axes in with_whole_axes(ops):
        count = form.mesh.product(axes)
        if count > 1 and reduction(op) == "stablehlo.add":
            yield op, axes, count


def _scattered(op: ir.Operation, axes: tuple[str, ...], count: int) -> ScatteredProduct | None:
    found = _summed(op, axes, count)
    if found is None:
        return None
    dimension = ir.IntegerAttr(op.attributes["scatter_dimension"]).value
    cut: Cut | None = Cut(dimension, shape_of(op.results[0])[dimension], outer=count)
    for each in reversed(found.chain):
        cut = None if cut is None else cut_of_operand(each, 0, cut)
    if cut is None:
        return None
    return ScatteredProduct(op, axes, count, found.product, found.chain, dimension, cut)


def _summed(op: ir.Operation, axes: tuple[str, ...], count: int) -> SummedProduct | None:
    chain: list[ir.Operation] = []
    value = op.operands[0]
    while True:
        source = defining_op(value)
        if source is None or source.block != op.block or len(list(value.uses)) != 1:
            return None
        if source.name == DOT:
            return SummedProduct(op, axes, count, Product.of(source), tuple(chain))
        is_elementwise = source.name in ELEMENTWISE and len(source.operands) == 1
        if not is_elementwise and source.name != "stablehlo.transpose":
            return None
        chain.insert(0, source)
        value = source.operands[0]
