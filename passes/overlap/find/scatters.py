"""Finds products that are summed over devices, and those whose sum is scattered."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from jaxlib.mlir import ir

from ...ir.body_form import BodyForm
from ...ir.collective_ops import reduction, with_whole_axes
from ...ir.elementwise import ELEMENTWISE
from ...ir.ops import Position, defining_op
from ...ir.types import Value, shape_of
from .cuts import Cut, cut_of_operand, cut_through
from .products import DOT, Product

ADD = "stablehlo.add"


@dataclass(frozen=True)
class SummedProducts:
    """A collective that adds, and the products that it is computed from.

    Attributes:
      op: the all_reduce or reduce_scatter.
      axes: the group, first axis major.
      count: the number of devices in the group.
      products: those that are added up, in program order; nothing else uses them.
      chain: the operations between products and collective, in program order. They have one operand
        or add two that are computed from products.
    """

    op: ir.Operation
    axes: tuple[str, ...]
    count: int
    products: tuple[Product, ...]
    chain: tuple[ir.Operation, ...]

    @property
    def sides(self) -> tuple[int, ...]:
        """The operands whose free dimensions can be cut, first those that are cut rather."""
        return (1, 0)

    @property
    def ops(self) -> tuple[ir.Operation, ...]:
        """What computes the operand of the collective."""
        return (*(product.op for product in self.products), *self.chain)

    @property
    def summed(self) -> Value:
        """The operand of the collective."""
        return self.op.operands[0]

    def cuts(self, cut: Cut) -> dict[Value, Cut] | None:
        """By value, the cuts of what `ops` compute if `summed` has one; None if they cannot."""
        cuts = self._cuts_before(cut)
        through = (cut_through(op, 0, cuts[op.operands[0]]) for op in self.chain)
        return None if None in through else cuts

    def _cuts_before(self, cut: Cut) -> dict[Value, Cut]:
        cuts = {self.summed: cut}
        for op in reversed(self.chain):
            for number, operand in enumerate(op.operands):
                before = cut_of_operand(op, number, cuts[op.results[0]])
                assert before is not None, "a chain changes no shape but by transposing"
                cuts[operand] = before
        return cuts

    def operands_with(self, dimension: int) -> tuple[dict[int, int], ...]:
        """Of each product, side -> dimension of the operands that have one of `summed`."""
        cuts = self._cuts_before(Cut(dimension, shape_of(self.summed)[dimension]))
        return tuple(
            product.operand_dimensions(cuts[product.result].dimension) for product in self.products
        )


@dataclass(frozen=True)
class ScatteredProducts(SummedProducts):
    """A reduce_scatter that adds, and the products that it is computed from.

    Attributes:
      cut: the scattered dimension of `summed`; its `size` is that of one block.
    """

    cut: Cut

    @property
    def scattered(self) -> tuple[dict[int, int], ...]:
        """Of each product, side -> dimension of the operands that have the scattered one."""
        return self.operands_with(self.cut.dimension)

    @property
    def rows(self) -> tuple[int, ...]:
        """Of each product, the number of the first operand that has the scattered dimension."""
        return tuple(map(min, self.scattered))

    @property
    def operands_with_rows(self) -> list[Value]:
        """Those operands, each once."""
        pairs = zip(self.products, self.rows, strict=True)
        return list(dict.fromkeys(product.op.operands[side] for product, side in pairs))

    @property
    def sides(self) -> tuple[int, ...]:
        """The operand of the first product that is not scattered."""
        first = self.scattered[0]
        return tuple(1 - side for side in first) if len(first) == 1 else ()


def summed_products(ops: Sequence[ir.Operation], form: BodyForm) -> Iterator[SummedProducts]:
    """Those of some all_reduces that add products of several devices.

    Each is looked at when it is asked for, so those before may be rewritten.
    """
    for each in _sums(ops, form):
        found = _summed(*each)
        if found is not None:
            yield found


def scattered_products(ops: Sequence[ir.Operation], form: BodyForm) -> Iterator[ScatteredProducts]:
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
        if count > 1 and reduction(op) == ADD:
            yield op, axes, count


def _scattered(op: ir.Operation, axes: tuple[str, ...], count: int) -> ScatteredProducts | None:
    found = _summed(op, axes, count)
    if found is None:
        return None
    dimension = ir.IntegerAttr(op.attributes["scatter_dimension"]).value
    cut = Cut(dimension, shape_of(op.results[0])[dimension], outer=count)
    return ScatteredProducts(op, axes, count, found.products, found.chain, cut)


def _summed(op: ir.Operation, axes: tuple[str, ...], count: int) -> SummedProducts | None:
    products: list[ir.Operation] = []
    chain: list[ir.Operation] = []
    pending = [op.operands[0]]
    while pending:
        value = pending.pop()
        source = defining_op(value)
        if source is None or source.block != op.block or len(list(value.uses)) != 1:
            return None
        if source.name == DOT:
            products.append(source)
        elif _is_between(source):
            chain.append(source)
            pending += source.operands
        else:
            return None
    if len(products) > 1:
        products.sort(key=Position)
        chain.sort(key=Position, reverse=True)
    return SummedProducts(op, axes, count, tuple(map(Product.of, products)), tuple(chain[::-1]))


def _is_between(op: ir.Operation) -> bool:
    is_elementwise = op.name in ELEMENTWISE and len(op.operands) == 1
    return is_elementwise or op.name in ("stablehlo.transpose", ADD)
