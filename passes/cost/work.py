"""Products and the communication that could run beside them, from which the rules decide."""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class ProductShape:
    """The sizes of a product on one device: `batch` products of [m, k] by [k, n].

    `m` are the free dimensions of the operand whose free, or batch, dimension is gathered or
    scattered, and `n` those of the other one. If a contracted dimension is gathered, `n` are those
    of the gathered operand; if the product is summed, of the operand that is cut.

    Attributes:
      is_given: whether the operand with `n` columns is an argument of the function.
    """

    batch: int
    m: int
    n: int
    k: int
    is_given: bool = False

    @property
    def flops(self) -> int:
        """Operations; a multiply-add is two."""
        return 2 * self.batch * self.m * self.n * self.k


@dataclass(frozen=True)
class Stages:
    """What a block of rows computes with chunks between gathers and the scatter after them.

    Attributes:
      received, scattered: bytes that a device receives in the gathers, and in the scatter.
      first, last: the products beside which chunks are gathered, and scattered.
      gathers: how many there are.
    """

    received: int
    scattered: int
    first: tuple[ProductShape, ...]
    last: tuple[ProductShape, ...]
    gathers: int = 1


@dataclass(frozen=True)
class Work:
    """Products and the communication that could run beside them, on one device.

    Attributes:
      pattern: "gather-product", "gather-contraction", "product-scatter", "product-sum",
        "gather-scatter", "all-to-all", "gathering-loop", "row-block", "sequence-block",
        "exchange-block" or "softmax".
      products: of one step, for a loop.
      groups: the devices that communicate, by position in the mesh.
      element, element_bytes: the type of what is sent.
      factors: that of the factors of the products, the widest; "" if it is the same.
      received: bytes that a device receives; of one step, for a loop; of two all-to-alls together.
      trips: steps of a loop, else 1.
      cut: the size of the dimension that is cut: of a device's block for a gather or a scatter.
      columns: the largest free dimension of the other operand, for a scatter; the numbers of all
        sums together, for an "exchange-block".
      scattered: bytes that a device receives in the reduce_scatter after the last of the products,
        if there is one beside the gather.
      is_narrowed: f32 of which products with default precision use the upper half only.
      is_precise: whether a product asks for another than the default precision.
      multiplications: of bf16 that a TPU makes of one of f32.
      may_round: whether sums may be rounded on their way, which changes results.
      reduced: how much of `received` is of reduce-scatters, for a loop.
      copied: bytes that a step of a loop copies, and that an unrolled one does not.
      kept: bytes of a gathered array that is put together from pieces, because others read it.
      source: where the rows of a product that is summed come from: an "argument", or computed
        element by element from a "product" that nothing else reads, or from what is "shared", as
        others read it, or "other".
      segments: of an "exchange-block", the bytes received, the operations and the all-to-alls of
        what is computed without joining an array.
      stages: of a "row-block", in program order.
      added: the rows of all devices that a "row-block" adds up; 0 for `cut` of each device.
      exponentials: how many numbers a "sequence-block" or a "softmax" computes the exponential of.
      heads, queries: of the product of which a "softmax" is, how many dimensions are batches, and
        how many are free ones of the operand that has most.
      masks: the number of arrays other than the product that a "softmax" is computed from.
    """

    pattern: str
    products: tuple[ProductShape, ...]
    groups: tuple[tuple[int, ...], ...]
    element: str
    element_bytes: int
    received: int
    trips: int = 1
    cut: int = 1
    columns: int = 1
    scattered: int = 0
    is_narrowed: bool = False
    is_precise: bool = False
    multiplications: int = 1
    may_round: bool = False
    reduced: int = 0
    copied: int = 0
    kept: int = 0
    source: str = "other"
    segments: tuple[tuple[int, int, int], ...] = ()
    stages: tuple[Stages, ...] = ()
    added: int = 0
    exponentials: int = 0
    heads: int = 0
    queries: int = 0
    masks: int = 0
    factors: str = ""

    @property
    def multiplied(self) -> str:
        """The type of the factors of the products."""
        return self.factors or self.element

    @property
    def added_rows(self) -> int:
        """Those of all devices that a block of rows adds up."""
        return self.added or self.cut * self.count

    @property
    def count(self) -> int:
        """Devices in a group."""
        return len(self.groups[0])

    @property
    def flops(self) -> int:
        return sum(product.flops for product in self.products)

    @property
    def rows(self) -> int:
        """Of the product that has the fewest."""
        return min((p.batch * p.m for p in self.products), default=0)


def is_rounded(element: str) -> bool:
    """Whether partial sums of a type would be rounded on their way between devices.

    Sums of integers wrap around, and are the same in any order. Those of f32 are added in f32 in
    the plain program as well.
    """
    return element != "f32" and not is_integer(element)


def is_integer(element: str) -> bool:
    return re.match(r"u?i\d", element) is not None
