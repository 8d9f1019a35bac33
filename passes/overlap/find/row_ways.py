"""In which ways gathered rows can be cut to chunks.

way         own cut of x      is for
ROWS        rows              what is computed row by row
Way(1024)   1024 rows each    attention, if these are a sequence: a reshape takes them apart
Way(1, 0)   dimension 0       attention, if rows are dimension 1 of (sequences, rows, columns)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from jaxlib.mlir import ir

from ...ir.dataflow import Dataflow
from ...ir.types import shape_of
from .cuts import Cut
from .products import DOT, Product

_RESHAPE = "stablehlo.reshape"


class Way(NamedTuple):
    """How the arrays that are gathered are cut.

    Attributes:
      together: so many rows of the gathered dimension stay together.
      dimension: another dimension than the gathered one that is cut; None for that one.
    """

    together: int = 1
    dimension: int | None = None

    def own(self, gather: ir.Operation) -> Cut:
        """The cut of what a device gives to a gather."""
        shape = shape_of(gather.operands[0])
        dimension = gathered_dimension(gather) if self.dimension is None else self.dimension
        return Cut(dimension, shape[dimension] // self.together, inner=self.together)

    def gathered(self, gather: ir.Operation, count: int) -> Cut:
        """The cut of what a gather of `count` devices gives."""
        own = self.own(gather)
        return own.of(count) if self.dimension is None else own

    def scattered(self, cut: Cut) -> Cut | None:
        """The cut of the result of a reduce_scatter whose operand has `cut`.

        None if it is not the scattered dimension that is cut, or its rows do not stay together.
        """
        if self.dimension is not None or cut.size % self.together:
            return None
        return Cut(cut.dimension, cut.size // self.together, inner=self.together)


ROWS = Way()


def ways(gathers: Sequence[ir.Operation], count: int, flow: Dataflow) -> Iterator[Way]:
    """Those that may do for gathers of as many rows, first the one that has the most chunks."""
    yield ROWS
    own = shape_of(gathers[0].operands[0])[gathered_dimension(gathers[0])]
    yield from (Way(size) for size in _taken_apart(own, count, flow))
    for dimension in _summed_as_well(gathers, flow):
        if len({_size(each, dimension) for each in gathers}) == 1:
            yield Way(dimension=dimension)


def ways_of_sequences(gather: ir.Operation, count: int, flow: Dataflow) -> Iterator[Way]:
    """Those that may do for attention in which nothing is summed over rows."""
    own = shape_of(gather.operands[0])
    gathered = gathered_dimension(gather)
    contracted = {each for dimensions in _contracted(gather, flow) for each in dimensions}
    for dimension, size in enumerate(own):
        if size > 1 and dimension != gathered and dimension not in contracted:
            yield Way(dimension=dimension)
    yield from (Way(size) for size in _taken_apart(own[gathered], count, flow))


def gathered_dimension(gather: ir.Operation) -> int:
    return ir.IntegerAttr(gather.attributes["all_gather_dim"]).value


def sums_over(gather: ir.Operation, flow: Dataflow) -> Iterator[tuple[int, ...]]:
    """The dimensions that products sum over, if the gathered one is among them."""
    gathered = gathered_dimension(gather)
    return (dimensions for dimensions in _contracted(gather, flow) if gathered in dimensions)


def _contracted(gather: ir.Operation, flow: Dataflow) -> Iterator[tuple[int, ...]]:
    """The dimensions of what is gathered that each product sums over."""
    result = gather.results[0]
    for node in flow.users(result):
        if node.name == DOT:
            for side, dimensions in enumerate(Product.of(node.op).contracted):
                if node.operands[side] == result:
                    yield dimensions


def _taken_apart(own: int, count: int, flow: Dataflow) -> list[int]:
    """Into so many rows a reshape takes those of a device apart, the fewest first."""
    found: set[int] = set()
    for node in flow.nodes:
        if node.name != _RESHAPE:
            continue
        old, new = shape_of(node.operands[0]), shape_of(node.result)
        for place, size in enumerate(old):
            if size != own * count or old[:place] != new[:place] or place + 1 >= len(new):
                continue
            together = new[place + 1]
            is_cut = 1 < together < own and own % together == 0
            if is_cut and new[place] * together == size:
                found.add(together)
    return sorted(found)


def _summed_as_well(gathers: Sequence[ir.Operation], flow: Dataflow) -> list[int]:
    """The other dimensions of a gather that all products that sum over its rows sum over."""
    dimensions: set[int] = set()
    for gather in gathers:
        found = [{*each} for each in sums_over(gather, flow)]
        if found:
            dimensions |= set.intersection(*found) - {gathered_dimension(gather)}
    return sorted(dimensions)


def _size(gather: ir.Operation, dimension: int) -> int:
    shape = shape_of(gather.operands[0])
    is_other = dimension < len(shape) and dimension != gathered_dimension(gather)
    return shape[dimension] if is_other else 0
