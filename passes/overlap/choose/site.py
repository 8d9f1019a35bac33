"""A place of a module that a pass of this room can rewrite, with its sizes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from jaxlib.mlir import ir

from ...cost.work import ProductShape, Stages
from ...ir.instructions import has_instructions
from ...ir.ops import walk
from ..find.gathers import Gather
from ..find.row_sources import Source
from ..find.scatters import SummedProducts

Pattern = Literal[
    "gather-product",
    "gather-contraction",
    "product-scatter",
    "product-sum",
    "gather-scatter",
    "all-to-all",
    "gathering-loop",
    "row-block",
    "sequence-block",
    "exchange-block",
    "softmax",
]

GATHERS = ("gather-product", "gather-contraction")
"""The patterns of a gather alone."""
SUMS = ("product-scatter", "product-sum")
"""The patterns of what is summed over devices."""


@dataclass(frozen=True, eq=False)
class Site:
    """A collective, or a loop of them, and the products beside which it can run; or a softmax.

    Attributes:
      op: the collective on which the form is written: the gather, the reduce_scatter, the
        all_reduce, the first of two all_to_alls, the while of a loop, or the maximum of a softmax.
      products: the products that communication can overlap with; of one step, for a loop; that of
        which a softmax is, if any.
      shapes: their sizes.
      axes: the axes of the group, first axis major.
      count: the number of devices in the group.
      element, element_bytes: the type of what is sent, such as "bf16".
      factors: that of the factors of the products, the widest; "" without products.
      received: the bytes that a device receives; in one step, for a loop. Of two all_to_alls, the
        sum; of an all_reduce, half, which is that of a reduce_scatter.
      trips: the number of steps of a loop; else 1.
      cut: the size of the dimension that is cut to pieces: the block of a device for a gather or a
        scatter, the free dimension of the gathered operand for a contraction, the largest free one
        for a sum, the dimension beside the exchanged one for all_to_alls; 1 for a loop. The numbers
        in a row of a softmax.
      columns: the size of the largest free dimension of the other operand, for a scatter; the
        numbers of all sums together, for a block of exchanges.
      scattered: the bytes that a device receives in the reduce_scatter at the end of a block that
        begins with a gather; else 0.
      exponentials: of how many numbers a block of sequences, or a softmax, has the exponentials.
      reduced: how much of `received` is of reduce_scatters, for a loop.
      copied: the bytes that a step of a loop computes for the next one, or for another loop.
      kept: the bytes of a gathered array that is put together from pieces, because other operations
        than the products read it; else 0.
      source: where the rows of a product that is summed come from; see `source_of`.
      collectives: those of a loop that run beside other steps if it is unrolled; those of a block.
      readers: the loops that read what the steps of a loop store for them.
      segments, stages, added, heads, queries, masks: see `Work`.
      found: of a gather, or of a sum, what the passes rewrite.
    """

    pattern: Pattern
    op: ir.Operation
    products: tuple[ir.Operation, ...]
    shapes: tuple[ProductShape, ...]
    axes: tuple[str, ...]
    count: int
    element: str
    element_bytes: int
    received: int
    cut: int
    trips: int = 1
    columns: int = 1
    scattered: int = 0
    reduced: int = 0
    copied: int = 0
    kept: int = 0
    source: Source = "other"
    collectives: tuple[ir.Operation, ...] = ()
    readers: tuple[ir.Operation, ...] = ()
    segments: tuple[tuple[int, int, int], ...] = ()
    stages: tuple[Stages, ...] = ()
    added: int = 0
    exponentials: int = 0
    heads: int = 0
    queries: int = 0
    masks: int = 0
    factors: str = ""
    found: Gather | SummedProducts | None = None

    @property
    def has_instructions(self) -> bool:
        """Whether the program has instructions to XLA for a collective, a product, or in a loop."""
        ops = (self.op, *self.products, *self.collectives)
        return any(has_instructions(each) for op in ops for each in walk(op))

    @property
    def flops(self) -> int:
        """The operations of the products together."""
        return sum(shape.flops for shape in self.shapes)

    @property
    def location(self) -> ir.Location:
        """Where the program has the operation."""
        return self.op.location
